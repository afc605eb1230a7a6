"""What a persistent rank does: it runs calls on its main thread until the notebook closes the channel.

A second thread reads the channel meanwhile. To interrupt a call it shuts the connections of the process groups, since
a thread that waits in gloo or in the store cannot be woken otherwise, and then sends the main thread a signal. The
process and what it holds survive; its groups do not, so all ranks join a new one before the next call.
"""

import ast
import gc
import linecache
import os
import queue
import signal
import sys
import threading
from types import ModuleType

from ..group import process_group
from ..launcher import pickling, rank, shared_message, surroundings
from ..launcher.shared_message import SharedMessage
from . import sockets

worker = None  # this process's PersistentWorker; None in a process that is no persistent rank


class PersistentWorker:
    """One persistent rank. `state` is the module whose names functions and cells share from call to call."""

    def __init__(self, channel):
        self.channel, self.calls = channel, queue.SimpleQueue()
        self.running = self.unwanted = None  # numbers of calls
        self.around = None  # what was around the last call, in the notebook
        self.interrupting = threading.Lock()
        # Named __main__, so that what cells define is pickled by value, as it would be in a notebook.
        self.state = ModuleType("__main__")
        pickling.cells = vars(self.state)
        pickling.cells.update(__builtins__=__builtins__)

    def serve(self):
        """Run calls until the channel is closed."""
        signal.signal(signal.SIGINT, self._signalled)
        threading.Thread(target=self._listen, name="helpers: channel of a persistent rank", daemon=True).start()
        while (call := self.calls.get()) is not None:
            number, received, (sources, around) = call
            linecache.cache.update(sources)
            try:
                answer = self._perform(number, received, around)
            except KeyboardInterrupt:  # came while the one before was handled
                answer = "interrupted", SharedMessage(None)
            self.running = None
            with self.interrupting:  # else it would shut connections of other ranks that go on already
                rank.flush()
            self.channel.answer(number, *answer)
            del answer, call, received

    def _perform(self, number, received, around):
        """The answer to one call."""
        try:
            try:
                self.running = number
                surroundings.follow(self.around or around, around)
                self.around = around
                return "value", rank.perform(received)
            finally:
                self.running = None
        except BaseException as error:
            if self.unwanted == number:
                return "interrupted", SharedMessage(None)
            return "failure", rank.failed(error)

    # -- the second thread --------------------------------------------------------------------

    def _listen(self):
        while True:
            try:
                kind, *rest = self.channel.recv()
                if kind == "call":
                    number, news, head = rest
                    self.calls.put((number, shared_message.receive(self.channel.connection, head), news))
                elif kind == "interrupt":
                    self._interrupt(rest[0])
                else:  # "close"
                    break
            except (EOFError, OSError):
                break
        self.calls.put(None)

    def _interrupt(self, number):
        with self.interrupting:
            if self.running == number:
                self.unwanted = number
                sockets.shut()
                c10d = sys.modules.get("torch.distributed.distributed_c10d")
                for one, (backend, _) in list(c10d._world.pg_map.items()) if c10d else ():
                    if "gloo" not in backend and hasattr(one, "abort"):  # NCCL has a way of its own
                        one.abort()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def _signalled(self, *_):
        if self.running is not None and self.running == self.unwanted:
            raise KeyboardInterrupt("another rank has failed, or the notebook interrupted the ranks")


def main():
    """The function that the launcher's machinery runs on a persistent rank."""
    import torch
    import torch.distributed as dist

    global worker
    worker = PersistentWorker(rank.channel)
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    vars(worker.state).update(place, torch=torch, dist=dist)
    sockets.record()
    worker.serve()


def join(attempt, wanted):
    """Leave the groups there were, whatever state they are in, and join a new one if that is `wanted`.

    All ranks call it. DDP models join the new group too; other groups, and what uses them, have to be made again.
    """
    import torch.distributed as dist

    orphans = _models()
    process_group.standing = None
    if dist.is_initialized():
        dist.destroy_process_group()
    sockets.forget()
    rank.isolate_rendezvous_keys(attempt)
    if not wanted:
        return
    process_group.standing = world = process_group.join()
    worker.state.device = world.device
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


# -- what the notebook has this rank do, and what its functions see ---------------------------------------


def run_cell(source, name):
    """Run a `%%ranks` cell where `ranks.state` has its names; what its last expression shows, or None."""
    tree = ast.parse(source, name)
    names = vars(state())
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    value = last and eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
    if value is None or source.rstrip().endswith(";"):
        return None
    names["_"] = value
    return repr(value)


def state():
    """The names that this rank keeps from call to call. Raises RuntimeError in a process that is no persistent rank."""
    if worker is None:
        raise RuntimeError(
            "there is no state here: helpers.ranks.state is what each rank keeps, for functions that "
            "`ranks = helpers.ranks(n)` runs; the notebook reads it as ranks.state"
        )
    return worker.state


def read(name):
    """A value of the state, for the notebook."""
    return getattr(state(), name)


def write(name, value):
    """Set a value of the state, for the notebook."""
    setattr(state(), name, value)


class Inside:
    """What the notebook's `ranks` is inside of functions that its ranks run."""

    state = property(lambda self: state())

    def _refuse(self, *_, **__):
        raise RuntimeError("a rank cannot call ranks: call them in the notebook, and let the function do its own part")

    __call__ = __getitem__ = close = _refuse
