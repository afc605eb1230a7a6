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
from .verdict import attempt, exercise, flat, number

# -- the sampler --------------------------------------------------------------------------


@exercise("Every epoch has an order of its own, on all ranks together, and a resumed run goes on with the next one.")
def visits(answer):
    """`answer(data, rank, world_size, epochs)`: what a rank trains on, a list of samples for each of `epochs`."""
    data, found = list(range(100, 124)), {}
    for epochs in (range(4), range(2, 4)):
        for rank in (0, 1):
            got, problem = attempt(_lists, answer, data, rank, 2, epochs)
            yield problem
            if len(got) != len(epochs):
                yield f"{len(epochs)} epochs, but {len(got)} lists. Give one for each epoch."
            found[rank, epochs.start] = got
    yield _wrong_visits(found, data)


def _lists(answer, *given):
    return [list(map(int, seen)) for seen in answer(*given)]


def _wrong_visits(found, data):
    for epoch, (some, others) in enumerate(zip(found[0, 0], found[1, 0], strict=True)):
        if sorted(some + others) == data:
            continue
        if set(some + others) - set(data):
            return "some results are no elements of data. Return the elements, not their positions."
        if some == others:
            return f"in epoch {epoch} both ranks train on the same samples. Which arguments give a rank its own share?"
        if set(some) & set(others):
            return (
                f"in epoch {epoch} {len(set(some) & set(others))} samples are on both ranks, and as many on none. "
                "The shares fit together only if all ranks shuffle alike: same seed, same epoch."
            )
        return f"in epoch {epoch} {len(data) - len(some + others)} of {len(data)} samples are on no rank."
    if found[0, 0][0] == data[0::2] or found[0, 0][0] == sorted(found[0, 0][0]):
        return "the samples come in the order of the file. Training needs a shuffled order."
    for late, seen in enumerate(found[0, 0]):
        if seen in found[0, 0][:late]:
            early = found[0, 0].index(seen)
            if late == early + 1 and late == 1 and len({tuple(seen) for seen in found[0, 0]}) > 1:
                return (
                    "epochs 0 and 1 have the same order, the later ones are each one behind. At which moment does the "
                    "sampler draw its order, and which epoch did it know then?"
                )
            return f"epochs {early} and {late} have the same order. Which call gives the sampler the epoch's number?"
    if found[0, 2] != found[0, 0][2:]:
        return (
            "a run that goes on with epoch 2 gets another order than epoch 2 of a run from the start. "
            "The sampler must get the epoch's own number, not a count from 0."
        )
    return None


# -- one device's loop on ranks -----------------------------------------------------------

SAMPLES, BATCH, EPOCHS, RATE = 48, 12, 2, 0.1


@exercise("The ranks make the updates that one device makes with the global batch, so nothing but the time differs.")
def train_on_ranks(answer):
    """`answer(data, make_model, epochs, batch)`, called on every rank, returns the model trained with DDP."""
    for world_size in (2, 3):
        found, problem = on_ranks(_try_train, world_size, answer)
        yield f"on {world_size} ranks", problem or _wrong_training(found, world_size)


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
        buffers = [optimizer.state[p].get("momentum_buffer") for p in parameters]
        momentum = torch.cat(
            [torch.zeros(p.numel()) if b is None else b.flatten() for p, b in zip(parameters, buffers, strict=True)]
        )
        notes.append((flat(parameters).clone(), flat([p.grad for p in parameters]).clone(), momentum.clone()))

    handle = hooks.register_optimizer_step_pre_hook(note)
    try:
        yield notes
    finally:
        handle.remove()


def _wrong_training(found, world_size):
    read, updates, starts, trained = zip(*found, strict=True)
    if any(weights is None for weights in trained):
        return "train does not return a model on every rank. Is there a `return`?"
    mine = SAMPLES * EPOCHS // world_size
    if all(len(seen) == SAMPLES * EPOCHS for seen in read):
        return f"each rank reads all {SAMPLES} samples in an epoch. Which sampler gives it a share of its own?"
    halves = [[seen[: mine // EPOCHS] for seen in read], [seen[mine // EPOCHS :] for seen in read]]
    for epoch, shares in enumerate(halves):
        if sorted(sum(shares, [])) != list(range(SAMPLES)):
            return f"in epoch {epoch} the shares of the ranks together are not the {SAMPLES} samples, each once."
    apart = [(weights - trained[0]).abs().max().item() for weights in trained]
    if max(apart) > 1e-9:
        moved = [end - start for start, end in zip(starts, trained, strict=True)]
        if max((way - moved[0]).abs().max().item() for way in moved) < 1e-9:
            return "all ranks add the same updates, but they started with different weights. What makes these equal?"
        return f"the ranks end with different weights, up to {max(apart):.1g} apart. What averages their gradients?"
    steps = SAMPLES // BATCH * EPOCHS
    if set(updates) != {steps}:
        return (
            f"{updates[0]} updates, one device makes {steps}. `batch` is the global batch: which part of it belongs "
            "to a rank?"
        )
    if halves[0] == halves[1]:
        return "both epochs have the same order. The sampler has to know the epoch before the loader starts."
    if not torch.allclose(trained[0], _alone(read, starts[0], steps, world_size), rtol=0, atol=1e-9):
        return (
            "the ranks agree, but one device with the same batches ends with other weights. DDP has averaged the "
            "gradients already: does anything else scale the loss, the gradients or the learning rate?"
        )
    return None


def _alone(read, start, steps, world_size):
    """The weights of one device that trains on the ranks' batches, put together."""
    data, part, net = _Noted(), BATCH // world_size, torch.nn.Linear(4, 3).double()
    torch.nn.utils.vector_to_parameters(start, net.parameters())
    for step in range(steps):
        rows = [index for seen in read for index in seen[step * part : (step + 1) * part]]
        net.zero_grad()
        F.cross_entropy(net(data.inputs[rows]), data.labels[rows]).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= RATE * p.grad
    return flat(net.parameters())


# -- what messages cost -------------------------------------------------------------------

# (parameters, ranks, megabits a second, seconds of computing in a step)
STEPS = (
    (1e6, 4, 1000, 0.1),
    (25_557_032, 8, 10_000, 0.12),
    (78_042, 2, 20, 0.1),
    (25_557_032, 64, 100_000, 0.05),
    (1e6, 1, 1000, 0.1),
)


@exercise("The share hardly grows from 8 ranks to 64, and it falls when each rank has more to compute.")
def all_reduce_share(answer):
    """`answer(parameters, ranks, megabits, computing)`: the all-reduce's share of a step in which nothing overlaps."""
    for parameters, ranks, megabits, computing in STEPS:
        sending = 2 * (ranks - 1) / ranks * parameters * 4 * 8 / (megabits * 1e6)
        wanted = sending / (sending + computing)
        asked = f"{parameters:,.0f} parameters, {ranks} ranks, {megabits:,} Mbit/s, {computing:g} s of computing"
        got, problem = number(answer, parameters, ranks, megabits, computing)
        yield asked, problem
        if not math.isclose(got, wanted, rel_tol=1e-3, abs_tol=1e-9):
            yield f"{asked}: {got:.3g}. {_hint_share(got, sending, computing, ranks)}"


def _hint_share(got, sending, computing, ranks):
    def is_share_of(seconds):
        return math.isclose(got, seconds / (seconds + computing), rel_tol=1e-3)

    ring = 2 * (ranks - 1) / ranks
    if ranks == 1:
        return "One rank alone sends nothing."
    if math.isclose(got, sending, rel_tol=1e-3):
        return "These are the seconds of the all-reduce. Which share of the whole step are they?"
    if any(math.isclose(got, part * sending / computing, rel_tol=1e-3) for part in (1, 1 / 8, 1 / ring, 1 / ring / 8)):
        return "This divides by the computing alone. The step holds both, so a share is never above 1."
    if is_share_of(sending / 8) or is_share_of(sending / ring / 8):
        return "A link of so many megabits a second: how many bits has a byte?"
    if is_share_of(sending / 4) or is_share_of(sending / 32) or is_share_of(sending / ring / 4):
        return "How many bytes has a gradient in fp32?"
    if is_share_of(sending / ring):
        return "That is the gradients once. How much of them does each rank of a ring send, in the two rounds together?"
    if is_share_of(sending / 2):
        return "That is one round of the ring: each rank then has the sum of one piece. All ranks need all pieces."
    if is_share_of(sending * ranks / (ranks - 1)) or is_share_of(sending / ring * (ranks - 1)):
        return "A rank sends a piece of 1/n of the gradients at a time. How many pieces does it send in the two rounds?"
    return "First the bytes that a rank sends, then the seconds, then their share of computing plus sending."


# Each: gradients as (bytes, seconds after the start of backward) in the order of sending; latency s; s a byte.
EVEN = tuple((100_000, 0.01 * k) for k in range(1, 13))
FRONT = ((2_000_000, 0.01), *((4_000, 0.01 + 0.004 * k) for k in range(1, 25)))
LINKS = ((EVEN, 1e-4, 8e-8), (EVEN, 0.02, 8e-8), (FRONT, 2e-3, 2e-8), (EVEN, 4e-3, 4e-8))


@exercise("Small buckets start early, large ones pay the latency less often; which counts depends on the link.")
def bucket_limit(answer):
    """`answer(gradients, latency, per_byte)`: the bucket size in bytes with which the last gradient arrives first."""
    for gradients, latency, per_byte in LINKS:
        asked = f"{len(gradients)} gradients, {1e3 * latency:g} ms a message, {1e9 * per_byte:g} ns a byte"
        got, problem = number(answer, list(gradients), latency, per_byte)
        yield asked, problem
        if not 0 < got < math.inf:
            yield asked, f"{got:g} is no size of a bucket. Give a number of bytes above 0."
        limits = [sum(size for size, _ in gradients[: k + 1]) for k in range(len(gradients))]
        goal = min(arrival(gradients, limit, latency, per_byte) for limit in (1, *limits))
        mine = arrival(gradients, got, latency, per_byte)
        if mine > 1.05 * goal:
            sent = len(costmodel.buckets(list(gradients), got, got))
            yield f"{asked}: with buckets of {got:,.0f} bytes {_hint_bucket(sent, len(gradients), mine, goal, latency)}"


def arrival(gradients, limit, latency, per_byte):
    """Seconds until the last bucket of `limit` bytes is there, with one message at a time on the link."""
    free = 0.0
    for size, ready in costmodel.buckets(list(gradients), limit, limit):
        free = max(free, ready) + latency + size * per_byte
    return free


def _hint_bucket(sent, gradients, mine, goal, latency):
    late = f"the last one arrives after {1e3 * mine:.0f} ms; {1e3 * goal:.0f} ms are possible."
    if sent == 1:
        return f"there is a single bucket, and {late} It leaves when backward is over: what could have left before?"
    if sent == gradients:
        return f"each gradient travels alone, and {late} {sent} messages pay {1e3 * sent * latency:.0f} ms of latency."
    return f"there are {sent} messages, and {late} Try other sizes for this very link, and take the best."


# -- resuming -----------------------------------------------------------------------------


@exercise("A killed run and one that was never killed end with the same weights, bit by bit.")
def resumable(answer):
    """`answer(path, until, batches)` trains until `until` epochs are done, from the checkpoint at `path` if any."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for name, until in (("whole", 3), ("parts", 1), ("parts", 3)):
            torch.manual_seed(len(runs))  # a new process knows nothing of the one before
            run, problem = _run(answer, Path(folder) / f"{name}.pt", until)
            yield problem
            runs.append(run)
            if name == "parts" and not (Path(folder) / "parts.pt").exists():
                yield "after an epoch there is no checkpoint at `path`. What would a new process resume from?"
    yield _wrong_resume(*runs)


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


def _wrong_resume(whole, first, resumed):
    if whole[0] != [0, 1, 2] or first[0] != [0]:
        return f"without a checkpoint epochs {whole[0]} are trained for until=3, and {first[0]} for until=1."
    if resumed[0] != [1, 2]:
        again = [epoch for epoch in resumed[0] if epoch == 0]
        if again:
            return "the resumed run trains epoch 0 a second time. Which epoch should the checkpoint name?"
        return f"epoch 0 was done, and the resumed run trains {resumed[0]}. Which one is the first that is missing?"
    steps = len(first[1])
    for step, (one, other) in enumerate(zip(whole[1][steps:], resumed[1], strict=False)):
        where = f"step {step + 1} after resuming"
        weights, gradients, momentum = (torch.equal(a, b) for a, b in zip(one, other, strict=True))
        if not weights:
            return f"{where}: other weights than in the run that was not killed. Is the model in the checkpoint?"
        if not momentum:
            return f"{where}: the same weights, but another momentum. Who keeps it, and is it in the checkpoint?"
        if not gradients:
            return (
                f"{where}: the same weights and the same batch, but other gradients. Which layer draws random "
                "numbers, and where would an unbroken run be in their sequence?"
            )
    return None
