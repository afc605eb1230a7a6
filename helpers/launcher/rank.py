"""What one rank does, from its first line to its last.

A rank is a fresh process with its own session. It reports over one channel (a socket):
("result", bytes), ("failure", text, exception, time) or ("event", dict). Everything else it
says goes to its own stdout and stderr pipes, also what C code prints.
"""

import ctypes
import faulthandler
import io
import itertools
import linecache
import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import pickle
import signal
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace

from .. import releases
from . import limit, payload, pickling, shortage

# glibc reads these variables when a process starts, and a rank is a fork: parameters of mallopt (malloc.h).
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}

_channel = None  # this process's line to the launcher; None when it was not launched by the kit
_last_calls = []
_env_handlers = []  # torch's own rendezvous handler of env://


def emit(event, **values):
    """Send an event from a rank to the `on_event` callback of the launch that started it.

    Does nothing in a process that `launch` did not start, so that the same function runs under
    torchrun. The values must be picklable and should be small.
    """
    if _channel is not None:
        _channel.send(("event", {"event": event, "rank": int(os.environ["RANK"]), **values}))


def at_end(call):
    """Have `call()` called in this rank after its function has returned and reported, before its process ends.

    It is not called in a rank that has failed or is stopped, nor in a process that `launch` did not start.
    """
    _last_calls.append(call)


def main(plan, rank, fds):
    """Run the payload as `rank` and leave the process; never returns.

    `plan` has nprocs, port, parent (process id of the starter), folder (for temporary files of
    multiprocessing) and device_plugins (whether torch has plugins still to be loaded); `fds` are the
    file descriptors out, err, channel, stacks, payload and store (a listening socket).
    """
    global _channel
    fds = SimpleNamespace(**fds)
    _tie_to(plan["parent"])
    _redirect(fds.out, fds.err)
    _set_up_multiprocessing(plan["folder"])
    pickling.set_up_main()
    surroundings, call = payload.unpack(fds.payload)
    _move_in(surroundings, plan, rank)
    stacks = os.fdopen(fds.stacks, "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)  # the signal may hit any thread
    faulthandler.enable(file=sys.stderr)
    _channel = Connection(fds.channel)
    store, code = None, 0
    try:
        _settle_torch(surroundings["threads"], plan["device_plugins"])
        if rank == 0:
            store = releases.serve_store(fds.store, plan["port"])
        isolate_rendezvous_keys()
        limit.impose(surroundings["memory"])
        answer = ("result", _run(call))
    except KeyboardInterrupt:
        answer, code = None, 130  # the launcher asked for it and knows
    except BaseException as error:
        answer, code = failure(error), 1
    flush()
    multiprocessing.util._run_finalizers()  # what an exit would do: temporary folders of DataLoader workers
    _report(answer, serves=store is not None)
    os._exit(code)  # no interpreter shutdown: a rank blocked in a destructor would never end


def _tie_to(parent):
    """Die when the starter dies, even inside a collective (Linux; elsewhere the starter kills us)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
    if os.getsid(0) != os.getpid():
        os.setsid()  # own process group: stopping this rank stops its DataLoader workers too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _redirect(out, err):
    for fd, target, name in ((out, 1, "stdout"), (err, 2, "stderr")):
        os.dup2(fd, target)
        os.close(fd)
        raw = open(target, "wb", buffering=0, closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True, write_through=True))


def _set_up_multiprocessing(folder):
    """Let DataLoader workers be forked, and their files lie in `folder`."""
    config = multiprocessing.current_process()._config
    config["tempdir"] = folder  # what its get_temp_dir reads
    if sys.platform == "linux":  # names of semaphores may not be as long elsewhere
        config["semprefix"] = "/" + os.path.basename(folder)
        # What Python 3.14 does instead imports torch again in every worker, and pickles the data set, whose class may
        # be of a cell.
        multiprocessing.set_start_method("fork", force=True)
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_not_put)


def _not_put(error, _):
    """End a DataLoader worker whose batch cannot be pickled: else its loader waits for that batch for ever."""
    traceback.print_exception(error)
    if torch_data := sys.modules.get("torch.utils.data"):
        if torch_data.get_worker_info() is not None:
            flush()
            os._exit(1)


def _move_in(surroundings, plan, rank):
    """Take on the notebook's environment, import path, arguments, folder and cell sources."""
    world = str(plan["nprocs"])
    os.environ.clear()
    os.environ.update(surroundings["environment"])
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=world,
        LOCAL_WORLD_SIZE=world,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(plan["port"]),
        # The store is already served when the function starts, so nobody binds a port of its own.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    sys.path[:], sys.argv[:] = surroundings["path"], surroundings["argv"]
    os.chdir(surroundings["folder"])
    linecache.cache.update(surroundings["sources"])
    libc = ctypes.CDLL(None)
    for name in MALLOPT.keys() & os.environ.keys():
        if hasattr(libc, "mallopt") and os.environ[name].isdecimal():
            libc.mallopt(MALLOPT[name], min(int(os.environ[name]), 2**31 - 1))


def _settle_torch(threads, device_plugins):
    import torch

    # OMP_NUM_THREADS is read when the runtime is loaded, which happened before the fork.
    torch.set_num_threads(threads)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.distributed.set_debug_level_from_env()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else every rank forks with one and the same state
    if device_plugins and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        torch._import_device_backends()  # the fork server put it off: it must not touch a device


def isolate_rendezvous_keys(attempt=0):
    """Give each process group of a run its own keys in the store, which outlives them all.

    Else a group made after another was destroyed reads the addresses of the old one and hangs. Ranks that may
    have made different numbers of groups count from 0 again in a new `attempt`.
    """
    from torch.distributed import PrefixStore, rendezvous

    handlers = sys.modules[rendezvous.__module__]._rendezvous_handlers  # no public way to replace one
    if not _env_handlers:
        _env_handlers.append(handlers["env"])
    numbers = itertools.count()

    def numbered(*args, **kwargs):
        for store, rank, world_size in _env_handlers[0](*args, **kwargs):
            yield PrefixStore(f"attempt{attempt}/group{next(numbers)}", store), rank, world_size

    handlers["env"] = numbered


def _run(call):
    import cloudpickle

    fn, args, kwargs = cloudpickle.loads(call)
    value = fn(*args, **kwargs)
    try:
        return pickling.dumps(value)
    except Exception as error:
        raise unsendable(value, error) from None


def unsendable(value, error):
    """The error of a rank whose return value cannot be pickled."""
    return TypeError(
        f"the return value ({type(value).__name__}) cannot be sent back: {error}. "
        "Return numbers, tensors, lists or dictionaries of them."
    )


def failure(error, ours=(__file__,)):
    """The message about an exception, without the frames of the files `ours`."""
    explained = shortage.explained(
        limit.explained(error)
    )  # first, since it lifts the limit: to report takes memory, too
    report = traceback.TracebackException.from_exception(error)
    report.stack = traceback.StackSummary.from_list(f for f in report.stack if f.filename not in ours)
    text = "".join(report.format())
    if isinstance(error, SystemExit):
        text = f"SystemExit: {error.code} (the function called sys.exit)\n{text}"
    try:
        pickled = pickling.dumps(explained)
        pickle.loads(pickled)
    except Exception:  # its text is sent all the same
        pickled = None
    return ("failure", text, pickled, time.monotonic())


def flush():
    """Everything printed so far must be in the pipes before the answer is."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _report(answer, serves):
    """Send the answer; after a result wait for the others, if this rank serves their store, and make the last calls."""
    try:
        if answer is not None:
            _channel.send(answer)
        if answer is not None and answer[0] == "result":
            if serves:
                _channel.recv()  # the store must outlive the other ranks' last collectives
            for call in _last_calls:
                call()
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the launcher is gone or has stopped us
    except Exception:
        traceback.print_exc()
