"""Checks of 08_horovod_api: a script in ten steps, tensors that meet by name, uneven data.

All run the answer on real ranks, on the CPU and so on any machine.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.utils._pytree import tree_map

from . import observed
from .ranks import on_ranks
from .verdict import exercise, flat

RATE = 0.02  # of notebooks/scripts/two_models.py


@contextlib.contextmanager
def _job():
    """On a rank: a Horovod job that ends soon, with an error, if the answer makes ranks wait for each other."""
    os.environ.update(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3")  # a busy machine may keep a rank away for a while
    from platforms.horovod import torch as hvd  # by the ranks only: what imports the checks need not load it

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


@exercise("Both ranks train one pair of models, each on its half of the data, and rank 0 alone writes files.")
def ten_steps(answer):
    """`answer`: the text of a training script, or the name of its file, with all ten steps made."""
    script, problem = _text(answer)
    if problem:
        yield problem
        return
    run = functools.partial(observed.observe, script)
    with tempfile.TemporaryDirectory() as folder:
        found, problem = _asked(_try_script, 2, run, os.path.join(folder, "fresh"))
        yield problem and _of_script(problem) or _wrong_start(found)
        _prepare(os.path.join(folder, "fresh"), os.path.join(folder, "resumed"))
        begun = found[0]["weights"][0]
        found, problem = _asked(_try_script, 2, run, os.path.join(folder, "resumed"))
        yield "going on from a checkpoint", problem and _of_script(problem) or _wrong_resume(found, begun)


def _text(answer):
    """(the script's text, None), or (None, a hint)."""
    if isinstance(answer, (str, os.PathLike)):
        if "\n" in str(answer):
            return str(answer), None
        with contextlib.suppress(OSError):
            return pathlib.Path(answer).read_text(encoding="utf-8"), None
    return None, f"give the check the text of a script or the name of its file; {str(answer)[:60]!r} is neither."


def _try_script(run, folder):
    """On a rank: what the script does, with an error where it makes ranks wait in vain."""
    os.environ.update(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3")
    return run(folder, updates=2)


def _of_script(problem):
    if "hvd.init()" in problem:
        return f"{problem} Step 2 comes before everything else of hvd."
    return problem


def _prepare(fresh, resumed):
    """Rank 0's checkpoint of the first run on host 0, and another, older one on host 1."""
    for host in ("host0", "host1"):
        shutil.copytree(os.path.join(fresh, "host0"), os.path.join(resumed, host))
    for name in os.listdir(os.path.join(resumed, "host1")):
        path = os.path.join(resumed, "host1", name)
        with contextlib.suppress(Exception):  # the log is no checkpoint
            kept = torch.load(path)
            torch.save(tree_map(lambda x: x + 1 if torch.is_tensor(x) else x, kept), path)


def _wrong_start(found):
    """What is wrong with a run without a checkpoint."""
    rank_0, rank_1 = found
    if rank_0["size"] is None:
        return "two processes have run, and neither knows of the other. Steps 1 and 2 are the import and hvd.init()."
    if set(rank_0["bound"]) & set(rank_1["bound"]):
        return f"both ranks ask for device {rank_1['bound'][0]}. Step 3: which number has a rank on its host?"
    if rank_1["lr"] != 2 * RATE:
        return f"the rate is {rank_1['lr']:g} on 2 ranks; it was {RATE} on one device. What does step 4 say?"
    both = set(rank_0["images"]) & set(rank_1["images"])
    if len(both) > 100:
        return f"both ranks train on {len(both)} of the same images. Step 7 gives each its own part."
    if rank_0["split"] or rank_1["split"]:
        return "nn.DataParallel still wants all devices of the host, in every process. See step 8, for both models."
    first, second = observed.weights_apart(found)[:2]
    if first:
        same = (rank_0["weights"][0] == rank_1["weights"][0]).float().mean().item()
        if same > 0.001:
            return (
                "a part of the weights is the same on both ranks before the first update, the others are not. Step 6 "
                "broadcasts one dict: do the state_dicts of the two models have keys in common?"
            )
        return "before the first update the ranks have other weights. Step 6 broadcasts rank 0's."
    if second:
        return "the ranks begin alike, and the first update parts them: nobody averages the gradients (step 5)."
    if not (rank_0["saved"] and rank_0["files"] and rank_0["said"]):
        return "rank 0 has to write the checkpoint and the log, and to print the loss. Step 9 silences the others only."
    if rank_1["saved"]:
        return "rank 1 writes a checkpoint, too. On one disk both would write the same file (step 9)."
    if rank_1["files"]:
        return f"rank 1 writes {rank_1['files'][0]}. Step 9 is about logs, too."
    if rank_1["said"]:
        return f"rank 1 prints, too: {rank_1['said'][0].split(' is ')[0]!r}. Step 9 is about messages, too."
    return None


def _wrong_resume(found, begun):
    """What is wrong with a run that finds checkpoints; rank 1's is another. `begun`: new weights of all ranks."""
    rank_0, rank_1 = found
    if not rank_0["loaded"]:
        return "rank 0 does not read it."
    if rank_1["loaded"]:
        return "rank 1 reads the file of its own host, which may be an older one. Step 10: who loads?"
    first, second = observed.weights_apart(found)[:2]
    if first:
        return "the weights differ before the first update. Does rank 0 load first and broadcast then?"
    if torch.equal(rank_0["weights"][0], begun):
        return "rank 0 reads the file, and begins with new weights all the same. Which rank is the root of step 6?"
    if second:
        return "the weights are equal until the first update parts them: the momentum is rank 0's only (step 6)."
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
