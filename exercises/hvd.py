"""Checks of 08_horovod_api: a script in ten steps, one order on all ranks, uneven data.

All run the answer on real ranks, on the CPU and so on any machine.
"""

import contextlib
import functools
import os
import shutil
import tempfile

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .ranks import call, on_ranks
from .verdict import NotYet, Say, exercise, flat, formula, script_of

RATE = 0.02  # of notebooks/scripts/two_models.py
SAY = Say("horovod")


@contextlib.contextmanager
def _job():
    """On a rank: a Horovod job."""
    from platforms.horovod import torch as hvd  # by the ranks only: what imports the checks need not load it

    hvd.init()
    yield hvd
    hvd.barrier()  # nobody leaves while another may still wait for it
    hvd.shutdown()


def _asked(work, world_size, *given):
    """As `on_ranks`, with an error, and a hint, soon after ranks have begun to wait for each other."""
    stall = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}  # a busy machine may keep a rank away for a while
    try:
        return on_ranks(work, world_size, *given, named=False, env=stall)
    except NotYet as problem:
        if "stall" in str(problem).lower() or "Lost" in str(problem):
            raise NotYet(SAY("waits")) from problem
        raise


@exercise
def ten_steps(answer, say):
    """`answer`: the text of a training script, or the name of its file, with all ten steps made."""
    script = script_of(answer)
    from platforms.horovod.observed import observe, weights_apart

    with tempfile.TemporaryDirectory() as folder:
        fresh, resumed = (os.path.join(folder, name) for name in ("fresh", "resumed"))
        try:
            one, two = found = _asked(call, 2, functools.partial(observe, script, fresh, updates=2))
        except NotYet as problem:
            yield say("init", problem=problem) if "hvd.init()" in str(problem) else str(problem)
        yield one["size"] is None and say("alone")
        yield set(one["bound"]) & set(two["bound"]) and say("device", device=two["bound"][0])
        yield two["lr"] != 2 * RATE and say("rate", rate=two["lr"], alone=RATE)
        both = len(set(one["images"]) & set(two["images"]))
        yield both > 100 and say("images", n=both)
        yield (one["split"] or two["split"]) and say("split")
        first, second, *_ = weights_apart(found)
        begun = one["weights"][0]
        yield first and say("part" if (begun == two["weights"][0]).float().mean() > 0.001 else "start")
        yield second and say("averages")
        yield not (one["saved"] and one["files"] and one["said"]) and say("silent")
        yield two["saved"] and say("saves")
        yield two["files"] and say("logs", file=two["files"][0])
        yield two["said"] and say("prints", said=two["said"][0].split(" is ")[0])
        _prepare(fresh, resumed)
        say.case("resumed")
        one, two = found = _asked(call, 2, functools.partial(observe, script, resumed, updates=2))
        yield not one["loaded"] and say("unread")
        yield two["loaded"] and say("own file")
        first, second, *_ = weights_apart(found)
        yield first and say("then")
        yield torch.equal(one["weights"][0], begun) and say("root")
        yield second and say("momentum")


def _prepare(fresh, resumed):
    """Rank 0's checkpoint of the first run on host 0, and another, older one on host 1."""
    for host in ("host0", "host1"):
        shutil.copytree(os.path.join(fresh, "host0"), os.path.join(resumed, host))
    for name in os.listdir(os.path.join(resumed, "host1")):
        path = os.path.join(resumed, "host1", name)
        with contextlib.suppress(Exception):  # the log is no checkpoint
            kept = torch.load(path)
            torch.save(tree_map(lambda x: x + 1 if torch.is_tensor(x) else x, kept), path)


def _gradients(n, part=None):
    """Four gradients a rank: its own, or this part of the ranks' sum."""
    own = [7.0**rank for rank in range(n)]
    factors = own if part is None else [part * sum(own)] * n
    return [torch.tensor([1.0, 10, 100]) * (k + 1) * factor for factor in factors for k in range(4)]


@formula(
    ((2,), (3,)),
    lambda answer, n: sum(_asked(_try_average, n, answer), []),
    missing=lambda value, n: not all(map(torch.is_tensor, value)),
    own=_gradients,
    sum=lambda n: _gradients(n, 1),
    half=lambda n: _gradients(n, 1 / 2),
    twice=lambda n: _gradients(n, 1 / n**2),
)
def averaged_by_name(n):
    """`answer(parameters)`: pairs (name, p), in an order of each rank's own; `.grad` becomes the average."""
    return _gradients(n, 1 / n)


def _try_average(answer):
    """On a rank: the gradients afterwards."""
    with _job() as hvd:
        parameters = [(name, nn.Parameter(torch.zeros(3))) for name in "abcd"]
        for (_, p), gradient in zip(parameters, _gradients(hvd.size())[4 * hvd.rank() :], strict=False):
            p.grad = gradient
        answer(parameters if hvd.rank() % 2 == 0 else parameters[::-1])
        return [p.grad for _, p in parameters]


@exercise
def everybody_finishes(answer, say):
    """`answer(model, optimizer, batches)` trains on all of its batches, of which ranks have unlike many."""
    for counts in ([3, 2], [1, 4, 0]):  # batches of each rank
        say.case(counts=", ".join(map(str, counts)))
        every, before, after = zip(*_asked(_try_uneven, len(counts), answer, counts), strict=True)
        yield not all(every) and say("dropped")
        yield torch.equal(before[0], after[0]) and say("unchanged", n=counts[0])
        yield not all(torch.equal(after[0], other) for other in after) and say("different")


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
