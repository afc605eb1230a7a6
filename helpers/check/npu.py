"""Checks of 07_npu_migration: a process's place among hosts, what goes over HCCL, a checkpoint.

The last two run the answer on cards, emulated ones where there are no real ones.
"""

import contextlib
import functools
import gc
import os
import re
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from .. import npu
from ..launcher.group import distributed
from ..npu.recorded import why_missing
from .ranks import on_ranks
from .verdict import attempt, not_yet, right

# -- placement ----------------------------------------------------------------------------

CLUSTERS = (["0,1"], ["0,1", "0,1"], ["0,1", "5,4,10"], ["7", "10,9,3", "2,1"])  # the cards of each host


def placement(answer) -> bool:
    """`answer(lists, host, process)`: (world_size, rank, card) from the lists of cards of all hosts."""
    for lists in CLUSTERS:
        hosts = [sorted(map(int, cards.split(","))) for cards in lists]
        places = [(host, process) for host, cards in enumerate(hosts) for process in range(len(cards))]
        found = []
        for host, process in places:
            here = f"Cards {' and '.join(map(repr, lists))}, process {process} of host {host}: "
            given, problem = attempt(lambda *where: tuple(answer(*where)), list(lists), host, process)
            if problem or len(given) != 3:
                return not_yet(here + f"{problem or f'give world_size, rank and card, not {given}'}.")
            hint = _wrong_place(given, (len(places), len(found), hosts[host][process]), found)
            if hint:
                return not_yet(here + hint)
            found.append(given[1])
    return right("Every process has a rank of its own and the card that it was given, however the lists were typed.")


def _wrong_place(given, wanted, ranks):
    """A hint at what is wrong with a process's place, or None; `ranks` are taken already."""
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


# -- cards --------------------------------------------------------------------------------


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


# -- whole_accuracy -----------------------------------------------------------------------

COUNTED = (((4, 1), (5, 4)), ((3, 0, 1), (3, 2, 2)), ((20_011, 15_002), (25_000, 25_000)))  # (correct, count) by rank


@needs_cards
def whole_accuracy(answer) -> bool:
    """`answer(correct, count)`, called on every rank, gives the accuracy over all ranks' images; over HCCL."""
    for correct, count in COUNTED:
        found, problem = on_cards(_try_accuracy, len(count), answer, correct, count)
        if problem and "No backend type" in problem:
            problem += ". HCCL carries what is on a card, and nothing else."
        hint = problem or _wrong_accuracy(found, correct, count)
        if hint:
            tested = ", ".join(f"{c} of {n}" for c, n in zip(correct, count, strict=True))
            return not_yet(f"Processes with {tested} right: {hint}")
    return right("Numbers that are added up travel on the cards, in a format that HCCL knows and that holds them.")


def _try_accuracy(answer, correct, count):
    with _world() as world:
        found = float(answer(correct[world.rank], count[world.rank]))
        dist.all_reduce(torch.zeros(1, device=world.device))  # nobody leaves while another may still wait for it
        return found


def _wrong_accuracy(found, correct, count):
    """A hint at what is wrong with the ranks' accuracies, or None."""
    wanted, rates = sum(correct) / sum(count), [c / n for c, n in zip(correct, count, strict=True)]
    if all(abs(f - wanted) < 1e-6 for f in found):
        return None
    if all(abs(f - rate) < 1e-6 for f, rate in zip(found, rates, strict=True)):
        return "each process reports its own images. The others have tested some, too."
    if all(abs(f - sum(rates) / len(rates)) < 1e-6 for f in found):
        return "this is the mean of the processes' rates. Add up two numbers, and divide at the end."
    told = f"they answer {', '.join(f'{value:.5f}' for value in found)}, not {wanted:.5f}."
    if all(abs(f - wanted) < 1e-3 for f in found):
        return f"{told} Nearly: up to which number does the format count exactly that you add up in?"
    return told


# -- resumed ------------------------------------------------------------------------------

EPOCH = 5


@needs_cards
def resumed(answer) -> bool:
    """`answer(path, loc, model, optimizer)` reads a checkpoint onto the card `loc`, and gives its epoch."""
    for with_amp in (True, False):
        found, problem = on_cards(_try_resume, 2, answer, with_amp)
        hint = problem or next((_wrong_resume(rank, facts) for rank, facts in enumerate(found) if any(facts)), None)
        if hint:
            return not_yet(f"A checkpoint written by card 0 with{'' if with_amp else 'out'} mixed precision: {hint}")
    return right("Each process reads onto its own card, and weights, momentum, loss scale and epoch are all back.")


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
        return "the loss scale begins anew. Under which key is it in the checkpoint, and which function takes it?"
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
