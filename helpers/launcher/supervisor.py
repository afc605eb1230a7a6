"""Watches one run from the notebook's side.

It streams what the ranks print, collects their answers, finds out which rank failed first,
and never leaves before every rank has ended.
"""

import math
import pickle
import re
import signal
import threading
import time
from contextlib import suppress
from linecache import getline

from . import context, errors, shared_message, shortage
from .output import Output, OutputReader

SETTLE = 0.05  # s to wait after a failure for one that happened earlier but is reported later
GRACE = 0.2  # s between asking a rank to stop and killing it
LOST = 3.0  # s at most for the notice of a rank that has ended, once another has found its connection closed
STACKS = 3.0  # s for the ranks to write their stacks, at most; milliseconds unless the machine is busy
OUTERMOST = re.compile(r"( in <module>|^  \.\.\.)\s*\Z", re.MULTILINE)  # the last line of a whole stack
MOST_FRAMES = 15  # of a stack, the innermost
TICK = 0.1  # s between looks at whether somebody asked to stop


class Supervisor:
    """One run of `nprocs` ranks; use it as a context manager, which stops whatever still runs.

    Attributes:
        waiting: the ranks that have not ended.
        answers: what those returned that have, for `shared_message.opened`.
        failures: those that ended in another way.
    """

    def __init__(self, engine, nprocs, message, on_event=None):
        self.engine, self.nprocs, self.on_event = engine, nprocs, on_event
        self.pids, self.answers, self.exits, self.failures, self.stacks = {}, {}, {}, [], {}
        self.waiting, self.readers, self.began = list(range(nprocs)), {}, time.monotonic()
        self.stopping, self.output = False, Output()
        self.fate = f"all {nprocs} ranks were stopped" if nprocs > 1 else "the rank was stopped"
        try:
            for rank in range(nprocs):
                for name, stream in (("stdout", "stdout"), ("stderr", "stderr"), ("stacks", None)):
                    self.readers[rank, name] = OutputReader(rank, stream, self.output.show)
            engine.start(nprocs, message)
        except BaseException as error:  # the stop button too: `with` cannot clean up after __init__
            self.close()
            if isinstance(error, (OSError, errors.Shortage)):
                raise errors.LauncherError(f"the run could not be started: {shortage.explained(error)}") from None
            raise

    # -- what can happen ------------------------------------------------------------------

    def pump(self, timeout):
        """Handle what has happened; wait up to `timeout` seconds for something to happen."""
        self._handle(self.engine.events(timeout))
        for reader in self.readers.values():
            reader.show_unfinished()
        if progress := context.progress():
            progress.tick()

    def _handle(self, events):
        for kind, *what in events:
            getattr(self, f"_on_{kind}")(*what)

    def _on_output(self, rank, stream, data):
        self.readers[rank, stream].feed(data)

    def _on_event(self, rank, event):
        if self.on_event is not None:
            self.on_event(event)

    def _on_display(self, rank, *what):
        context.displayed(rank, *what)

    def _on_answer(self, rank, number, how, received):
        """Take the answer of a rank; that to call 0, the payload, is its last."""
        if how == "value":
            self.answers[rank] = received
            if len(self.answers) == self.nprocs:  # rank 0, which serves the store, can go
                self._tell([0], "all done")
        elif not self.stopping:
            self.failures.append(failure(rank, received))

    def _tell(self, ranks, *message):
        for rank in ranks:
            with suppress(OSError):  # it has ended: the engine says so in a moment
                self.engine.tell(rank, *message)

    def _on_waiting(self, why):
        self.began = math.inf
        context.moved("queued", why)

    def _on_started(self, pids, where):
        self.pids = pids
        if where:
            self.began = time.monotonic()
            context.moved("running", where)

    def _on_refused(self, why):
        if not why:
            raise errors.LauncherError("the fork server was lost; all ranks of the run were stopped")
        raise errors.LauncherError(f"the run could not be started: {why}")

    def _on_exit(self, rank, code, why):
        self.exits[rank] = code
        self.waiting = [one for one in self.waiting if one != rank]
        if rank not in self.answers and not self.stopping and all(f.rank != rank for f in self.failures):
            self.failures.append(errors.Failure(rank, time.time(), exitcode=code, why=why))

    # -- the course of a run --------------------------------------------------------------

    def run(self, timeout=None):
        """The ranks' return values, to be opened, in rank order. Raises RankError, RankTimeout or KeyboardInterrupt."""
        self._wait(timeout)
        return [self.answers[rank] for rank in range(self.nprocs)]

    def _wait(self, timeout):
        """Wait for the ranks; raise what ended this otherwise, once the ranks have been dealt with."""
        self.began = time.monotonic() if self.began < math.inf else self.began
        try:
            while self.waiting and not self._any_failed():
                context.raise_if_stopped()
                left = (timeout or math.inf) + self.began - time.monotonic()
                if left <= 0:
                    waiting = self._give_up()
                    raise errors.timeout_error(timeout, self.stacks, waiting, self.nprocs, self.fate)
                self.pump(min(TICK, left))
        except KeyboardInterrupt:  # the kernel's stop button, or the panel's
            waiting = self._give_up()
            context.folded("Where each rank stood", errors.stacks_text(self.stacks, waiting))
            raise context.Stopped(self.fate) from None
        if self._any_failed():
            raise self._failed()

    def _give_up(self):
        """Collect the stacks of the ranks that are waited for, end the call, and return which these were."""
        waiting = [rank for rank in self.waiting if rank not in self.answers] or self.waiting
        try:
            self.ask_for_stacks()
        finally:
            self.end_call()
        return waiting

    def _any_failed(self):
        return bool(self.failures)

    def end_call(self):
        """Have the ranks that are waited for do so no more."""
        self.stop()

    def _failed(self):
        """The error of the run, once the failure that caused it is known and all ranks have ended."""
        self._pump_until(self._all_reported, SETTLE)
        if errors.first_failure(self.failures).secondary:
            self._pump_until(lambda: self._all_reported() or not errors.first_failure(self.failures).secondary, LOST)
        finished = set(self.answers)
        killed = (errors.first_failure(self.failures).exitcode or 0) < 0
        self.stop(0 if killed else GRACE)  # those who have lost a rank have nothing to tell
        return errors.rank_error(self.failures, finished, self.nprocs)

    def _pump_until(self, done, seconds):
        end = time.monotonic() + seconds
        while not done() and (left := end - time.monotonic()) > 0:
            self.pump(left)

    def stop(self, grace=GRACE):
        """End every rank: ask, then kill after `grace` seconds; returns when all have ended."""
        self.stopping = True
        if grace:
            self._signal(signal.SIGINT)
            self._pump_until(self._ended, grace)
        if not self._ended():
            self._signal(signal.SIGKILL)
            self._pump_until(self._ended, 5)

    def _all_reported(self):
        """Whether each rank has answered, failed or ended."""
        return len({failure.rank for failure in self.failures}.union(self.answers, self.exits)) == self.nprocs

    def _ended(self):
        return len(self.exits) == self.nprocs

    def _signal(self, signum):
        with suppress(OSError):  # no server, no ranks
            self.engine.signal(signum, set(range(self.nprocs)) - set(self.exits))

    def ask_for_stacks(self):
        """Collect each rank's stack trace, as text, in `self.stacks`."""
        alive = set(range(self.nprocs)) - set(self.exits)
        readers = {rank: self.readers[rank, "stacks"] for rank in sorted(alive)}
        for reader in readers.values():
            reader.text = ""
        self._signal(signal.SIGUSR1)
        self._pump_until(
            lambda: all(OUTERMOST.search(r.text) for r in readers.values() if r.rank not in self.exits), STACKS
        )
        self.stacks = {rank: readable_stack(reader.text) for rank, reader in readers.items()}

    def close(self):
        """Drop the run: the engine ends whatever is left of it."""
        self.engine.close()
        for reader in self.readers.values():
            reader.finish()
        self.output.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def failure(rank, received):
    """The Failure that a rank has sent; its exception is None if this process cannot load it."""
    text, pickled, when = shared_message.opened(received)
    try:
        exception = pickle.loads(pickled) if pickled else None
    except Exception:  # loading runs the exception's own code
        exception = None
    return errors.Failure(rank, when, text, exception)


def readable_stack(dump):
    """faulthandler's text, innermost call last as in a traceback, with source lines, ours left out.

    Of several threads it shows the main one, which faulthandler writes last; another where that waits for threads.
    """
    for thread in reversed(dump.split("(most recent call first)")):
        shown = []
        for file, number, function in reversed(re.findall(r'File "(.*)", line (\d+) in (.*)', thread)):
            if not file.startswith(errors.OURS) and file not in ("<string>", threading.__file__):
                source = getline(file, int(number)).strip()
                shown.append(f'  File "{file}", line {number}, in {function}' + (f"\n    {source}" if source else ""))
        if shown:
            break
    if len(shown) > MOST_FRAMES:  # of a rank that was importing something, for example
        shown[: len(shown) - MOST_FRAMES] = [f"  … {len(shown) - MOST_FRAMES} calls further out"]
    return errors.in_cells("\n".join(shown))
