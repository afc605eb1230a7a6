"""Checks of 07_npu_migration: a process's place among hosts, what goes over HCCL, a checkpoint, a migrated script.

All but the first run the answer on cards, emulated ones where there are no real ones. The script, which was migrated
by hand, is judged by what it does on two cards.
"""

import contextlib
import functools
import gc
import io
import math
import os
import re
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import npu
from ..launcher.group import distributed
from ..npu import counts
from ..npu.loading import shims
from ..npu.recorded import why_missing
from . import ddp
from .ranks import call, on_ranks
from .verdict import attempt, exercise, not_yet

CLUSTERS = (["0,1"], ["0,1", "0,1"], ["0,1", "5,4,10"], ["7", "10,9,3", "2,1"])  # the cards of each host


@exercise("Every process has a rank of its own and the card that it was given, however the lists were typed.")
def placement(answer):
    """`answer(lists, host, process)`: (world_size, rank, card) from the lists of cards of all hosts."""
    for lists in CLUSTERS:
        hosts = [sorted(map(int, cards.split(","))) for cards in lists]
        places = [(host, process) for host, cards in enumerate(hosts) for process in range(len(cards))]
        found = []
        for host, process in places:
            here = f"Cards {' and '.join(map(repr, lists))}, process {process} of host {host}"
            given, problem = attempt(lambda *where: tuple(answer(*where)), list(lists), host, process)
            if problem or len(given) != 3:
                yield here, problem or f"give world_size, rank and card, not {given}"
            yield here, _wrong_place(given, (len(places), len(found), hosts[host][process]), found)
            found.append(given[1])


def _wrong_place(given, wanted, ranks):
    (world_size, rank, card), (size, number, its_card) = given, wanted
    if type(card) is not int:
        return f"the card is {card!r}. A card is a number; and sorted as texts, '10' comes before '9'."
    if card != its_card:
        return f"card {card}, wanted is card {its_card}. The cards of a host are sorted, and taken in this order."
    if world_size != size:
        return f"world_size is {world_size}, but there are {size} processes. Does every host have as many cards?"
    if rank in ranks:
        return f"rank {rank}, which another process has already. How many processes do the hosts before this one have?"
    if rank != number:
        return f"rank {rank}, wanted is rank {number}: count through the hosts, from the first."
    return None


def needs_cards(check):
    """Decorator of a check that runs the answer on cards: where there are none it says so."""

    @functools.wraps(check)
    def checked(answer) -> bool:
        missing = why_missing()
        if missing:
            return not_yet(f"This check runs your answer on cards, and none can be had here: {missing}")
        return check(answer)

    return checked


def on_cards(work, world_size, *given):
    """As `on_ranks`; the hint does not name the rank, since which one fails first is chance."""
    found, problem = on_ranks(work, world_size, *given)
    return found, problem and re.sub(r"^rank \d+ (?=raised)", "a process ", problem)


@contextlib.contextmanager
def _world():
    npu.load()
    with distributed("npu") as world:
        yield world


COUNTED = (((4, 1), (5, 4)), ((3, 0, 1), (3, 2, 2)), ((20_011, 15_002), (25_000, 25_000)))  # (correct, count) by rank


@needs_cards
@exercise("Numbers that are added up travel on the cards, in a format that HCCL knows and that holds them.")
def whole_accuracy(answer):
    """`answer(correct, count)`, called on every rank, gives the accuracy over all ranks' images; over HCCL."""
    for correct, count in COUNTED:
        found, problem = on_cards(_try_accuracy, len(count), answer, correct, count)
        if problem and "No backend type" in problem:
            problem += ". HCCL carries what is on a card, and nothing else."
        hint = problem or _wrong_accuracy(found, correct, count)
        tested = ", ".join(f"{c} of {n}" for c, n in zip(correct, count, strict=True))
        yield f"Processes with {tested} right", hint


def _try_accuracy(answer, correct, count):
    with _world() as world:
        found = float(answer(correct[world.rank], count[world.rank]))
        dist.all_reduce(torch.zeros(1, device=world.device))  # nobody leaves while another may still wait for it
        return found


def _wrong_accuracy(found, correct, count):
    wanted = sum(correct) / sum(count)
    if 1e-6 <= max(abs(f - wanted) for f in found) < 1e-3:
        told = ", ".join(f"{value:.5f}" for value in found)
        return (
            f"they answer {told}, not {wanted:.5f}. Nearly: up to which number does the format count exactly that "
            "you add up in?"
        )
    return ddp.wrong_accuracy(found, correct, count)


EPOCH = 5


@needs_cards
@exercise("Each process reads onto its own card, and weights, momentum, loss scale and epoch are all back.")
def resumed(answer):
    """`answer(path, loc, model, optimizer)` reads a checkpoint onto the card `loc`, and gives its epoch."""
    for with_amp in (True, False):
        found, problem = on_cards(_try_resume, 2, answer, with_amp)
        if not problem:
            problem = next((_wrong_resume(rank, facts) for rank, facts in enumerate(found) if any(facts)), None)
        yield f"A checkpoint written by card 0 with{'' if with_amp else 'out'} mixed precision", problem


def _try_resume(answer, with_amp):
    """On a rank: what is wrong after a checkpoint of card 0 was read, a truth value each."""
    from ..npu.apex import amp

    with _world() as world, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pth.tar")
        net, optimizer = _trained(amp, "npu:0", with_amp, steps=3)
        kept = [p.detach().float().cpu() for p in net.parameters()], _momentum(optimizer), amp.state_dict()
        torch.save({"epoch": EPOCH, "state_dict": net.state_dict(), "optimizer": optimizer.state_dict(),
                    "amp": amp.state_dict() if with_amp else None}, path)  # fmt: skip
        net, optimizer = _trained(amp, str(world.device), with_amp, steps=0)
        gc.collect()  # what is freed later would make room for what strays
        others = [card for card in range(2) if card != world.rank]
        before = [torch.npu.memory_allocated(card) for card in others]
        for card in others:
            torch.npu.reset_peak_memory_stats(card)
        epoch = answer(path, str(world.device), net, optimizer)
        strayed = [torch.npu.max_memory_allocated(card) for card in others] != before
        weights = all(map(torch.allclose, (p.detach().float().cpu() for p in net.parameters()), kept[0]))
        momentum = _momentum(optimizer)
        momentum = len(momentum) == len(kept[1]) and all(map(torch.equal, momentum, kept[1]))
        return strayed, not weights, not momentum, amp.state_dict() != kept[2], epoch != EPOCH


def _wrong_resume(rank, facts):
    strayed, weights, momentum, scale, _ = facts
    if strayed:
        return (
            f"process {rank} has put tensors on another card than its own. They remember where they were saved; "
            "which argument of torch.load says where they go?"
        )
    if weights:
        return "the weights are not those of the checkpoint."
    if momentum:
        return "the optimizer has not got its momentum back."
    if scale:
        return "the loss scale is not back. Under which key is it in the checkpoint, and which function takes it?"
    return f"the run was in epoch {EPOCH}. Say so, or it begins at 0 again."


def _trained(amp, loc, with_amp, steps):
    """(net, optimizer) on a card after some steps, the first of which overflows at the first dynamic scale."""
    torch.manual_seed(steps)
    net = nn.Linear(4, 3).to(loc)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    amp._reset()
    if with_amp:
        net, optimizer = amp.initialize(net, optimizer, opt_level="O2", loss_scale="dynamic", verbosity=0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = 8 * net(torch.ones(2, 4, device=loc)).sum()
        with amp.scale_loss(loss, optimizer) if with_amp else contextlib.nullcontext(loss) as scaled:
            scaled.backward()
        optimizer.step()
    return net, optimizer


def _momentum(optimizer):
    return [state["momentum_buffer"].cpu() for state in optimizer.state.values() if "momentum_buffer" in state]


TESTED, RATES = 27, [0.1, 0.01]  # images that the script of the exercise validates on, its learning rates
ERRORS = {  # what an error says: what it is about
    r"'npu'|string: npu|type hccl": "PyTorch does not know this device by itself. Who brings it (step 1)?",
    r"(?i)nccl": "Which library speaks to Ascend's (step 7)?",
    r"all on npu": "Who has told the processes which card is theirs? CUDA_VISIBLE_DEVICES means nothing here (step 8).",
    r"(?i)cuda": "Something still asks for CUDA.",
    r"same device": "What meets in one operation must be on one card (steps 9 and 15).",
    r"HCCL|No backend type": "What goes over HCCL must be on a card, in a format that it knows (step 15).",
}


@needs_cards
@exercise("Two processes, a card each; the same training; and all that validation has counted.")
def migrated(script):
    """The text `script` must train on two cards as the CUDA script of the exercise does on two GPUs."""
    if not isinstance(script, str):
        yield f"Give the check the text of a script, not {type(script).__name__}."
    try:
        compile(script, "my_script.py", "exec")
    except SyntaxError as error:
        yield f"Line {error.lineno} is no Python: {error.msg}."
    found, problem = on_cards(call, 2, functools.partial(_try_script, script))
    if problem:
        about = next((hint for words, hint in ERRORS.items() if re.search(words, problem)), "")
        yield f"{problem[0].upper()}{problem[1:]} {about}".strip()
    hint = next(filter(None, (_wrong_run(rank, facts) for rank, facts in enumerate(found))), None)
    yield hint and f"It runs, but {hint}"


def _try_script(script):
    """On a rank: run the script, and tell what it did."""
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
        return f"{facts['pinned']} batches went through pinned memory, which is CUDA's (step 13)."
    if len(sizes) > 1:
        return f"there are batches of {' and of '.join(map(str, sorted(sizes)))} images: kernels for each (step 13)."
    if facts["rates"] != RATES:
        return f"the learning rates are {facts['rates']}, not {RATES} (step 14)."
    if not facts["amp"]:
        return "the loss is not scaled any more: gradients in half precision underflow (step 16)."
    if rank == 0 and f"of {TESTED} images" not in facts["said"]:
        told = (facts["said"].strip().splitlines() or ["nothing"])[-1]
        return f"process 0 says {told!r}. There are {TESTED} images to validate on, over both processes (step 15)."
    return None
