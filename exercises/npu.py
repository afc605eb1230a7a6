"""Checks of 07_npu_migration: steps 1 to 4 by hand, what goes over HCCL, a checkpoint, a script of one's own.

The first four read the edited script. The others run the answer on cards, emulated ones where there are no real ones.
"""

import argparse
import ast
import contextlib
import functools
import io
import math
import re
import sys
import types
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from .ranks import call, on_ranks
from .verdict import attempt, exercise

OPTIONS = {
    "device": "npu",
    "addr": "127.0.0.1",
    "device_list": "0,1,2,3,4,5,6,7",
    "amp": False,
    "loss_scale": 1024.0,
    "opt_level": "O2",
    "dist_backend": "hccl",
}


def by_hand(hints):
    """Decorator of a generator of hints on the tree of a script that the reader has edited."""

    @functools.wraps(hints)
    def checked(text):
        if not isinstance(text, str):
            yield f"Give the check the text of the script, not {type(text).__name__}."
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            yield f"Line {error.lineno} is no Python: {error.msg}."
        yield from hints(tree)

    return checked


@exercise("torch_npu brings the device, and steps 11 and 14 find amp.")
@by_hand
def step_1(tree):
    """The head of the script imports torch, then torch_npu, and amp from apex."""
    names = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names += [module + alias.name for alias in node.names]
    if "torch_npu" not in names:
        yield "Which package brings torch.npu? It is not imported at the head of the script."
    if names.index("torch_npu") < names.index("torch"):
        yield "torch_npu extends torch: import it after torch."
    if "apex.amp" not in names:
        yield "Steps 11 and 14 write amp.initialize and amp.scale_loss. From which package does `amp` come?"


@exercise("Seven options, and one backend.")
@by_hand
def step_2(tree):
    """The parser has the guide's options with its defaults, and args.dist_backend is hccl."""
    adding = [it for it in tree.body if isinstance(it, ast.Expr) and "add_argument" in ast.unparse(it)]
    parser = argparse.ArgumentParser(exit_on_error=False)
    given = {"parser": parser, "models": types.SimpleNamespace(list_models=lambda **_: None)}
    try:
        exec(compile(ast.Module(adding, []), "main.py", "exec"), given)
        found = vars(parser.parse_args(["DATA"]))
        tried = vars(parser.parse_args(["DATA", "--device_list", "2,3", "--loss_scale", "-1", "--amp"]))
    except (Exception, SystemExit) as error:
        yield f"The parser refuses this: {type(error).__name__}: {error}"
    for name, wanted in OPTIONS.items():
        if name not in found:
            yield f"There is no args.{name}: an option --{name} is missing."
        if name == "dist_backend" and found[name] == "nccl":
            yield (
                "args.dist_backend is 'nccl'. Two options with one name: the default of the first one counts. The "
                "script has had --dist-backend before: what has to become of it?"
            )
        if found[name] != wanted:
            yield f"args.{name} is {found[name]!r} by default, in the guide it is {wanted!r}."
    if tried["loss_scale"] != -1.0:
        yield f"--loss_scale -1 gives {tried['loss_scale']!r}. Which type has the option?"
    if tried["amp"] is not True:
        yield f"--amp gives {tried['amp']!r}: the option is a switch."


CARDS = {"0,1": {0: 0, 1: 1}, "3,2": {0: 2, 1: 3}, "10,9": {0: 9, 1: 10}, "7": {0: 7}}


@exercise("Processes are numbered without gaps; the cards may be any.")
@by_hand
def step_3(tree):
    """device_id_to_process_device_map gives {number of a process: its card}, the cards sorted."""
    name = "device_id_to_process_device_map"
    made = [it for it in tree.body if isinstance(it, ast.FunctionDef) and it.name == name]
    if not made:
        yield f"There is no function {name} at the top level of the script."
    scope = {}
    exec(compile(ast.Module(made, []), "main.py", "exec"), scope)
    for cards, wanted in CARDS.items():
        found, problem = attempt(scope[name], cards)
        yield f"--device_list {cards}", problem or _wrong_map(found, wanted)


def _wrong_map(found, wanted):
    if not isinstance(found, dict):
        return f"the function gives {found!r}. Wanted is a dict of process numbers and cards; is there a `return`?"
    if any(type(it) is not int for it in [*found, *found.values()]):
        return f"{found}. Processes and cards are numbers; and sorted as texts, '10' comes before '9'."
    if sorted(found) != sorted(wanted):
        return f"the processes are {sorted(found)}. They are numbered from 0, without a gap: {sorted(wanted)}."
    if found != wanted:
        return f"{found}. The cards are sorted first, so that the order of typing does not matter."
    return None


@exercise("The processes of this host meet at one address and port.")
@by_hand
def step_4(tree):
    """main sets MASTER_ADDR to args.addr and MASTER_PORT to the text of a free port, after the options are parsed."""
    main = next((it for it in tree.body if isinstance(it, ast.FunctionDef) and it.name == "main"), None)
    body = main.body if main else []
    setting = [it for it in body if re.search("MASTER_(ADDR|PORT)", ast.unparse(it))]
    parsed = [it.lineno for it in body if "parse_args" in ast.unparse(it)]
    spawned = [it.lineno for it in body if "spawn" in ast.unparse(it)]
    environ = {}
    scope = {"os": types.SimpleNamespace(environ=environ), "args": types.SimpleNamespace(addr="10.0.0.7")}
    _, problem = attempt(exec, compile(ast.Module(setting, []), "main.py", "exec"), scope)
    yield problem
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environ:
            yield f"{name} is not set in main()."
    if not parsed[0] < setting[0].lineno:
        yield "The address is used before the options are parsed: args is not known there."
    if spawned and setting[-1].lineno > spawned[0]:
        yield "Processes are spawned before the address is set: they would not have it."
    if environ["MASTER_ADDR"] != "10.0.0.7":
        yield f"With --addr 10.0.0.7, MASTER_ADDR is {environ['MASTER_ADDR']!r}. The option says where to meet."
    port = environ["MASTER_PORT"]
    if not isinstance(port, str):
        yield f"MASTER_PORT is the number {port!r}. os.environ takes texts only."
    if not port.isdigit() or not 1024 <= int(port) < 65536:
        yield f"MASTER_PORT is {port!r}. It is a port that is free: a number from 1024 to 65535."


TESTED, RATES = 27, [0.1, 0.01]  # images that the script of the exercise validates on, its learning rates
ERRORS = {  # what an error says: what it is about
    r"'npu'|string: npu|type hccl": "PyTorch does not know this device by itself. Who brings it (step 1)?",
    r"(?i)nccl": "Which library speaks to Ascend's (step 7)?",
    r"all on npu": "Who has told the processes which card is theirs? CUDA_VISIBLE_DEVICES means nothing here (step 8).",
    r"(?i)cuda": "Something still asks for CUDA.",
    r"same device": "What meets in one operation must be on one card (steps 11, 13 and 15).",
    r"HCCL|No backend type": "What goes over HCCL must be on a card, in a format that it knows (not in the guide).",
}


@exercise("Two processes, a card each; the same training; and all that validation has counted.")
def migrated(script):
    """The text `script` must train on two cards as the CUDA script of the exercise does on two GPUs."""
    from platforms.npu.recorded import why_missing

    missing = why_missing()
    if missing:
        yield f"This check runs your answer on cards, and none can be had here: {missing}"
    if not isinstance(script, str):
        yield f"Give the check the text of a script, not {type(script).__name__}."
    try:
        compile(script, "my_script.py", "exec")
    except SyntaxError as error:
        yield f"Line {error.lineno} is no Python: {error.msg}."
    found, problem = on_ranks(call, 2, functools.partial(_try_script, script))
    if problem:
        problem = re.sub(r"^rank \d+ (?=raised)", "a process ", problem)  # which one fails first is chance
        about = next((hint for words, hint in ERRORS.items() if re.search(words, problem)), "")
        yield f"{problem[0].upper()}{problem[1:]} {about}".strip()
    hint = next(filter(None, (_wrong_run(rank, facts) for rank, facts in enumerate(found))), None)
    yield hint and f"It runs, but {hint}"


def _try_script(script):
    """On a rank: run the script, and tell what it did."""
    from platforms.npu import counts
    from platforms.npu.loading import shims

    sys.path += shims()
    batches, rates, scaled, said = [], [], [], io.StringIO()
    cross_entropy, scale, meet = F.cross_entropy, torch.amp.GradScaler.scale, dist.init_process_group

    def met(backend=None, *given, **named):
        if "nccl" in str(backend).lower():  # in these words on any machine, whatever it has besides
            raise RuntimeError("NCCL finds no card of NVIDIA's on this host.")
        meet(backend, *given, **named)

    def watched(output, target, *given, **named):
        if torch.is_grad_enabled():
            batches.append((output.device.type, len(output)))
        return cross_entropy(output, target, *given, **named)

    F.cross_entropy = watched
    dist.init_process_group, torch.cuda.is_available, torch.cuda.device_count = met, lambda: False, lambda: 0
    torch.amp.GradScaler.scale = lambda *given: scaled.append(1) or scale(*given)
    register_optimizer_step_post_hook(lambda optimizer, *_: rates.append(round(optimizer.param_groups[0]["lr"], 9)))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(said):
        exec(compile(script, "my_script.py", "exec"), {"__name__": "__main__"})
    done = counts.of_process() if hasattr(torch, "npu") else {"devices": {}}
    done["amp"] = bool(done.get("amp") or scaled)
    return done | {"batches": batches, "rates": list(dict.fromkeys(rates)), "said": said.getvalue()}


def _wrong_run(rank, facts):
    kinds, sizes = ({batch[k] for batch in facts["batches"]} for k in range(2))
    if not kinds:
        return "nothing was trained, or not with cross_entropy."
    if kinds != {"npu"}:
        return f"it has trained on the {' and the '.join(sorted(kinds - {'npu'}))}, not on a card."
    if list(facts["devices"]) != [str(rank)]:
        used = " and ".join(f"npu:{card}" for card in facts["devices"])
        return f"process {rank} has used {used}. It has a card of its own, with its number (step 8)."
    sent = facts.get("collectives", {"allreduce": math.inf})  # real cards do not count
    if sent.get("allreduce", 0) < len(facts["batches"]):
        return "the processes have not exchanged their gradients: each trains a model of its own (step 11)."
    if facts.get("pinned"):
        return f"{facts['pinned']} batches went through pinned memory, which is CUDA's (step 10)."
    if len(sizes) > 1:
        return f"there are batches of {' and of '.join(map(str, sorted(sizes)))} images: kernels for each (step 10)."
    if facts["rates"] != RATES:
        return f"the learning rates are {facts['rates']}, not {RATES}: is the schedule lost, as in step 9?"
    if not facts["amp"]:
        return "the loss is not scaled any more: gradients in half precision underflow (step 14)."
    if rank == 0 and f"of {TESTED} images" not in facts["said"]:
        told = (facts["said"].strip().splitlines() or ["nothing"])[-1]
        return f"process 0 says {told!r}. There are {TESTED} images to validate on, over both processes."
    return None
