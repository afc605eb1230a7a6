"""What one rank does, from its first line to its last.

A rank is a fresh process with its own session. It reports over one channel (a socket): ("answer", number of the call,
"value" or "failure", head of a SharedMessage) or ("event", dict). Everything else it says goes to its own stdout and
stderr pipes, also what C code prints.
"""

import atexit
import builtins
import ctypes
import faulthandler
import gc
import io
import itertools
import linecache
import logging
import multiprocessing.queues
import multiprocessing.util
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace

from .. import releases
from . import errors, limit, logs, pickling, rich_output, shared_message, shortage
from .shared_message import SharedMessage

# glibc reads these variables when a process starts, and a rank is a fork: parameters of mallopt (malloc.h).
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}
PATIENCE = 2.0  # s in which the threads that a function leaves may end without a notice

channel = None  # this process's line to the launcher; None when it was not launched by the kit
_env_handlers = []  # torch's own rendezvous handler of env://


class Channel:
    """The line to the launcher, for several threads: one of the reader's may call `helpers.emit`."""

    def __init__(self, connection):
        self.connection, self.lock, self.recv = connection, threading.RLock(), connection.recv

    def send(self, *message):
        with self.lock:
            self.connection.send(message)

    def answer(self, number, how, message):
        """Send the answer to a call."""
        with self.lock:
            message.send(self.connection, "answer", number, how)
        message.close()


def emit(event, **values):
    """Send an event from a rank to the `on_event` callback of the launch that started it.

    Does nothing in a process that `launch` did not start, so that the same function runs under
    torchrun. The values must be picklable and should be small. The callback gets them in a dict, with "event" and
    "rank".
    """
    if channel is not None:
        channel.send("event", {"event": event, "rank": int(os.environ["RANK"]), **values})


def main(plan, rank, fds):
    """Run the payload as `rank` and leave the process; never returns.

    `rank` counts those of this machine. `plan` has nprocs, first (the number of the machine's first rank), world (ranks
    on all machines), address and port of the store, surroundings (what a machine has of its own instead of the
    notebook's), payload (where its parts lie), parent (process id of the starter), folder (for temporary
    files of multiprocessing) and device_plugins (whether torch has plugins still to be loaded); `fds` are the
    file descriptors out, err, channel, stacks, payload and store (a listening socket).
    """
    global channel
    fds = SimpleNamespace(**fds)
    _tie_to(plan["parent"])
    atexit._clear()  # the fork server's
    for call in (logging.shutdown, multiprocessing.util._exit_function, weakref.finalize._exitfunc):
        atexit.register(call)
    _redirect(fds.out, fds.err)
    _set_up_multiprocessing(plan["folder"])
    pickling.set_up_main()
    surroundings, *call = shared_message.mapped(fds.payload, plan["payload"])
    surroundings = {**pickle.loads(surroundings), **plan["surroundings"]}
    _move_in(surroundings, plan, rank)
    stacks = os.fdopen(fds.stacks, "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)  # the signal may hit any thread
    faulthandler.enable(file=sys.stderr)
    channel = Channel(Connection(fds.channel))
    rich_output.install(channel)
    logs.apply(surroundings["logging"])
    builtins.input = sys.breakpointhook = _nobody_to_ask
    store, code = None, 0
    try:
        try:
            _settle_torch(surroundings["threads"], plan["device_plugins"])
            if os.environ["RANK"] == "0":
                store = releases.serve_store(fds.store, plan["port"])
            isolate_rendezvous_keys()
            answer = "value", perform(call, surroundings["memory"])
            del call
            _join_threads()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            answer, code = ("failure", failed(error)), 1
        flush()
        channel.answer(0, *answer)
        if code:
            _join_threads()
        elif store is not None:
            channel.recv()  # the store must outlive the other ranks' last collectives
    except (KeyboardInterrupt, EOFError, OSError):  # the launcher asked for it and knows, or it is gone
        code = 130
    _leave(code)


def _nobody_to_ask(*_, **__):
    raise RuntimeError(
        "nobody can type on a rank: call input() in the notebook and pass the answer; to use a debugger, "
        "call the function in the notebook, without launch"
    )


def perform(call, memory=None):
    """The SharedMessage of what a call returns. It may hold `memory` bytes, besides its arguments and their modules."""
    fn, args, kwargs = shared_message.opened(call)
    limit.impose(memory)
    value = fn(*args, **kwargs)
    try:
        return SharedMessage(value)
    except Exception as error:
        raise TypeError(
            f"the return value ({type(value).__name__}) cannot be sent back: {error}. "
            "Return numbers, tensors, lists or dictionaries of them."
        ) from None


def failed(error):
    """The SharedMessage about an exception, (traceback, the pickled exception or None, time), without our frames."""
    explained = limit.explained(error)  # first, since it lifts the limit: to report takes memory, too
    explained = shortage.explained(explained)
    report = traceback.TracebackException.from_exception(error)
    report.stack = traceback.StackSummary.from_list(f for f in report.stack if not f.filename.startswith(errors.OURS))
    text = "".join(report.format())
    if isinstance(error, SystemExit):
        text = f"SystemExit: {error.code} (the function called sys.exit)\n{text}"
    try:
        pickled = pickling.dumps(explained)
        pickle.loads(pickled)
    except Exception:  # its text is sent all the same
        pickled = None
    return SharedMessage((text, pickled, time.time()))


def flush():
    """Everything printed so far must be in the pipes before the answer is."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


# -- the end, which is that of a plain process -----------------------------------------------------


def _join_threads():
    """Wait for the threads that the function has left, an asynchronous checkpoint for example."""
    left = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    notice = threading.Timer(PATIENCE, _say_waiting, [left])
    notice.daemon = True
    if left:
        notice.start()
    threading._shutdown()  # what the interpreter does first at its end
    notice.cancel()


def _say_waiting(threads):
    names = ", ".join(one.name for one in threads if one.is_alive())
    sys.stderr.write(f"the function has returned; its process ends when its threads have: {names}\n")


def _leave(code):
    """Run what is registered with atexit, flush open files, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()  # prints exceptions; ends DataLoader workers and removes temporary folders
    for one in gc.get_objects():
        if issubclass(type(one), io.IOBase):
            with suppress(Exception):  # closed, or not for writing
                one.flush()
    flush()
    os._exit(code)  # no interpreter shutdown: a rank blocked in a destructor would never end


# -- the beginning ---------------------------------------------------------------------------------


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
    os.environ.clear()
    os.environ.update(surroundings["environment"])
    os.environ.update(
        RANK=str(plan["first"] + rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(plan["world"]),
        LOCAL_WORLD_SIZE=str(plan["nprocs"]),
        MASTER_ADDR=plan["address"],
        MASTER_PORT=str(plan["port"]),
        # The store is already served when the function starts, so nobody binds a port of its own.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    if plan["world"] == plan["nprocs"]:  # all on this machine
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
