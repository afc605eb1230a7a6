"""What a kept rank does: it waits for calls and runs each on its main thread, until the notebook closes the line.

A second thread reads the line meanwhile. To interrupt a call it shuts the connections of the process groups, since a
thread that waits in gloo or in the store cannot be woken otherwise, and then sends the main thread a signal. The
process and what it holds survive; its groups do not, so all ranks join a new one before the next call.
"""

import bdb
import gc
import linecache
import os
import queue
import signal
import socket
import stat
import sys
import threading
from types import ModuleType

from .. import errors, group, rank
from . import debug, parcel

# Files whose calls are left out of tracebacks.
OURS = (__file__, rank.__file__, os.path.join(os.path.dirname(__file__), "cell.py"), bdb.__file__)
here = None  # this process's Stay; None in a process that is no kept rank


class Line:
    """The channel to the notebook; several threads send through it."""

    def __init__(self, connection):
        self.connection, self.lock = connection, threading.Lock()
        self.recv = connection.recv

    def send(self, message):
        with self.lock:
            self.connection.send(message)

    def send_parcel(self, made, *words):
        with self.lock:
            made.send(self.connection, *words)


class Stay:
    """One kept rank. `state` is the module whose names functions and cells share from call to call."""

    def __init__(self, line):
        self.line, self.calls, self.inputs = line, queue.SimpleQueue(), queue.SimpleQueue()
        self.current = self.unwanted = None  # numbers of calls
        self.breaking = threading.Lock()
        self.trace, self.armed = None, False  # the last exception's traceback; whether the next one opens pdb
        # Named __main__, so that what cells define is pickled by value, as it would be in a notebook.
        self.state = sys.modules["__main__"] = ModuleType("__main__")
        vars(self.state).update(__builtins__=__builtins__)

    def serve(self):
        """Run calls until the line is closed."""
        signal.signal(signal.SIGINT, self._signalled)
        threading.Thread(target=self._listen, name="helpers: line of a kept rank", daemon=True).start()
        while (call := self.calls.get()) is not None:
            number, received, sources = call
            linecache.cache.update(sources)
            try:
                answer = self._perform(number, received)
            except KeyboardInterrupt:  # came while the one before was handled
                answer = parcel.Parcel(None), "interrupted"
            self.current = None
            with self.breaking:  # else it would break connections of other ranks that go on already
                made, kind = answer
            rank.flush()
            self.line.send_parcel(made, "answer", number, kind)
            made.close()
            del made, answer, call, received

    def _perform(self, number, received):
        """(parcel, kind) of one call."""
        try:
            try:
                self.current = number
                fn, args, kwargs = parcel.opened(received)
                value = fn(*args, **kwargs)
                try:
                    return parcel.Parcel(value), "value"
                except Exception as error:
                    raise rank.unsendable(value, error) from None
            finally:
                self.current = None
        except BaseException as error:
            if self.unwanted == number:
                return parcel.Parcel(None), "interrupted"
            _, text, carried, when = rank.failure(error, OURS)
            if not errors.Failure(0, when, text).secondary:  # else what matters is the exception of another rank
                self._remember(error, number)
            return parcel.Parcel((text, carried, when)), "failure"

    def examine(self):
        """Open pdb on the last exception, or have the next one open it; whether there was one."""
        trace, self.trace = self.trace, None
        self.armed = trace is None
        if trace is not None:
            debug.post_mortem(trace)
        return trace is not None

    def _remember(self, error, number):
        """Keep where an exception came from, or open pdb there now, while the notebook waits for the call."""
        self.trace = error.__traceback__
        if self.armed:
            try:
                self.current = number
                self.examine()
            except KeyboardInterrupt:
                pass
            finally:
                self.current = None

    # -- the second thread --------------------------------------------------------------------

    def _listen(self):
        while True:
            try:
                kind, *rest = self.line.recv()
                if kind == "call":
                    number, sources, head = rest
                    self.calls.put((number, parcel.receive(self.line.connection, head), sources))
                elif kind == "interrupt":
                    self._interrupt(rest[0])
                elif kind == "input":
                    self.inputs.put(rest[0])
                else:  # "close"
                    break
            except (EOFError, OSError):
                break
        self.calls.put(None)

    def _interrupt(self, number):
        with self.breaking:
            if self.current == number:
                self.unwanted = number
                break_connections()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def _signalled(self, *_):
        if self.current is not None and self.current == self.unwanted:
            raise KeyboardInterrupt("another rank has failed, or the notebook interrupted the ranks")


def main():
    """The function that `launch`'s machinery runs on a rank that is kept."""
    import torch
    import torch.distributed as dist

    global here
    # The line is the launcher's own channel: after this call it goes on with it, to report the end.
    rank._channel = Line(rank._channel)
    here = Stay(rank._channel)
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    vars(here.state).update(place, torch=torch, dist=dist)
    sys.breakpointhook = debug.breakpoint_here
    here.serve()
    rank._channel = rank._channel.connection


# -- process groups ------------------------------------------------------------------------------------


def break_connections():
    """Make whoever waits in a collective or in a store of this process return with an error.

    Gloo cannot be interrupted, but it notices when a connection is shut. Those of ranks have both ends on this
    machine, so connections to other machines stay. NCCL has a way of its own.
    """
    for fd in _descriptors():
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                _shut(fd)
        except OSError:  # not connected, or closed meanwhile
            continue
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for one in list(c10d._world.pg_map) if c10d else ():
        if "gloo" not in c10d._world.pg_map[one][0] and hasattr(one, "abort"):
            one.abort()


def _shut(fd):
    with socket.socket(fileno=os.dup(fd)) as connection:
        if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
            if connection.getpeername()[0] == connection.getsockname()[0]:
                connection.shutdown(socket.SHUT_RDWR)


def _descriptors():
    """Open descriptors of this process that may be sockets."""
    for folder in ("/proc/self/fd", "/dev/fd"):  # Linux, macOS
        if os.path.isdir(folder):
            return [int(name) for name in os.listdir(folder)]
    return []


def join(attempt, wanted):
    """Leave the groups there were, whatever state they are in, and join a new one if that is `wanted`.

    All ranks call it. DDP models join the new group too; other groups, and what uses them, have to be made again.
    """
    import torch.distributed as dist

    orphans = _models()
    group.standing = None
    if dist.is_initialized():
        dist.destroy_process_group()
    rank.isolate_rendezvous_keys(attempt)
    if not wanted:
        return
    group.standing = world = group.join()
    here.state.device = world.device
    for model in orphans:
        parts = {k: v for k, v in vars(model).items() if k not in ("process_group", "reducer", "logger")}
        model.__setstate__({"broadcast_buffers": model.broadcast_buffers, **parts})


def _models():
    """The DDP models of this process that use the default group."""
    parallel, dist = sys.modules.get("torch.nn.parallel.distributed"), sys.modules["torch.distributed"]
    if parallel is None or not dist.is_initialized():
        return []
    world = dist.group.WORLD
    models = [one for one in gc.get_objects() if isinstance(one, parallel.DistributedDataParallel)]
    return [one for one in models if one.process_group is world]


# -- what functions see ------------------------------------------------------------------------------


class Inside:
    """What the notebook's `ranks` is inside of them."""

    @property
    def state(self):
        return state()

    def _refuse(self, *_, **__):
        raise RuntimeError("a rank cannot call ranks: call them in the notebook, and let the function do its own part")

    __call__ = __getitem__ = debug = close = _refuse


def inside():
    """An Inside; what a pickled `ranks` becomes."""
    return Inside()


def state():
    """The names that this rank keeps from call to call. Raises RuntimeError in a process that is no kept rank."""
    if here is None:
        raise RuntimeError(
            "there is no state here: helpers.ranks.state is what each rank keeps, for functions that "
            "`ranks = helpers.ranks(n)` runs; the notebook reads it as ranks.state"
        )
    return here.state


def read(name):
    """A value of the state, for the notebook."""
    try:
        return getattr(state(), name)
    except AttributeError:
        raise AttributeError(f"this rank's state has no {name!r}; a function sets it: ranks.state.{name} = …") from None


def examine():
    """`ranks.debug` on this rank."""
    return here.examine()


def write(name, value):
    """Set a value of the state, for the notebook."""
    setattr(state(), name, value)
