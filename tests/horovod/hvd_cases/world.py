"""Cases of what surrounds a collective: the world, names, handles, threads, memory."""

import gc
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

import platforms.horovod.core as core
import platforms.horovod.torch as hvd

from .lab import case, healthy, refused, same

UNINITIALISED = {
    "rank": (),
    "size": (),
    "local_rank": (),
    "local_size": (),
    "cross_rank": (),
    "cross_size": (),
    "is_homogeneous": (),
    "allreduce": (torch.ones(1),),
    "allgather": (torch.ones(1),),
    "barrier": (),
    "join": (),
    "broadcast": (torch.ones(1), 0),
    "alltoall": (torch.ones(4),),
    "reducescatter": (torch.ones(4),),
    "allreduce_async_": (torch.ones(1),),
    "grouped_allreduce": ([torch.ones(1)],),
    "add_process_set": ([0],),
    "broadcast_object": (1,),
    "broadcast_parameters": ({"x": torch.ones(1)}, 0),
}


@case("world")
def nothing_works_before_init_and_after_shutdown():
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for name, arguments in UNINITIALISED.items():
        try:
            with refused("hvd.init()", error=ValueError):
                getattr(hvd, name)(*arguments)
        except Exception as error:
            raise AssertionError(f"hvd.{name} before init: {error!r}") from error
    hvd.init()
    assert hvd.is_initialized()
    hvd.init()
    healthy()


@case("world")
def ranks_and_sizes():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert (core.rank(), core.size()) == (rank, size)
    for name in ("mpi_enabled", "nccl_built", "cuda_built", "rocm_built"):
        assert isinstance(getattr(hvd, name)(), bool | int), name
    assert hvd.gloo_built() and hvd.gloo_enabled()


@case("world")
def init_and_shutdown_in_turn_leave_nothing_behind():
    def held():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    hvd.shutdown()
    hvd.init()
    healthy()
    hvd.shutdown()
    before = held()
    for _ in range(3):
        hvd.init()
        healthy()
        hvd.shutdown()
    deadline = time.monotonic() + 300
    while any(now > then for now, then in zip(held(), before, strict=True)):
        assert time.monotonic() < deadline, f"{before} grew to {held()}"
        time.sleep(0.02)
    hvd.init()
    healthy()


@case("world")
def barrier_waits_for_the_last():
    time.sleep(0.15 * (hvd.rank() == hvd.size() - 1))
    came = time.monotonic()
    assert hvd.barrier() is None
    left = torch.tensor([time.monotonic()], dtype=torch.float64)
    last = hvd.allreduce(torch.tensor([came], dtype=torch.float64), op=hvd.Max)
    assert (hvd.allgather(left) >= last).all(), "a rank passed the barrier before the last one came"


@case("world")
def names_of_every_kind():
    odd = ["", " ", "layer.0/weight:0", "gewicht_ä_重み_🙂", "two\nlines\r\n", "x" * 5000, '%s {0} \\ "', "\0", "1"]
    handles = [hvd.allreduce_async(torch.full((2,), float(n)), name=name) for n, name in enumerate(odd)]
    for n, handle in enumerate(handles):
        same(hvd.synchronize(handle), [float(n)] * 2, torch.float32, what=repr(odd[n])[:40])
    for n in range(20):  # a name is free again when its collective is done, for a tensor of any kind
        dtype = (torch.float32, torch.int64, torch.float64)[n % 3]
        same(hvd.allreduce(torch.ones(n, dtype=dtype), name="again", op=hvd.Max), np.ones(n), dtype)
        same(hvd.broadcast(torch.ones(n + 1), 0, name="again"), np.ones(n + 1))
        same(hvd.allgather(torch.ones(1, n), name="again"), np.ones((hvd.size(), n)))


@case("world", least=2)
def a_name_in_use_is_refused_and_the_first_use_goes_on():
    calls = (
        lambda: hvd.allreduce_async(torch.ones(3), name="twice"),
        lambda: hvd.allgather_async(torch.ones(3), "twice"),
    )
    if hvd.rank() == 0:
        first = calls[0]()
        for call in calls:
            with refused("twice", error=ValueError):
                call()
        hvd.barrier()
    else:
        hvd.barrier()
        first = calls[0]()
    hvd.synchronize(first)
    hvd.synchronize(calls[1]())


@case("world", least=2)
def poll_is_false_until_all_came_and_then_true():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="polled")
        assert hvd.poll(handle) is False
        time.sleep(0.02)
        assert hvd.poll(handle) is False
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(torch.ones(3), name="polled")
    while not hvd.poll(handle):
        time.sleep(0.001)
    same(hvd.synchronize(handle), [1.0] * 3)


@case("world")
def handles_synchronized_twice_late_or_never():
    one = hvd.allreduce_async(torch.ones(2), name="one")
    two = hvd.allreduce_async(torch.ones(3), name="two")
    group = hvd.grouped_allreduce_async([torch.ones(2), torch.ones(3)], name="group")
    assert len({one, two, group}) == 3, "handles can be told apart and kept in sets"
    for handle, want in ((two, np.ones(3)), (one, np.ones(2))):
        same(hvd.synchronize(handle), want)
        assert hvd.synchronize(handle) is None and hvd.poll(handle) is True
    same(hvd.synchronize(group)[1], np.ones(3))
    for n in range(20):
        hvd.allreduce_async(torch.ones(1000), name=f"forgotten {n}")  # input, output and handle are let go
        hvd.allreduce_async_(torch.ones(1000), name=f"forgotten there {n}")
    gc.collect()
    trash = [torch.full((1000,), 5.0) for _ in range(50)]
    hvd.barrier()
    assert all(bool((t == 5).all()) for t in trash)


@case("world")
def memory_is_given_back():
    import resource

    for _ in range(3):
        hvd.allreduce(torch.ones(250_000), name="big")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(40):
        hvd.allreduce(torch.ones(250_000), name=f"big {n}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 25_000, "40 MB were kept"


@case("world")
def a_tensor_larger_than_the_fusion_buffer():
    count = 6_000_000
    mine = torch.full((count,), hvd.rank() + 1.0)
    small = hvd.allreduce_async(torch.ones(1), name="beside it")
    hvd.allreduce_(mine, op=hvd.Sum)
    assert mine[0] == mine[-1] == sum(range(1, hvd.size() + 1)) and mine.min() == mine.max()
    same(hvd.synchronize(small), [1.0])


@case("world")
def a_timeline_that_rank_0_alone_writes():
    """All ranks give the same file, as scripts do."""
    path = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None), "timeline.json")
    hvd.start_timeline(str(path), mark_cycles=True)
    assert core.job.current().timeline.writes() == (hvd.rank() == 0)
    for n in range(5):
        hvd.allreduce(torch.ones(10), name=f"drawn{n}")
    hvd.stop_timeline()
    hvd.barrier()
    *events, end = json.loads(path.read_text())
    drawn = [event for event in events if event["name"] == "ALLREDUCE"]
    assert "drawn3" in json.dumps(events) and len(drawn) == 5 and end == {}, events
    assert len([event for event in events if event["name"] == "CYCLE_START"]) >= 5, events
    hvd.barrier()
    shutil.rmtree(path.parent, ignore_errors=True)
