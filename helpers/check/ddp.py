"""Checks of 03_ddp: shards of a data set, and what ranks work out together.

The last two run the reader's function on real ranks, on the CPU and so on any machine: two of
them, and three, because a 2 in the answer may be the number of ranks or only look like it.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ..launcher.group import distributed
from .ranks import on_ranks
from .verdict import attempt, equal, exercise

SHARDS = ((12, 2), (10, 4), (7, 3), (3, 4), (1437, 4))  # (samples, ranks)
COUNTED = (((2, 4), (5, 5)), ((4, 1), (5, 4)), ((3, 0, 1), (3, 2, 2)))  # (correct, count) by rank


@exercise("Together the ranks see every sample exactly once, and none has more than one sample above another.")
def shard(answer):
    """`answer(indices, rank, world_size)`: the part of the list `indices` that belongs to `rank`."""
    for samples, world_size in SHARDS:
        indices = list(range(100, 100 + samples))[::-1]
        shards = []
        for rank in range(world_size):
            got, problem = attempt(lambda *given: list(map(int, answer(*given))), list(indices), rank, world_size)
            yield f"{samples} samples on rank {rank} of {world_size}", problem
            shards.append(got)
        yield f"{samples} samples on {world_size} ranks", _wrong_shards(shards, indices)


def _wrong_shards(shards, indices):
    sizes = [len(shard) for shard in shards]
    given = [index for shard in shards for index in shard]
    twice, missing = len(given) - len(set(given)), set(indices) - set(given)
    if set(given) - set(indices):
        return "some results are no elements of indices. Return the elements themselves, not their positions."
    if twice and not missing and len(set(sizes)) == 1:
        return f"equal shards of {sizes[0]}, but {twice} samples come twice. Do not pad: let the sizes differ by one."
    if twice:
        return f"{twice} of the samples are given out twice. Where does one rank's part end, and the next one's begin?"
    if missing:
        return f"{len(missing)} of the samples belong to no rank. What happens to the remainder of the division?"
    if max(sizes) - min(sizes) > 1:
        return f"the shards have {sizes} samples. All ranks wait for the longest: spread the remainder."
    return None


@exercise("On every rank the gradients are those of the whole batch, so all ranks make the same update.")
def average_gradients(answer):
    """`answer(parameters, world_size)`, called on every rank after backward, must average `.grad` in place."""
    for world_size in (2, 3):
        whole = _gradients_of(0, 1)[0]
        found, problem = on_ranks(_try_average, world_size, answer)
        yield f"on {world_size} ranks", problem or _wrong_average(found, whole, world_size)


def _try_average(answer):
    """On a rank: (gradients before, gradients after, whether the answer changed the weights)."""
    with distributed() as world:
        local, parameters = _gradients_of(world.rank, world.size)
        answer(parameters, world.size)
        after = [p.grad for p in parameters]
        # The weights of all ranks are equal, so that averaging them would change nothing; these are not.
        probe = torch.nn.Parameter(torch.full((2,), float(world.rank)))
        probe.grad = torch.ones(2)
        answer([probe], world.size)
        dist.barrier()  # nobody leaves while another may still wait for it
        return local, after, bool((probe != world.rank).any())


def _gradients_of(rank, world_size):
    """(copies of the gradients, parameters) of a small net for a rank's piece of a batch of 6, in float64."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64).chunk(world_size)[rank]
    labels = torch.tensor([0, 1, 2, 1, 0, 2]).chunk(world_size)[rank]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3).double()
    F.cross_entropy(net(inputs), labels).backward()
    parameters = list(net.parameters())
    return [p.grad.clone() for p in parameters], parameters


def _wrong_average(found, whole, world_size):
    if any(changed for _, _, changed in found):
        return "the weights themselves have changed. Average p.grad, not p: the update of the weights comes later."
    if any(g is None for _, after, _ in found for g in after):
        return "p.grad is None afterwards. Leave a tensor there: the optimizer reads it."

    def everywhere(factor):
        return all(equal(after, [factor * w for w in whole]) for _, after, _ in found)

    if everywhere(1):
        return None
    if all(equal(after, before) for before, after, _ in found):
        return "each rank still has its own gradients. Which call adds up a tensor over the ranks, in place?"
    if everywhere(world_size):
        return f"the gradients are {world_size} times too large. all_reduce adds up; what makes an average of a sum?"
    if everywhere(world_size / 2):
        return "right on 2 ranks, wrong here: you divide by 2, but 2 is not always the number of ranks."
    if any(equal(after, whole) for _, after, _ in found):
        return "some ranks have the average, others not. Every rank needs it: which collective gives the result to all?"
    return "these are not the gradients of the whole batch. Each must be the sum over ranks, divided by their number."


@exercise("Every sample counts once, every rank knows the result, and uneven shards do no harm.")
def global_accuracy(answer):
    """`answer(correct, count)`, called on every rank, must give the accuracy over all ranks' samples."""
    for correct, count in COUNTED:
        found, problem = on_ranks(_try_accuracy, len(count), answer, correct, count)
        hint = problem or wrong_accuracy(found, correct, count)
        tested = ", ".join(f"{c} of {n}" for c, n in zip(correct, count, strict=True))
        yield f"ranks with {tested} right", hint


def _try_accuracy(answer, correct, count):
    with distributed() as world:
        found = answer(correct[world.rank], count[world.rank])
        dist.barrier()
        return float(found)


def wrong_accuracy(found, correct, count):
    wanted, rates = sum(correct) / sum(count), [c / n for c, n in zip(correct, count, strict=True)]

    def are(values):
        return all(abs(f - v) < 1e-6 for f, v in zip(found, values, strict=True))

    if are([wanted] * len(found)):
        return None
    if are(rates):
        return "each rank reports its own shard. The others have tested samples too."
    if are([sum(rates) / len(rates)] * len(found)):
        return (
            f"this is the mean of the ranks' rates; {sum(correct)} of {sum(count)} is another number. "
            "Which two quantities can be added up over ranks?"
        )
    if abs(found[0] - wanted) < 1e-6:
        return "rank 0 knows it, the others do not. all_reduce gives the sum to every rank, reduce only to one."
    if are([sum(correct) / n for n in count]) or are([sum(correct)] * len(found)):
        return "correct is the sum over ranks now. By the number of samples of how many ranks must it be divided?"
    told = ", ".join(f"{value:.3f}" for value in found)
    return f"the ranks answer {told}. Add up two numbers over the ranks, and divide at the end."
