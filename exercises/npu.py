"""Checks of 07_npu_migration: steps 1 to 4 by hand; of more/07_tool: a script of one's own.

The first four read the edited script. The last runs the answer on cards, emulated ones where there are no real ones.
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
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from .ranks import call, on_ranks
from .verdict import NotYet, Say, attempt, exercise

OPTIONS = {
    "device": "npu",
    "addr": "127.0.0.1",
    "device_list": "0,1,2,3,4,5,6,7",
    "amp": False,
    "loss_scale": 1024.0,
    "opt_level": "O2",
    "dist_backend": "hccl",
}


def _parsed(text):
    """The statements of a script that the reader has edited."""
    say = Say("by hand")
    if not isinstance(text, str):
        raise NotYet(say("text", kind=type(text).__name__))
    try:
        return ast.parse(text).body
    except SyntaxError as error:
        raise NotYet(say("syntax", line=error.lineno, error=error.msg)) from error


def _defined(body, name):
    return [it for it in body if isinstance(it, ast.FunctionDef) and it.name == name]


def _run(statements, **names):
    """The names after some statements of the script have run."""
    exec(compile(ast.Module(statements, []), "main.py", "exec"), names)
    return names


@exercise
def step_1(text, say):
    """The head of the script imports torch, then torch_npu, and amp from apex."""
    names = []
    for node in _parsed(text):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names += [module + alias.name for alias in node.names]
    yield "torch_npu" not in names and say("torch_npu")
    yield names.index("torch_npu") < names.index("torch") and say("after")
    yield "apex.amp" not in names and say("amp")


@exercise
def step_2(text, say):
    """The parser has the guide's options with its defaults, and args.dist_backend is hccl."""
    adding = [it for it in _parsed(text) if isinstance(it, ast.Expr) and "add_argument" in ast.unparse(it)]
    parser = argparse.ArgumentParser(exit_on_error=False)
    try:
        _run(adding, parser=parser, models=types.SimpleNamespace(list_models=lambda **_: None))
        found = vars(parser.parse_args(["DATA"]))
        tried = vars(parser.parse_args(["DATA", "--device_list", "2,3", "--loss_scale", "-1", "--amp"]))
    except (Exception, SystemExit) as error:
        yield say("refused", error=f"{type(error).__name__}: {error}")
    for name, wanted in OPTIONS.items():
        yield name not in found and say("missing", name=name)
        yield name == "dist_backend" and found[name] == "nccl" and say("nccl")
        yield found[name] != wanted and say("default", name=name, found=found[name], wanted=wanted)
    yield tried["loss_scale"] != -1.0 and say("type", found=tried["loss_scale"])
    yield tried["amp"] is not True and say("switch", found=tried["amp"])


@exercise
def step_3(text, say):
    """device_id_to_process_device_map gives {number of a process: its card}, the cards sorted."""
    name = "device_id_to_process_device_map"
    made = _defined(_parsed(text), name)
    yield not made and say("function")
    answer = _run(made)[name]
    for cards, wanted in {"0,1": {0: 0, 1: 1}, "3,2": {0: 2, 1: 3}, "10,9": {0: 9, 1: 10}, "7": {0: 7}}.items():
        say.case(cards=cards)
        found = attempt(answer, cards)
        yield not isinstance(found, dict) and say("dict", found=found)
        yield any(type(it) is not int for it in [*found, *found.values()]) and say("numbers", found=found)
        yield sorted(found) != sorted(wanted) and say("processes", found=sorted(found))
        yield found != wanted and say("otherwise", found=found)


@exercise
def step_4(text, say):
    """main sets MASTER_ADDR to args.addr and MASTER_PORT to the text of a free port, after the options are parsed."""
    body = [statement for main in _defined(_parsed(text), "main") for statement in main.body]
    setting = [it for it in body if re.search("MASTER_(ADDR|PORT)", ast.unparse(it))]
    parsed, spawned = ([it.lineno for it in body if word in ast.unparse(it)] for word in ("parse_args", "spawn"))
    environ = {}
    named = {"os": types.SimpleNamespace(environ=environ), "args": types.SimpleNamespace(addr="10.0.0.7")}
    attempt(lambda: _run(setting, **named))
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        yield name not in environ and say("missing", name=name)
    address, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    yield not parsed[0] < setting[0].lineno and say("early")
    yield spawned and setting[-1].lineno > spawned[0] and say("late")
    yield address != "10.0.0.7" and say("address", found=address)
    yield not isinstance(port, str) and say("number", found=port)
    yield not (port.isdigit() and 1024 <= int(port) < 65536) and say("port", found=port)


TESTED, RATES = 27, [0.1, 0.01]  # images that the script of the exercise validates on, its learning rates
ERRORS = {  # what an error says: the hint that it is about
    r"'npu'|string: npu|type hccl": "device",
    r"(?i)nccl": "nccl",
    r"all on npu": "whose",
    r"(?i)cuda": "cuda",
    r"same device": "same",
    r"HCCL|No backend type": "hccl",
}


@exercise
def migrated(script, say):
    """The text `script` must train on two cards as the CUDA script of the exercise does on two GPUs."""
    from platforms.npu.recorded import why_missing

    missing = why_missing()
    yield missing and say("cards", why=missing)
    _parsed(script)
    try:
        found = on_ranks(call, 2, functools.partial(_try_script, script), named=False)
    except NotYet as problem:
        about = next((say(key) for words, key in ERRORS.items() if re.search(words, str(problem))), "")
        yield f"{str(problem).rstrip('.')}. {about}".strip()
    for rank, did in enumerate(found):
        kinds, sizes = ({batch[k] for batch in did["batches"]} for k in range(2))
        yield not kinds and say("untrained")
        yield kinds != {"npu"} and say("off card", kinds=" and the ".join(sorted(kinds - {"npu"})))
        used = " and ".join(f"npu:{card}" for card in did["devices"])
        yield used != f"npu:{rank}" and say("own card", rank=rank, used=used)
        sent = did.get("collectives", {"allreduce": math.inf})  # real cards do not count
        yield sent.get("allreduce", 0) < len(did["batches"]) and say("exchange")
        yield did.get("pinned") and say("pinned", n=did["pinned"])
        yield len(sizes) > 1 and say("sizes", sizes=" and of ".join(map(str, sorted(sizes))))
        yield did["rates"] != RATES and say("rates", rates=did["rates"], wanted=RATES)
        yield not did["amp"] and say("unscaled")
        said = (did["said"].strip().splitlines() or ["nothing"])[-1]
        yield rank == 0 and f"of {TESTED} images" not in did["said"] and say("validation", said=said, tested=TESTED)


def _try_script(script):
    """On a rank: run the script, and tell what it did."""
    from platforms.npu import counts
    from platforms.npu.loading import shims

    sys.path += shims()
    batches, rates, scaled, said = [], {}, [], io.StringIO()
    cross_entropy, scale = F.cross_entropy, torch.amp.GradScaler.scale

    def watched(output, target, *given, **named):
        if torch.is_grad_enabled():
            batches.append((output.device.type, len(output)))
        return cross_entropy(output, target, *given, **named)

    F.cross_entropy = watched
    torch.amp.GradScaler.scale = lambda *given: scaled.append(1) or scale(*given)
    register_optimizer_step_post_hook(lambda optimizer, *_: rates.update({optimizer.param_groups[0]["lr"]: 1}))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(said):
        exec(compile(script, "my_script.py", "exec"), {"__name__": "__main__"})
    done = counts.of_process() if hasattr(torch, "npu") else {"devices": {}, "amp": {}}
    did = {"batches": batches, "rates": [round(rate, 9) for rate in rates], "said": said.getvalue()}
    return done | did | {"amp": bool(done["amp"] or scaled)}
