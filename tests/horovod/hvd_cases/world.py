"""Cases of what surrounds a collective: the world, names, handles, threads, timelines."""

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

BEFORE_INIT = "rank size local_rank cross_size is_homogeneous barrier join".split()


@case("world")
def nothing_works_before_init_and_after_shutdown():
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    one = torch.ones(1)
    calls = {name: () for name in BEFORE_INIT}
    calls.update(allreduce=(one,), alltoall=(one,), grouped_allreduce=([one],), broadcast=(one, 0))
    calls.update(add_process_set=([0],), broadcast_object=(1,), broadcast_parameters=({"x": one}, 0))
    for name, arguments in calls.items():
        with refused("hvd.init()", error=ValueError):
            getattr(hvd, name)(*arguments)
    hvd.init()
    hvd.init()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    healthy()


@case("world")
def init_and_shutdown_in_turn_leave_nothing_behind():
    rank = hvd.rank()

    def held():
        gc.collect()
        # Rank 0 serves the store, and so has the connections of others, who may have begun anew by now.
        return len(os.listdir("/proc/self/fd")) if rank else 0, threading.active_count()

    before = None
    for _ in range(4):
        hvd.shutdown()
        before = before or held()
        hvd.init()
        healthy()
    hvd.shutdown()
    deadline = time.monotonic() + 300
    while any(now > then for now, then in zip(held(), before, strict=True)):
        assert time.monotonic() < deadline, f"{before} grew to {held()}"
        time.sleep(0.02)
    hvd.init()


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
def a_name_in_use_is_refused_and_poll_is_false_until_all_came():
    def call():
        return hvd.allreduce_async(torch.ones(3), name="twice")

    if hvd.rank() == 0:
        first = call()
        with refused("twice", error=ValueError):
            call()
        assert hvd.poll(first) is False
        hvd.barrier()
    else:
        hvd.barrier()
        first = call()
    while not hvd.poll(first):
        time.sleep(0.001)
    same(hvd.synchronize(first), [1.0] * 3)
    hvd.synchronize(call())


@case("world")
def handles_synchronized_twice_late_or_never():
    one = hvd.allreduce_async(torch.ones(2), name="one")
    two = hvd.allreduce_async(torch.ones(3), name="two")
    for handle, want in ((two, np.ones(3)), (one, np.ones(2))):
        same(hvd.synchronize(handle), want)
        assert hvd.synchronize(handle) is None and hvd.poll(handle) is True
    for n in range(20):
        hvd.allreduce_async(torch.ones(1000), name=f"forgotten {n}")  # input, output and handle are let go
        hvd.allreduce_async_(torch.ones(1000), name=f"forgotten there {n}")
    gc.collect()
    trash = [torch.full((1000,), 5.0) for _ in range(50)]
    hvd.barrier()
    assert all(bool((t == 5).all()) for t in trash)


@case("world")
def a_timeline_that_rank_0_alone_writes():
    """All ranks give the same file, as scripts do."""
    path = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None), "timeline.json")
    hvd.start_timeline(str(path), mark_cycles=True)
    assert core.job.current().timeline.writes() == (hvd.rank() == 0)
    for n in range(10):
        hvd.allreduce(torch.ones(10), name=f"drawn{n % 5}")
    hvd.stop_timeline()
    hvd.barrier()
    *events, end = json.loads(path.read_text())
    count = {name: sum(event["name"] == name for event in events) for name in ("ALLREDUCE", "process_name")}
    assert "drawn3" in json.dumps(events) and count == {"ALLREDUCE": 10, "process_name": 5} and end == {}, events
    assert len([event for event in events if event["name"] == "CYCLE_START"]) >= 5, events
    hvd.barrier()
    shutil.rmtree(path.parent, ignore_errors=True)
