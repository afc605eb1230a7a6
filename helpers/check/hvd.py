"""Checks of 08_horovod_api: ranks that begin alike, tensors that meet by name, names of two models, uneven data.

All but the names run the answer on real ranks, on the CPU and so on any machine.
"""

import contextlib
import copy
import os

import torch
from torch import nn

from .ranks import on_ranks
from .verdict import attempt, exercise, flat


@contextlib.contextmanager
def _job():
    """On a rank: a Horovod job that ends soon, with an error, if the answer makes ranks wait for each other."""
    os.environ.update(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3")  # a busy machine may keep a rank away for a while
    from ..hvd import torch as hvd  # by the ranks only: what imports the checks need not load it

    hvd.init()
    yield hvd
    hvd.barrier()  # nobody leaves while another may still wait for it
    hvd.shutdown()


def _asked(work, world_size, *given):
    """As `on_ranks`, with a hint where ranks have waited in vain or which rank failed first is chance."""
    found, problem = on_ranks(work, world_size, *given)
    if problem and ("stall" in problem.lower() or "Lost" in problem):
        problem = "some ranks wait for a tensor that others never bring. Does every rank make the same calls?"
    if problem and problem.startswith("rank ") and " raised " in problem:
        problem = f"a rank raised {problem.split(' raised ', 1)[1]}"
    return found, problem


@exercise("Weights, statistics and momentum are rank 0's everywhere, so equal gradients make equal steps.")
def same_start(answer):
    """`answer(model, optimizer)`, called on every rank, leaves all with what rank 0 has."""
    for world_size in (2, 3):
        found, problem = _asked(_try_start, world_size, answer)
        yield f"on {world_size} ranks", problem or _wrong_start(found)


def _try_start(answer):
    """On a rank: ({what: tensor} before, the same after)."""
    with _job() as hvd:
        torch.manual_seed(hvd.rank())
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        if hvd.rank() == 0:  # it has read a checkpoint; the others start from random weights
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.randn(8, 4)).square().sum().backward()
                optimizer.step()
        before = _kept(net, optimizer)
        answer(net, optimizer)
        return before, _kept(net, optimizer)


def _kept(net, optimizer):
    momentum = [optimizer.state[p].get("momentum_buffer") for p in net.parameters()]
    return {
        "weights": flat(net.parameters()), "buffers": flat(net.buffers()),
        "momentum": flat(momentum) if all(m is not None for m in momentum) else None,
    }  # fmt: skip


def _wrong_start(found):
    wanted = found[0][0]

    def are_rank_0s(what):
        return all(after[what] is not None and torch.equal(after[what], wanted[what]) for _, after in found)

    if not are_rank_0s("weights"):
        if not torch.equal(found[0][1]["weights"], wanted["weights"]):
            return "rank 0's own weights have changed, and they were the right ones. Who sends, and who receives?"
        if torch.equal(found[1][0]["weights"], found[1][1]["weights"]):
            return "rank 1 still has the weights that it began with. Who sends them, and to whom?"
        return "the weights of the others have changed, but they are not rank 0's."
    if not are_rank_0s("buffers"):
        return (
            "the weights agree, the running mean and variance of BatchNorm do not. They are no parameters. What "
            "holds both, for saving?"
        )
    if not are_rank_0s("momentum"):
        return "the model is the same everywhere, the optimizer's momentum is not. The first step will part the ranks."
    return None


NAMES = ("a", "b", "c", "d")


@exercise("Every gradient has met its namesakes, in whatever order the ranks have brought them.")
def averaged_by_name(answer):
    """`answer(parameters)`: pairs (name, p), in an order of each rank's own; `.grad` becomes the average."""
    for world_size in (2, 3):
        found, problem = _asked(_try_average, world_size, answer)
        yield f"on {world_size} ranks", problem or _wrong_average(found, world_size)


def _try_average(answer):
    """On a rank: {name: gradient} before and after."""
    with _job() as hvd:
        parameters = []
        for k, name in enumerate(NAMES):
            p = nn.Parameter(torch.zeros(3))
            p.grad = torch.tensor([1.0, 10, 100]) * (k + 1) * 7 ** hvd.rank()
            parameters.append((name, p))
        before = {name: p.grad.clone() for name, p in parameters}
        answer(parameters if hvd.rank() % 2 == 0 else parameters[::-1])
        return before, {name: p.grad for name, p in parameters}


def _wrong_average(found, world_size):
    if any(after[name] is None for _, after in found for name in NAMES):
        return "p.grad is None afterwards. Leave a tensor there: the optimizer reads it."

    def everywhere(wanted):
        return all(torch.allclose(after[name], wanted(name, before)) for before, after in found for name in NAMES)

    def total(name):
        return sum(before[name] for before, _ in found)

    if everywhere(lambda name, before: total(name) / world_size):
        return None
    if everywhere(lambda name, before: before[name]):
        return "each rank still has its own gradients. allreduce gives the average back; allreduce_ puts it in place."
    if everywhere(lambda name, before: total(name)):
        return f"the gradients are {world_size} times too large: these are sums. What is the default of op?"
    if everywhere(lambda name, before: total(name) / 2):
        return "right on 2 ranks, wrong here: you divide by 2, but 2 is not always the number of ranks."
    if everywhere(lambda name, before: total(name) / world_size**2):
        return "the gradients are too small: the default of op is an average already."
    return (
        "gradients of different tensors have been added up. The ranks call in different orders; by what does "
        "Horovod know which tensors belong together?"
    )


def _models():
    """Pairs of models, freshly made: alike, and unlike."""
    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    yield small, copy.deepcopy(small)
    yield nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))


@exercise("Every parameter is there once, under a name of its own that is the same on all ranks.")
def one_list_of_names(answer):
    """`answer(generator, discriminator)`: pairs (name, p) of all parameters of both models."""
    names = []
    for _ in range(2):  # as two ranks would
        for models in _models():
            given, problem = attempt(lambda *both: [(name, p) for name, p in answer(*both)], *models)
            yield problem and f"{problem}." or _wrong_names(given, models)
            names.append([name for name, _ in given])
    if names[: len(names) // 2] != names[len(names) // 2 :]:
        yield "the names are others in each process, so that no tensor will ever find its namesake."


def _wrong_names(given, models):
    wanted = [p for model in models for p in model.parameters()]
    names = [name for name, _ in given]
    if not all(isinstance(name, str) for name in names):
        return f"a name is a text, not {next(name for name in names if not isinstance(name, str))!r}."
    missing = sum(all(p is not other for _, other in given) for p in wanted)
    if missing:
        return (
            f"{missing} of the {len(wanted)} parameters are not in the list, so nobody averages their gradients. "
            "Does one model's entry take the place of the other's?"
        )
    if len(given) != len(wanted):
        return f"{len(given)} pairs for {len(wanted)} parameters. Each belongs in the list once."
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return f"the name {twice[0]!r} is there {names.count(twice[0])} times. Which model is it from?"
    return None


UNEVEN = ([3, 2], [1, 4, 0])  # batches of each rank


@exercise("Every batch was used, nobody has waited in vain, and all ranks end with the same weights.")
def everybody_finishes(answer):
    """`answer(model, optimizer, batches)` trains on all of its batches, of which ranks have unlike many."""
    for counts in UNEVEN:
        found, problem = _asked(_try_uneven, len(counts), answer, counts)
        yield f"ranks with {', '.join(map(str, counts))} batches", problem or _wrong_end(found, counts)


def _try_uneven(answer, counts):
    """On a rank: (whether all batches were used, weights before, weights after)."""
    with _job() as hvd:
        torch.manual_seed(0)
        net, used = nn.Linear(3, 1), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
        batches = [torch.randn(4, 3) + hvd.rank() for _ in range(counts[hvd.rank()])]
        before = flat(net.parameters())
        hook = net.register_forward_pre_hook(lambda _, given: used.append(given[0]))
        answer(net, optimizer, batches)
        hook.remove()
        every = all(any(batch is other for other in used) for batch in batches)
        return every, before, flat(net.parameters())


def _wrong_end(found, counts):
    if not all(every for every, *_ in found):
        return "some batches were never used. Nothing has to be dropped: hvd.join() lets the others finish."
    if torch.equal(found[0][1], found[0][2]):
        return f"after {counts[0]} batches rank 0 has the weights that it began with."
    if not all(torch.equal(found[0][2], after) for *_, after in found):
        return (
            "all have come to an end, with different weights: who was finished has missed the last updates. "
            "Who has them? hvd.join() returns a rank."
        )
    return None
