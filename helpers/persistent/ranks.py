"""Ranks that stay between calls, with their process group and all that they hold.

    with helpers.ranks(2) as ranks:
        ranks(build)                  # may set ranks.state.model
        losses = ranks(step, batch)   # the value of each rank
        ranks[0](save)

Each is a process forked from the server that `launch` uses; a call takes milliseconds, since nothing is started.
"""

import atexit
import os
import threading
from contextlib import closing, contextmanager

from ..language import Message
from ..launcher import client, context, errors, shared_message
from ..launcher.engine import ForkServerEngine
from ..launcher.launch import Options, check_function, check_timeout
from ..launcher.progress import launching
from ..launcher.supervisor import TICK
from . import worker
from .pool import Ended, RankPool, packed

opened = []  # the Ranks of this process that are not closed, oldest first


class _State:
    """`ranks.state`: inside of functions the names that this rank keeps; in the notebook, those of all ranks."""

    def __get__(self, ranks, owner):
        return worker.state() if ranks is None else States(ranks)


class Ranks:
    """`nprocs` ranks that stay until `close()` or the end of the `with` block; call it to run a function on them.

    The ranks are in one process group from the start (`helpers.distributed()` yields its World, and
    `torch.distributed` works without it). `ranks[2]` and `ranks[:2]` are some of them. What functions set in
    `ranks.state` stays until the end, as do the variables of `%%ranks` cells, which are the same names.

    When a rank raises an exception, the others are interrupted, all of them keep what they hold, and before the next
    call they join a new group. When a rank is killed all are stopped.

    Args:
        nprocs: number of ranks, at most one a device on a machine with accelerators.
        timeout: seconds that a call may take, unless it is given its own (None: as long as it takes).
        threads, env, on_event, python: as for `launch`.
        group: whether the ranks are in a process group; without, a function makes and leaves its own.

    Raises:
        TypeError, ValueError: bad arguments; no rank was started.
        RankError: a rank could not start, or not join the group.
    """

    state = _State()

    def __init__(self, nprocs, *, timeout=None, threads=None, env=None, on_event=None, python=None, group=True):
        if worker.worker is not None:
            raise RuntimeError("a rank cannot open ranks of its own: open them in the notebook")
        options = Options(nprocs, timeout, threads, env, on_event, python)
        self.nprocs, self.timeout = options.nprocs, timeout
        self._early = client.early(os.environ)
        self.ended = ""  # why they have ended
        self._pool, self._owner = None, os.getpid()
        self._lock, self._caller = threading.Lock(), None  # the thread that calls them
        try:
            with context.interrupts_held_back(), closing(options.packed(worker.main, (), {})) as message:
                server = client.server(options.python, options.environment)
                server.prepare()  # else each rank would import torch's compiler for its first optimizer
                self._pool = RankPool(ForkServerEngine(server), self.nprocs, message, on_event, bool(group))
                self._pool.regroup(timeout)
                opened.append(self)
        except BaseException:  # the stop button too: nobody has them yet
            self._end("since they could not start")
            raise

    def __call__(self, fn, *args, timeout=None, **kwargs):
        """Call `fn(*args, **kwargs)` on all ranks; return the list of their return values.

        Args:
            timeout: seconds that this call may take.

        Raises:
            TypeError, ValueError: bad arguments; no rank was called.
            RankError, RankTimeout, KeyboardInterrupt: as for `launch`, but the ranks stay.
            Ended: a rank was killed, and with it the others have ended; a RankError.
            RuntimeError: they have ended before.
        """
        return self.call(range(self.nprocs), fn, args, kwargs, timeout)

    def __getitem__(self, which):
        numbers = range(self.nprocs)
        try:
            chosen = [numbers[one] for one in which] if isinstance(which, (tuple, list)) else numbers[which]
        except (IndexError, TypeError) as error:
            raise type(error)(
                f"ranks[{which!r}]: give a number from 0 to {self.nprocs - 1}, a slice, or a list of numbers"
            ) from None
        return RankSubset(self, chosen)

    def __repr__(self):
        return f"<{self.nprocs} persistent ranks{': ended, ' + self.ended if self.ended else ''}>"

    @property
    def pids(self) -> list:
        """The process ids of the ranks, in their order."""
        return [] if self.ended else [pid for _, pid in sorted(self._pool.pids.items())]

    def close(self):
        """End the ranks; what they hold is lost. Closing twice does no harm."""
        with context.interrupts_held_back(), self._exclusively():
            if not self.ended:
                self._pool.farewell()
                self._end("since they were closed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        return worker.Inside, ()  # inside of functions `ranks` is what a rank sees of itself

    # -- calls -----------------------------------------------------------------------------------

    def call(self, numbers, fn, args=(), kwargs=None, timeout=None, name=None):
        """The values of the ranks `numbers`, in their order."""
        check_function(fn, args, kwargs or {}, "ranks")
        check_timeout(timeout)
        if not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(f"ranks {list(numbers)} were chosen: choose one or more of {self.nprocs}, each once")
        self._check_open()
        self._say_what_comes_too_late()
        name = name or f"{getattr(fn, '__name__', 'a function')}()"
        title = Message("{name} on persistent ranks", name=name)
        with closing(packed(fn, args, kwargs)) as message, context.interrupts_held_back():
            with launching(title), self._exclusively():
                self._check_open()
                try:
                    answers = self._pool.call(numbers, message, name, timeout or self.timeout)
                except (Ended, errors.LauncherError) as error:
                    self._end(errors.in_short(error))
                    raise
        return [shared_message.opened(answers[rank]) for rank in numbers]

    @contextmanager
    def _exclusively(self):
        here = threading.get_ident()
        if self._caller == here:
            raise RuntimeError(f"the ranks are busy with {self._pool.name}: on_event cannot call them")
        while not self._lock.acquire(timeout=TICK):  # another thread calls them
            context.raise_if_stopped()
        try:
            self._caller = here
            yield
        finally:
            self._caller = None
            self._lock.release()

    def _check_open(self):
        if os.getpid() != self._owner:
            raise RuntimeError("these ranks belong to the process that opened them; this one was forked from it")
        if self.ended:
            raise RuntimeError(
                f"these {self.nprocs} ranks have ended, {self.ended}: open new ones with helpers.ranks({self.nprocs})"
            )

    def _say_what_comes_too_late(self):
        before, self._early = self._early, client.early(os.environ)
        if changed := sorted(name for name, _ in before.items() ^ self._early.items()):
            late = f"{', '.join(dict.fromkeys(changed))} changed after these ranks were opened, which cannot follow it"
            context.printed(None, "stderr", f"{late}: open new ones with helpers.ranks({self.nprocs})\n")

    def _end(self, why):
        """They have ended, or are stopped now, for a reason."""
        self.ended = why
        if self._pool is not None:
            self._pool.stop()
            self._pool.close()
        if self in opened:
            opened.remove(self)


ranks = Ranks


class RankSubset:
    """Some of the ranks: `ranks[2](fn)` returns that rank's value, `ranks[:2](fn)` the list of theirs."""

    def __init__(self, ranks, which):
        self._ranks, self._which = ranks, which

    def __call__(self, fn, *args, timeout=None, **kwargs):
        """Call `fn(*args, **kwargs)` on these ranks; the others do nothing, so `fn` cannot use the whole group."""
        one = isinstance(self._which, int)
        values = self._ranks.call([self._which] if one else self._which, fn, args, kwargs, timeout)
        return values[0] if one else values

    @property
    def state(self):
        """The names that these ranks keep."""
        return States(self)


class States:
    """What the ranks keep, seen from the notebook: reading gives their values, writing sets one value on each."""

    def __init__(self, ranks):
        object.__setattr__(self, "_ranks", ranks)

    def __getattr__(self, name):
        if name.startswith("__"):  # what copy, pickle and IPython ask every object
            raise AttributeError(name)
        return self._ranks(worker.read, name)

    def __setattr__(self, name, value):
        self._ranks(worker.write, name, value)


@atexit.register
def _close():
    for ranks in list(opened):
        if ranks._owner == os.getpid():
            ranks.close()
