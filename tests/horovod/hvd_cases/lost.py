"""Ranks that die, leave or never come, told as stories: what each rank does is a function, what it saw is its answer.

A story is played by processes that a mother forks after torch is imported, with nothing set but the
rank, as any launcher would start them. helpers.launch cannot play them: it stops all ranks when one fails.
"""

import atexit
import ctypes
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

PATIENCE = 200  # seconds for one story; a rank that waits out its own patience is found out by this
OWN_PATIENCE = 300  # of a rank that waits for the others to start


def mother(stories):
    """Play the stories, one after the other; returns what their ranks saw, in the same order."""
    import platforms.horovod.torch  # noqa: F401 - imported once, here, for all who are forked

    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith(("LOCAL_", "MASTER_", "TORCHELASTIC_", "GLOO_")):
            del os.environ[name]
    return [play(story) for story in stories]


def play(story):
    """Returns {"ranks": what each rank answered or None, "codes": exit codes, "said": all output, "seconds"}."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+b") as said:
        pipes, pids = [], []
        for rank in range(story.get("started", story["size"])):
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                _live(story, rank, theirs, said)
            os.close(theirs)
            pipes.append(ours)
            pids.append(pid)
        answers = [_heard(pipe, start + PATIENCE) for pipe in pipes]
        codes = [_ended(pid, start + PATIENCE) for pid in pids]
        said.seek(0)
        told = said.read().decode(errors="replace")
        return {"ranks": answers, "codes": codes, "seconds": time.monotonic() - start, "said": told}


def _live(story, rank, pipe, said):
    """One rank, from its first line to its end; what an interpreter does at its end is done here."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    code = 1
    try:
        for fd in (1, 2):
            os.dup2(said.fileno(), fd)
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
        size = str(story["size"])
        if story["size"] > 1 or story.get("always"):
            os.environ.update(RANK=str(rank), WORLD_SIZE=size, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=size)
        os.environ.update({"HOROVOD_START_TIMEOUT": str(OWN_PATIENCE)} | story.get("env", {}))
        import torch

        torch.set_num_threads(1)
        work = getattr(importlib.import_module(story.get("module", __name__)), story["work"])
        story["pipe"] = pipe
        answer = work(story, rank, lambda **known: os.write(pipe, json.dumps(known).encode()))
        if answer is not None:
            os.write(pipe, json.dumps(answer).encode())
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()  # as the interpreter does
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()
            atexit._run_exitfuncs()
        finally:
            os._exit(code)


def _heard(pipe, deadline):
    import select

    text = b""
    while select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
        more = os.read(pipe, 65536)
        if not more:
            break
        text += more
    os.close(pipe)
    return json.loads(text) if text else None


def _ended(pid, deadline):
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.005)


def caught(call):
    """When `call` failed, of which classes its error was, what it said."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        kinds, now = [kind.__name__ for kind in type(error).__mro__], time.monotonic()
        return {"when": now, "took": now - start, "kinds": kinds, "text": str(error)}
    return None


def traffic(rounds=10**6, until=lambda: False):
    import torch

    import platforms.horovod.torch as hvd

    for _ in range(rounds):
        handles = [hvd.allreduce_async(torch.ones(1000 * (n % 3) + 1), name=f"tensor {n}") for n in range(15)]
        handles.append(hvd.allgather_async(torch.ones(hvd.rank() + 1), name="gathered"))
        if until():
            return
        for handle in handles:
            hvd.synchronize(handle)


def sets():
    import platforms.horovod.torch as hvd

    while True:
        hvd.remove_process_set(hvd.add_process_set([0, 1]))


def crash(story, rank, tell):
    """The victim ends in some way at some moment; the others tell how and when they learnt of it."""
    import torch

    import platforms.horovod.torch as hvd

    hvd.init()
    hvd.barrier()
    waits = {
        "traffic": traffic,
        "barrier": hvd.barrier,
        "join": hvd.join,
        "broadcast": lambda: hvd.broadcast(torch.ones(3), story["victim"], name="wanted"),
        "grouped": lambda: hvd.grouped_allreduce([torch.ones(3), torch.ones(2)], name="wanted"),
        "sets": sets,
        "idle": lambda: [time.sleep(0.7), hvd.allreduce(torch.ones(1), name="wanted")],
    }
    if rank != story["victim"]:
        seen = caught(waits[story["wait"]])
        seen["again"] = caught(lambda: hvd.allreduce(torch.ones(2), name="more"))
        seen["shutdown"] = caught(hvd.shutdown)
        return seen
    if story.get("child"):
        _fork_a_sleeper(story["pipe"])
    moment = time.monotonic() + random.Random(story["seed"]).uniform(0.02, 0.25)
    how, busy = story["how"], story["wait"] in ("traffic", "sets")

    def end():
        time.sleep(max(0, moment - time.monotonic()))
        tell(when=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(7)

    if how in ("kill", "exit"):
        threading.Thread(target=end, daemon=True).start()
        waits[story["wait"]]() if busy else time.sleep(PATIENCE)
    traffic(until=lambda: time.monotonic() > moment) if busy else time.sleep(max(0, moment - time.monotonic()))
    tell(when=time.monotonic())
    if how == "exception":
        raise ValueError("planted")
    if how == "sys.exit":
        sys.exit(3)
    if how == "shutdown":
        hvd.shutdown()
        time.sleep(0.8)
    return None  # how == "return": the process ends without a word


def _fork_a_sleeper(pipe):
    """A data loader's worker: it has all descriptors of the rank, and outlives it."""
    if os.fork() == 0:
        for fd in (1, 2, pipe):
            os.close(fd)
        time.sleep(3)
        os._exit(0)
