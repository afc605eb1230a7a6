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
from contextlib import contextmanager
from numbers import Integral

from .. import client, display, payload, scope, turns
from ..errors import LauncherError, RankError, interrupted, stacks_text
from ..language import in_english, marked
from ..launch import Options, check_function, check_timeout
from ..supervisor import TICK
from . import parcel, stay
from .crew import Crew, Ended, packed
from .watch import Watch

opened = []  # the Ranks of this process that are not closed, oldest first


class _State:
    """`ranks.state`: inside of functions the names that this rank keeps; in the notebook, those of all ranks."""

    def __get__(self, ranks, owner):
        return stay.state() if ranks is None else States(ranks)


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
        if stay.here is not None:
            raise RuntimeError("a rank cannot open ranks of its own: open them in the notebook")
        options = Options(nprocs, timeout, threads, env, on_event, python)
        self.nprocs, self.timeout, self.group = options.nprocs, timeout, bool(group)
        self.ended = ""  # why they have ended
        self._attempt, self._grouped, self._owner = 0, False, os.getpid()
        self._lock, self._calling = threading.RLock(), False
        self._crew = self._watch = None
        try:
            with scope.interrupts_held_back(), payload.as_file(options.packed(stay.main, (), {})) as file:
                server = client.server(options.python)
                server.prepare()  # else each rank would import torch's compiler for its first optimizer
                self._crew = Crew(server, self.nprocs, file, on_event)
                self._regroup()
                opened.append(self)
                self._watch = Watch(self)
        except BaseException:  # the stop button too: nobody has them yet
            self._end("failed", marked("since they could not start"))
            raise

    # -- calls -----------------------------------------------------------------------------------

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
        return self._call(list(range(self.nprocs)), fn, args, kwargs, timeout)

    def __getitem__(self, which):
        numbers = range(self.nprocs)
        if isinstance(which, slice):
            return Some(self, list(numbers[which]))
        if isinstance(which, (tuple, list, range)):
            return Some(self, [self._rank(one) for one in which])
        return Some(self, self._rank(which))

    def __len__(self):
        return self.nprocs

    def __iter__(self):
        return (self[rank] for rank in range(self.nprocs))

    def __repr__(self):
        return f"<{self.nprocs} kept rank{'s' * (self.nprocs > 1)}: {self.status}>"

    @property
    def status(self) -> str:
        """What they do: "idle", the call that goes on, or why they have ended."""
        if self.ended:
            return marked(f"ended, {self.ended}")
        crew = self._crew
        waiting = crew.waiting if crew else []
        ranks = ", ".join(map(str, waiting))
        return marked(f"{crew.name!s} on rank {ranks}") if waiting else marked("idle")

    def debug(self, rank):
        """Open pdb in this cell where the last exception of `rank` came from; if there was none, at its next one.

        The other ranks wait meanwhile. `breakpoint()` in a function or cell of the ranks opens pdb, too.
        """
        if not self[self._rank(rank)](stay.examine):
            print(f"rank {rank} has had no exception since; pdb opens in the cell of its next one")

    def close(self):
        """End the ranks; what they hold is lost. Closing twice does no harm."""
        with self._lock:
            if not self.ended:
                with scope.interrupts_held_back():
                    self._crew.farewell()
                    self._end("completed", marked("since they were closed"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        return stay.inside, ()  # inside of functions `ranks` is what a rank sees of itself

    def _rank(self, number):
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise TypeError(f"ranks[{number!r}]: give the number of a rank, a slice, or a list of numbers")
        if not -self.nprocs <= number < self.nprocs:
            raise IndexError(f"ranks[{number}]: there are {self.nprocs} ranks, 0 to {self.nprocs - 1}")
        return int(number) % self.nprocs

    def _call(self, numbers, fn, args, kwargs, timeout, name=None):
        """{rank: its value} in a list, in the order of `numbers`."""
        check_function(fn, args, kwargs, "ranks")
        check_timeout(timeout)
        if not numbers:
            raise ValueError(f"no rank was chosen: there are {self.nprocs}, 0 to {self.nprocs - 1}")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"ranks {numbers} were chosen: each can be called once")
        self._check_open()
        made = packed(fn, args, kwargs)
        name = name or f"{getattr(fn, '__name__', 'a function')}()"
        try:
            turn = turns.turn(marked(f"{name!s} on kept ranks"), _queued)
            with scope.interrupts_held_back(), turn, self._exclusively():
                self._check_open()
                with scope.entered(self._watch.progress):
                    answers = self._perform(numbers, made, name, timeout or self.timeout)
        finally:
            made.close()
        return [parcel.opened(answers[rank]) for rank in numbers]

    def _perform(self, numbers, made, name, timeout):
        """Call, and leave the ranks in order however it ends."""
        crew = self._crew
        if self._calling:
            raise RuntimeError(f"the ranks are busy with {crew.name}: on_event cannot call them")
        self._calling = True
        try:
            if not self._grouped:
                self._regroup()
            return crew.call(numbers, made, name, timeout)
        except scope.Stopped:
            crew.farewell()
            self._end("stopped", marked("since somebody pressed Stop"))
            raise scope.Stopped(f"the {self.nprocs} kept ranks were closed") from None
        except KeyboardInterrupt:
            self._grouped = False
            self._interrupted(name)
        except (Ended, LauncherError) as error:
            self._end("failed", _since(error))
            raise
        except RankError:
            self._grouped = False
            raise
        finally:
            self._calling = False

    def _regroup(self):
        """Have all ranks leave their groups and join a new one."""
        self._attempt += 1
        made = packed(stay.join, (self._attempt, self.group), {})
        self._crew.call(range(self.nprocs), made, "joining the process group", self.timeout)
        self._grouped = True

    def _interrupted(self, name):
        crew = self._crew
        waiting = crew.waiting
        crew.ask_for_stacks()
        crew.interrupt()
        if waiting:
            scope.printed(None, "stderr", "interrupted; " + stacks_text(crew.stacks, waiting) + "\n")
        raise interrupted(f"{name} was interrupted; the {self.nprocs} ranks keep what they hold") from None

    def _exclusively(self):
        return _Held(self._lock)

    @contextmanager
    def printing_to(self, sink):
        """In this block `sink(rank, stream, text)` shows what ranks print; rank None for the launcher's own words."""
        progress = self._watch.progress
        with scope.interrupts_held_back(), self._exclusively():
            progress.sink, usual = sink, progress.sink
            try:
                yield
            finally:
                progress.sink = usual

    def _check_open(self):
        if os.getpid() != self._owner:
            raise RuntimeError("these ranks belong to the process that opened them; this one was forked from it")
        if self.ended:
            again = marked(f"open new ones with helpers.ranks({self.nprocs})")
            raise RuntimeError(f"these {self.nprocs} ranks have ended, {self.ended}: {again}")

    def _end(self, status, why):
        """They have ended, or are stopped now, for a reason; `status` is one of display.WORDS."""
        self.ended = why
        if self._crew is not None:
            self._crew.stop()
            self._crew.close()
        if self in opened:
            opened.remove(self)
        if self._watch is not None:
            self._watch.end(status, "" if status == "completed" else why)

    # -- while nobody calls them -----------------------------------------------------------------

    @property
    def pids(self) -> list:
        """The process ids of the ranks, in their order."""
        return [] if self.ended else [pid for _, pid in sorted(self._crew.pids.items())]

    def look_after(self):
        """Show what they print between calls, notice that they have ended, obey the panel's button."""
        if not self._lock.acquire(blocking=False):
            return  # a call looks itself
        try:
            if self.ended:
                return
            if self._watch.progress.stop.is_set():
                self._crew.farewell()
                self._end("stopped", marked("since somebody pressed Stop"))
                return
            self._crew.pump(0)
            if self._crew.failures:
                self._end("failed", _since(self._crew.lost()))
        except LauncherError as error:
            self._end("failed", _since(error))
        finally:
            self._lock.release()


def _queued(names):
    """A call waits for its turn; a silent wait would look like a hang."""
    scope.write(None, "stdout", display.waiting_for(names) + "\n")


def _since(error):
    """Why ranks have ended, in half a sentence."""
    cause = in_english(error).partition("\n")[0].partition(".")[0].partition(";")[0]
    return marked(f"since {cause}")


class _Held:
    """Hold a lock; somebody who waits for it can be stopped."""

    def __init__(self, lock):
        self.lock = lock

    def __enter__(self):
        while not self.lock.acquire(timeout=TICK):
            scope.raise_if_stopped()

    def __exit__(self, *_):
        self.lock.release()


class Some:
    """Some of the ranks: `ranks[2](fn)` returns that rank's value, `ranks[:2](fn)` the list of theirs."""

    def __init__(self, ranks, which):
        self._ranks, self._which = ranks, which

    def __call__(self, fn, *args, timeout=None, **kwargs):
        """Call `fn(*args, **kwargs)` on these ranks; the others do nothing, so `fn` cannot use the whole group."""
        one = not isinstance(self._which, list)
        values = self._ranks._call([self._which] if one else self._which, fn, args, kwargs, timeout)
        return values[0] if one else values

    def __repr__(self):
        return f"{self._ranks!r}[{self._which}]"

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
        return self._ranks(stay.read, name)

    def __setattr__(self, name, value):
        self._ranks(stay.write, name, value)


@atexit.register
def _close():
    for ranks in list(opened):
        if ranks._owner == os.getpid():
            ranks.close()


ranks = Ranks
