"""Checks of 03_ddp: the sampler's epochs, a loop made to run on ranks, what messages cost, and a resumed run.

`train_on_ranks` runs the reader's loop on real ranks, on the CPU and so on any machine: on two of them, and on three,
because a 2 in the answer may be the number of ranks or only look like it.
"""

import math
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.optim import optimizer as hooks
from torch.utils.data import Dataset

from helpers import costmodel
from helpers.launcher.group import distributed

from .ranks import on_ranks
from .verdict import attempt, exercise, flat, formula, number


@exercise
def visits(answer, say):
    """`answer(data, rank, world_size, epochs)`: what a rank trains on, a list of samples for each of `epochs`."""
    data, found = list(range(100, 124)), {}
    for epochs in (range(4), range(2, 4)):
        for rank in (0, 1):
            got, problem = attempt(
                lambda *given: [list(map(int, seen)) for seen in answer(*given)], data, rank, 2, epochs
            )
            yield problem
            yield len(got) != len(epochs) and say("lists", asked=len(epochs), given=len(got))
            found[rank, epochs.start] = got
    orders = found[0, 0]
    for epoch, (some, others) in enumerate(zip(orders, found[1, 0], strict=True)):
        if sorted(some + others) != data:
            yield set(some + others) - set(data) and say("positions")
            yield some == others and say("same", epoch=epoch)
            shared = len(set(some) & set(others))
            yield shared and say("both", epoch=epoch, n=shared)
            yield say("none", epoch=epoch, n=len(data) - len(some + others), all=len(data))
    yield orders[0] in (data[0::2], sorted(orders[0])) and say("unshuffled")
    late = next((late for late, seen in enumerate(orders) if seen in orders[:late]), None)
    if late is not None:
        yield late == 1 and len(set(map(tuple, orders))) > 1 and say("behind")
        yield say("repeated", early=orders.index(orders[late]), late=late)
    yield found[0, 2] != orders[2:] and say("resumed")


# -- one device's loop on ranks -----------------------------------------------------------

SAMPLES, BATCH, EPOCHS, RATE = 48, 12, 2, 0.1


@exercise
def train_on_ranks(answer, say):
    """`answer(data, make_model, epochs, batch)`, called on every rank, returns the model trained with DDP."""
    for n in (2, 3):
        found, problem = on_ranks(_try_train, n, answer)
        case = say("case", n=n)
        yield case, problem
        read, updates, starts, trained = zip(*found, strict=True)
        yield case, any(weights is None for weights in trained) and say("no model")
        yield case, all(len(seen) == SAMPLES * EPOCHS for seen in read) and say("everything", samples=SAMPLES)
        halves = [[seen[half * SAMPLES // n :][: SAMPLES // n] for seen in read] for half in range(EPOCHS)]
        for epoch, shares in enumerate(halves):
            yield case, sorted(sum(shares, [])) != list(range(SAMPLES)) and say("shares", epoch=epoch, samples=SAMPLES)
        moved = [end - start for start, end in zip(starts, trained, strict=True)]
        apart = max((weights - trained[0]).abs().max().item() for weights in trained)
        alike = max((way - moved[0]).abs().max().item() for way in moved) < 1e-9
        yield case, apart > 1e-9 and say("start" if alike else "apart", apart=apart)
        steps = SAMPLES // BATCH * EPOCHS
        yield case, set(updates) != {steps} and say("updates", updates=updates[0], steps=steps)
        yield case, halves[0] == halves[1] and say("order")
        alone = _alone(read, starts[0], steps, n)
        yield case, not torch.allclose(trained[0], alone, rtol=0, atol=1e-9) and say("otherwise")


class _Noted(Dataset):
    """Samples of 4 numbers with a label of 3; notes which were read."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)
        self.read = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.read.append(int(index))
        return self.inputs[index], self.labels[index]


def _try_train(answer):
    """On a rank: (samples in the order of reading, updates, weights at the start, weights at the end or None)."""
    made, data = [], _Noted()

    def make_model():
        model = torch.nn.Linear(4, 3).double()
        made.append(flat(model.parameters()).clone())
        return model

    with distributed() as world, noted_updates() as updates:
        torch.manual_seed(world.rank)  # so that ranks start with different weights unless somebody makes them equal
        model = answer(data, make_model, EPOCHS, BATCH)
        trained = flat(model.parameters()) if isinstance(model, torch.nn.Module) else None
        torch.distributed.barrier()  # nobody leaves while another may still wait for it
        return data.read, len(updates), made[0], trained


@contextmanager
def noted_updates():
    """A list that grows with each optimizer's step: (weights, gradients, momentum) just before it."""
    notes = []

    def note(optimizer, *_):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        momentum = [optimizer.state[p].get("momentum_buffer") for p in parameters]
        momentum = [torch.zeros_like(p) if m is None else m for m, p in zip(momentum, parameters, strict=True)]
        notes.append([flat(of).clone() for of in (parameters, [p.grad for p in parameters], momentum)])

    handle = hooks.register_optimizer_step_pre_hook(note)
    try:
        yield notes
    finally:
        handle.remove()


def _alone(read, start, steps, n):
    """The weights of one device that trains on the ranks' batches, put together."""
    data, part, net = _Noted(), BATCH // n, torch.nn.Linear(4, 3).double()
    torch.nn.utils.vector_to_parameters(start, net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for step in range(steps):
        rows = [index for seen in read for index in seen[step * part : (step + 1) * part]]
        optimizer.zero_grad()
        F.cross_entropy(net(data.inputs[rows]), data.labels[rows]).backward()
        optimizer.step()
    return flat(net.parameters())


# -- what messages cost -------------------------------------------------------------------


def _sending(parameters, ranks, megabits, rounds=None):
    """Seconds in which a rank sends its gradients `rounds` times; by default as in a ring."""
    return (2 * (ranks - 1) / ranks if rounds is None else rounds) * parameters * 32 / (megabits * 1e6)


def _share(factor, rounds=None):
    """The guess that so much of the sending is the share's."""

    def guess(parameters, ranks, megabits, computing):
        seconds = factor * _sending(parameters, ranks, megabits, rounds and rounds(ranks))
        return seconds / (seconds + computing)

    return guess


def _once(ranks):
    return 1


def _is_share(*guesses):
    return lambda value, *case: any(math.isclose(value, guess(*case), rel_tol=1e-3) for guess in guesses)


def _beside(value, parameters, ranks, megabits, computing):
    sent = [_sending(parameters, ranks, megabits, rounds) / computing for rounds in (None, 1)]
    return any(math.isclose(value, part * it, rel_tol=1e-3) for it in sent for part in (1, 1 / 8))


all_reduce_share = formula(
    "all_reduce_share",
    "`answer(parameters, ranks, megabits, computing)`: the all-reduce's share of a step in which nothing overlaps.",
    (  # parameters, ranks, megabits a second, seconds of computing in a step
        (1e6, 4, 1000, 0.1),
        (25_557_032, 8, 10_000, 0.12),
        (78_042, 2, 20, 0.1),
        (25_557_032, 64, 100_000, 0.05),
        (1e6, 1, 1000, 0.1),
    ),
    lambda parameters, ranks, megabits, computing: _share(1)(parameters, ranks, megabits, computing),
    number,
    alone=lambda value, parameters, ranks, megabits, computing: ranks == 1,
    seconds=lambda parameters, ranks, megabits, computing: _sending(parameters, ranks, megabits),
    beside=_beside,
    bits=_is_share(_share(1 / 8), _share(1 / 8, _once)),
    fp32=_is_share(_share(1 / 4), _share(1 / 32), _share(1 / 4, _once)),
    once=_is_share(_share(1, _once)),
    half=_is_share(_share(1 / 2)),
    pieces=_is_share(_share(1, lambda ranks: 2), _share(1, lambda ranks: ranks - 1)),
)

# Each: gradients as (bytes, seconds after the start of backward) in the order of sending; latency s; s a byte.
EVEN = tuple((100_000, 0.01 * k) for k in range(1, 13))
FRONT = ((2_000_000, 0.01), *((4_000, 0.01 + 0.004 * k) for k in range(1, 25)))
LINKS = ((EVEN, 1e-4, 8e-8), (EVEN, 0.02, 8e-8), (FRONT, 2e-3, 2e-8), (EVEN, 4e-3, 4e-8))


@exercise
def bucket_limit(answer, say):
    """`answer(gradients, latency, per_byte)`: the bucket size in bytes with which the last gradient arrives first."""
    for gradients, latency, per_byte in LINKS:
        case = say("case", n=len(gradients), ms=1e3 * latency, ns=1e9 * per_byte)
        got, problem = number(answer, list(gradients), latency, per_byte)
        yield case, problem
        yield case, not 0 < got < math.inf and say("size", value=got)
        limits = [1, *(sum(size for size, _ in gradients[: k + 1]) for k in range(len(gradients)))]
        goal = min(arrival(gradients, limit, latency, per_byte) for limit in limits)
        mine = arrival(gradients, got, latency, per_byte)
        if mine > 1.05 * goal:
            sent = len(costmodel.buckets(list(gradients), got, got))
            key = {1: "one", len(gradients): "alone"}.get(sent, "otherwise")
            places = {"value": got, "mine": 1e3 * mine, "goal": 1e3 * goal, "latency": 1e3 * sent * latency}
            yield case, say(key, sent=sent, **places)


def arrival(gradients, limit, latency, per_byte):
    """Seconds until the last bucket of `limit` bytes is there, with one message at a time on the link."""
    free = 0.0
    for size, ready in costmodel.buckets(list(gradients), limit, limit):
        free = max(free, ready) + latency + size * per_byte
    return free


# -- resuming -----------------------------------------------------------------------------


@exercise
def resumable(answer, say):
    """`answer(path, until, batches)` trains until `until` epochs are done, from the checkpoint at `path` if any."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name, until in (("whole", 3), ("parts", 1), ("parts", 3)):
            torch.manual_seed(len(runs))  # a new process knows nothing of the one before
            run, problem = _run(answer, Path(folder) / f"{name}.pt", until)
            yield problem
            runs.append(run)
            yield name == "parts" and not (Path(folder) / "parts.pt").exists() and say("no file")
    (whole, noted), (first, done), (resumed, went_on) = runs
    yield (whole, first) != ([0, 1, 2], [0]) and say("epochs", whole=whole, first=first)
    yield resumed != [1, 2] and say("again" if 0 in resumed else "next", resumed=resumed)
    for step, (one, other) in enumerate(zip(noted[len(done) :], went_on, strict=False), 1):
        weights, gradients, momentum = map(torch.equal, one, other)
        key = "weights" if not weights else "momentum" if not momentum else "gradients"
        yield not (weights and gradients and momentum) and say(key, step=step)


def _run(answer, path, until):
    """((epochs trained, notes of each update), problem)."""
    epochs, generator = [], torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(32, 8, generator=generator), torch.randint(0, 3, (32,), generator=generator)

    def batches(epoch):
        epochs.append(epoch)
        order = torch.randperm(32, generator=torch.Generator().manual_seed(epoch))
        return [(inputs[rows], labels[rows]) for rows in order.split(8)]

    with noted_updates() as updates:
        _, problem = attempt(answer, str(path), until, batches)
    return (epochs, updates), problem
