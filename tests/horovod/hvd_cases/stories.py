"""Stories of ranks that come late, stall, fork, stop or end in other ways than by dying; see `lost`."""

import atexit
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from places import calls

import platforms.horovod.torch as hvd
from platforms.horovod import collectives

from .lost import caught


def until(condition, seconds=100):
    """Wait until `condition()` holds; where it never does, the answers will show it."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def said():
    """All that the ranks of the story have printed so far."""
    return os.pread(1, 1 << 20, 0)


def late(story, rank, tell):
    """The victim comes 1.7 s late, and not before it was missed; everything ends well."""
    hvd.init()
    if rank == story["victim"]:
        time.sleep(1.7)
        if "HOROVOD_STALL_CHECK_DISABLE" not in story["env"]:
            until(lambda: b"lonely tensor" in said())
    one = hvd.allreduce(torch.ones(2), name="lonely tensor", op=hvd.Sum)
    hvd.shutdown()
    return {"sum": one.tolist()}


def too_late(story, rank, tell):
    """The victim comes later than a shutdown by stall allows; all begin again afterwards."""
    hvd.init()
    if rank == story["victim"]:
        until(lambda: said().count(b"gave up") == story["size"] - 1)
    seen = caught(lambda: hvd.allreduce(torch.ones(2), name="lonely tensor"))
    print("gave up")
    hvd.shutdown()
    del os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]  # on a busy machine any rank is as late as that
    hvd.init()
    seen["after"] = hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist()
    hvd.shutdown()
    return seen


def never_comes(story, rank, tell):
    return caught(hvd.init)


def ends_at_its_own_time(story, rank, tell):
    """All work is done; the ranks leave one after the other, with or without shutdown."""
    hvd.init()
    hvd.allreduce(torch.ones(1))
    time.sleep(0.3 * ((rank - story["victim"]) % story["size"]))
    if story["how"] == "shutdown":
        hvd.shutdown()
    return {"size": os.environ.get("WORLD_SIZE")}


def forks(story, rank, tell):
    """Children of a rank come and go, as data loader workers do; the job does not mind."""
    import multiprocessing

    hvd.init()
    total = []
    for _ in range(2):
        for leave in (os._exit, lambda code: [atexit._run_exitfuncs(), os._exit(code)]):
            child = os.fork()
            if child == 0:
                leave(0)
            os.waitpid(child, 0)
            total += hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()
        worker = multiprocessing.get_context("fork").Process(target=int)
        worker.start()
        worker.join()
        total += hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()
    hvd.shutdown()
    return {"total": total}


def interrupted(story, rank, tell):
    """The stop button works while a rank waits for another."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hvd.init()
    seen = {}
    if rank == 0:
        place = threading.main_thread().ident

        def press():
            until(lambda: "synchronize" in calls(sys._current_frames()[place]))
            time.sleep(0.2)  # it waits by now, or is about to
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        start = time.monotonic()
        try:
            hvd.allreduce(torch.ones(1), name="long awaited")
        except KeyboardInterrupt:
            seen["took"] = time.monotonic() - start
        print("interrupted")
    else:
        until(lambda: b"interrupted" in said())
    return seen


def shuts_down_in_flight(story, rank, tell):
    """What was not finished when the job was shut down ends in an error, not in waiting."""
    hvd.init()
    handle = hvd.allreduce_async(torch.ones(1), name=f"only rank {rank} wants this")
    hvd.shutdown()
    seen = caught(lambda: hvd.synchronize(handle)) or {"kinds": ["nothing"]}
    hvd.init()
    seen["after"] = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    hvd.shutdown()
    return seen


def stopped_for_a_while(story, rank, tell):
    """A rank that the system does not run for a second is not a lost one."""
    hvd.init()
    if rank == story["victim"]:
        _stop(lambda: False, 1.3)
    total = [hvd.allreduce(torch.ones(1), op=hvd.Sum).item() for _ in range(3)]
    hvd.shutdown()
    return {"total": total}


def frozen(story, rank, tell):
    """The victim is stopped for good, as far as the others can tell, before a collective or inside of it."""
    hvd.init()

    def work():
        hvd.barrier()  # rank 0 may be stopped before the others have heard of its end
        if rank == story["victim"] and story["where"] == "outside":
            _stop(others_gave_up)
        hvd.allreduce(torch.ones(1000), name="wanted")

    def others_gave_up():
        return len(list(Path(story["folder"]).glob("gave up *"))) == story["size"] - 1

    begin = collectives.Call._begin

    def begins(*arguments):
        Path(story["folder"], str(rank)).touch()
        while rank == story["victim"] and len(os.listdir(story["folder"])) < story["size"]:
            time.sleep(0.02)  # a stopped rank 0 would keep the others from beginning at all
        if rank == story["victim"]:
            _stop(others_gave_up)
        return begin(*arguments)

    if story["where"] == "inside":
        collectives.Call._begin = begins
    seen = caught(work)
    if rank != story["victim"]:
        Path(story["folder"], f"gave up {rank}").touch()
    hvd.shutdown()
    if rank == story["victim"]:
        shutil.rmtree(story["folder"], ignore_errors=True)
    return seen


def _stop(over, seconds=100):
    """Stand still until `over()` holds, or for so many seconds."""
    pid = os.getpid()
    if os.fork() == 0:
        until(over, seconds)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this very thread goes no further; others might
