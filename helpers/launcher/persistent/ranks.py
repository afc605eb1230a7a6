"""Ranks that stay between calls, with their process group and all that they hold.

    with helpers.ranks(2) as ranks:
        ranks(build)                  # may set ranks.state.model
        losses = ranks(step, batch)   # the value of each rank
        ranks[0](save)

Each is a process forked from the server that `launch` uses; a call takes milliseconds, since nothing is started.
"""

import atexit
import os
import re
import threading
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from ...language import Message, shown
from .. import client, context, display, errors, payload, run_queue
from ..launch import Options, check_function, check_timeout
from ..progress import Progress, best_display
from ..supervisor import TICK
from . import shared_message, worker
from .pool import Ended, RankPool, packed

INTERVAL = 1.0  # s between two looks while nobody calls the ranks
MEMORY_EVERY = 5  # looks between two readings of the memory, which take the system milliseconds
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
        self._lock, self._over = threading.RLock(), threading.Event()
        label = Message("{n} persistent ranks", n=self.nprocs) if self.nprocs > 1 else Message("1 persistent rank")
        self._progress = Progress([label], best_display(quiet=True))
        try:
            with context.interrupts_held_back(), payload.as_file(options.packed(worker.main, (), {})) as file:
                server = client.server(options.python, options.environment)
                server.prepare()  # else each rank would import torch's compiler for its first optimizer
                self._pool = RankPool(server, self.nprocs, file, on_event, bool(group))
                self._pool.regroup(timeout)
                opened.append(self)
                self._progress.begin(label)
                threading.Thread(target=self._look_after, name="helpers: persistent ranks", daemon=True).start()
        except BaseException:  # the stop button too: nobody has them yet
            self._end("failed", Message("since they could not start"))
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
        return f"<{self._progress.rows[0].label}: {self.status}>"

    @property
    def status(self) -> str:
        """What they do: "idle", the call that goes on, or why they have ended."""
        if self.ended:
            return Message("ended, {ended}", ended=self.ended)
        waiting = ", ".join(map(str, self._pool.waiting))
        return Message("{name} on rank {ranks}", name=self._pool.name, ranks=waiting) if waiting else Message("idle")

    @property
    def pids(self) -> list:
        """The process ids of the ranks, in their order."""
        return [] if self.ended else [pid for _, pid in sorted(self._pool.pids.items())]

    def debug(self, rank):
        """Open pdb in this cell where the last exception of `rank` came from.

        The other ranks wait meanwhile. `breakpoint()` in a function or cell of the ranks opens pdb, too.
        """
        if not self[rank](worker.debug_last):
            print(f"rank {rank} has had no exception")

    def close(self):
        """End the ranks; what they hold is lost. Closing twice does no harm."""
        with self._lock, context.interrupts_held_back():
            if not self.ended:
                self._pool.farewell()
                self._end("completed", Message("since they were closed"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        return worker.Inside, ()  # inside of functions `ranks` is what a rank sees of itself

    # -- calls -----------------------------------------------------------------------------------

    def call(self, numbers, fn, args=(), kwargs=None, timeout=None, name=None, sink=context.write):
        """The values of the ranks `numbers`, in their order; `sink(rank, stream, text)` shows what they print."""
        check_function(fn, args, kwargs or {}, "ranks")
        check_timeout(timeout)
        if not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(f"ranks {list(numbers)} were chosen: choose one or more of {self.nprocs}, each once")
        if self._progress in context.stack():
            raise RuntimeError(f"the ranks are busy with {self._pool.name}: on_event cannot call them")
        self._check_open()
        self._say_what_comes_too_late()
        name = name or f"{getattr(fn, '__name__', 'a function')}()"
        title = Message("{name} on persistent ranks", name=name)
        say = lambda names: context.write(None, "stdout", display.waiting_for(names) + "\n")  # noqa: E731
        turn = nullcontext() if context.stack() else run_queue.turn(title, say)
        with closing(packed(fn, args, kwargs)) as message, context.interrupts_held_back(), turn, self._exclusively():
            self._check_open()
            self._progress.sink = sink
            try:
                with context.entered(self._progress):
                    answers = self._pool.call(numbers, message, name, timeout or self.timeout)
            except context.Stopped:
                self._stopped()
                raise context.Stopped(f"the {self.nprocs} persistent ranks were closed") from None
            except (Ended, errors.LauncherError) as error:
                self._end("failed", errors.in_short(error))
                raise
        return [shared_message.opened(answers[rank]) for rank in numbers]

    @contextmanager
    def _exclusively(self):
        while not self._lock.acquire(timeout=TICK):  # another thread calls them
            context.raise_if_stopped()
        try:
            yield
        finally:
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

    def _stopped(self):
        self._pool.farewell()
        self._end("stopped", Message("since somebody pressed Stop"))

    def _end(self, status, why):
        """They have ended, or are stopped now, for a reason; `status` is one of display.WORDS."""
        self.ended = why
        self._over.set()
        if self._pool is not None:
            self._pool.stop()
            self._pool.close()
        if self in opened:
            opened.remove(self)
            self._progress.row.numbers = ""
            self._progress.end(status, "" if status == "completed" else shown(why))
            self._progress.display.close(self._progress.rows)

    # -- while nobody calls them -----------------------------------------------------------------

    def _look_after(self):
        """Until the end: show what the ranks print and what they do, notice that they have ended, obey the button."""
        looks, memory = 0, ""
        while not self._over.wait(INTERVAL):
            if self._lock.acquire(blocking=False):  # else a call looks itself
                try:
                    self._look()
                finally:
                    self._lock.release()
            if self._progress.display.moves and not self.ended:
                memory = memory if looks % MEMORY_EVERY else private_memory(self.pids)
                looks += 1
                self._progress.row.numbers = " · ".join(shown(text) for text in (self.status, memory) if text)
                self._progress.tick()

    def _look(self):
        if self.ended:
            return
        if self._progress.stop.is_set():
            return self._stopped()
        try:
            self._pool.pump(0)
            if self._pool.failures:
                raise self._pool.lost()
        except (Ended, errors.LauncherError) as error:
            self._end("failed", errors.in_short(error))


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


def private_memory(pids) -> str:
    """What processes take each, without what they share with others; "" where the system does not say."""
    try:
        files = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    except OSError:  # macOS; or one has just ended
        return ""
    sizes = [sum(map(int, re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE))) / 1024 for text in files]
    least, most = f"{min(sizes, default=0):.0f}", f"{max(sizes, default=0):.0f}"
    if least == most:
        return Message("{least} MB a rank", least=least)
    return Message("{least} to {most} MB a rank", least=least, most=most)


@atexit.register
def _close():
    for ranks in list(opened):
        if ranks._owner == os.getpid():
            ranks.close()
