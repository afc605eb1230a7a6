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

from .ranks import on_ranks
from .verdict import Say, exercise, flat

RATE = 0.02  # of notebooks/scripts/two_models.py
SAY = Say("horovod")


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
        problem = SAY("waits")
    if problem and problem.startswith("rank ") and " raised " in problem:
        problem = SAY("raised", error=problem.split(" raised ", 1)[1])
    return found, problem


@exercise
def ten_steps(answer, say):
    """`answer`: the text of a training script, or the name of its file, with all ten steps made."""
    script = str(answer)
    if "\n" not in script:
        with contextlib.suppress(OSError):
            script = pathlib.Path(script).read_text(encoding="utf-8")
    yield "\n" not in script and say("text", answer=script[:60])
    from platforms.horovod.observed import observe

    run = functools.partial(observe, script)
    with tempfile.TemporaryDirectory() as folder:
        fresh, resumed = (os.path.join(folder, name) for name in ("fresh", "resumed"))
        found, problem = _asked(_try_script, 2, run, fresh)
        yield problem and (say("init", problem=problem) if "hvd.init()" in problem else problem)
        yield from _wrong_start(*found, say)
        _prepare(fresh, resumed)
        begun = found[0]["weights"][0]
        found, problem = _asked(_try_script, 2, run, resumed)
        yield say("resumed"), problem
        for hint in _wrong_resume(*found, begun, say):
            yield say("resumed"), hint


def _try_script(run, folder):
    """On a rank: what the script does, with an error where it makes ranks wait in vain."""
    os.environ.update(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3")
    return run(folder, updates=2)


def _prepare(fresh, resumed):
    """Rank 0's checkpoint of the first run on host 0, and another, older one on host 1."""
    for host in ("host0", "host1"):
        shutil.copytree(os.path.join(fresh, "host0"), os.path.join(resumed, host))
    for name in os.listdir(os.path.join(resumed, "host1")):
        path = os.path.join(resumed, "host1", name)
        with contextlib.suppress(Exception):  # the log is no checkpoint
            kept = torch.load(path)
            torch.save(tree_map(lambda x: x + 1 if torch.is_tensor(x) else x, kept), path)


def _wrong_start(rank_0, rank_1, say):
    """What is wrong with a run without a checkpoint."""
    yield rank_0["size"] is None and say("alone")
    yield set(rank_0["bound"]) & set(rank_1["bound"]) and say("device", device=rank_1["bound"][0])
    yield rank_1["lr"] != 2 * RATE and say("rate", rate=rank_1["lr"], alone=RATE)
    both = len(set(rank_0["images"]) & set(rank_1["images"]))
    yield both > 100 and say("images", n=both)
    yield (rank_0["split"] or rank_1["split"]) and say("split")
    first, second = (_apart(rank_0["weights"][k], rank_1["weights"][k]) for k in range(2))
    same = (rank_0["weights"][0] == rank_1["weights"][0]).float().mean().item()
    yield first and say("part" if same > 0.001 else "start")
    yield second and say("averages")
    yield not (rank_0["saved"] and rank_0["files"] and rank_0["said"]) and say("silent")
    yield rank_1["saved"] and say("saves")
    yield rank_1["files"] and say("logs", file=rank_1["files"][0])
    yield rank_1["said"] and say("prints", said=rank_1["said"][0].split(" is ")[0])


def _wrong_resume(rank_0, rank_1, begun, say):
    """What is wrong with a run that finds checkpoints; rank 1's is another. `begun`: new weights of all ranks."""
    yield not rank_0["loaded"] and say("unread")
    yield rank_1["loaded"] and say("own file")
    first, second = (_apart(rank_0["weights"][k], rank_1["weights"][k]) for k in range(2))
    yield first and say("then")
    yield torch.equal(rank_0["weights"][0], begun) and say("root")
    yield second and say("momentum")


def _apart(some, others):
    return (some - others).abs().max().item()


NAMES = ("a", "b", "c", "d")


@exercise
def averaged_by_name(answer, say):
    """`answer(parameters)`: pairs (name, p), in an order of each rank's own; `.grad` becomes the average."""
    for n in (2, 3):
        found, problem = _asked(_try_average, n, answer)
        case = say("case", n=n)
        yield case, problem
        before, after = zip(*found, strict=True)
        yield case, any(not torch.is_tensor(grad) for of in after for grad in of.values()) and say("no grad")
        total = {name: sum(of[name] for of in before) for name in NAMES}

        def are(factor, of_rank=None, after=after, before=before, total=total):
            """Whether all gradients are this times the sum, or the rank's own."""
            wanted = [total if of_rank is None else own for own in before]
            pairs = zip(after, wanted, strict=True)
            return all(torch.allclose(of[name], factor * want[name]) for of, want in pairs for name in NAMES)

        if not are(1 / n):
            yield case, are(1, of_rank=True) and say("own")
            yield case, are(1) and say("sum", n=n)
            yield case, are(1 / 2) and say("half")
            yield case, say("twice" if are(1 / n**2) else "otherwise")


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


@exercise
def everybody_finishes(answer, say):
    """`answer(model, optimizer, batches)` trains on all of its batches, of which ranks have unlike many."""
    for counts in ([3, 2], [1, 4, 0]):  # batches of each rank
        found, problem = _asked(_try_uneven, len(counts), answer, counts)
        case = say("case", counts=", ".join(map(str, counts)))
        yield case, problem
        yield case, not all(every for every, *_ in found) and say("dropped")
        yield case, torch.equal(found[0][1], found[0][2]) and say("unchanged", n=counts[0])
        yield case, not all(torch.equal(found[0][2], after) for *_, after in found) and say("different")


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
