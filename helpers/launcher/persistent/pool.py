"""Watches persistent ranks: hands out calls, collects answers, interrupts them all when one has failed."""

import time
from contextlib import closing

from .. import context, errors, payload, surroundings
from ..supervisor import GRACE, LOST, SETTLE, TICK, Supervisor, loaded
from . import shared_message, worker

PATIENCE = 10.0  # s in which an interrupted rank has to come back before the next call
AGAIN = 0.5  # s between two interrupts of a rank that does not come back
FAREWELL = 1.0  # s in which idle ranks end by themselves


class Ended(errors.RankError):
    """A rank has ended, and with it the others; they cannot be called any more."""


class RankPool(Supervisor):
    """The processes of one `helpers.ranks`. One thread at a time may use it."""

    def __init__(self, server, nprocs, file, on_event=None, group=True):
        self.group, self.grouped, self.attempt = group, False, 0
        self.number, self.name, self.called, self.deadline = 0, "", (), None  # of the last call
        self.values, self.raised, self.waiting = {}, [], []  # what came of it, and the ranks that have not answered
        self.sources = {rank: set() for rank in range(nprocs)}  # the cells whose source a rank has
        super().__init__(server, nprocs, file, on_event)

    def call(self, ranks, message, name, timeout=None):
        """Have `ranks` perform the call in `message`; {rank: what it returned, for shared_message.opened}.

        If the call before did not end well, all of them join a new process group first.

        Raises:
            RankError: a rank raised an exception; the others were interrupted, and all are still there.
            RankTimeout: `timeout` has passed; all were interrupted.
            Ended: a rank has ended, and so have all the others.
            KeyboardInterrupt: the stop button; all were interrupted.
        """
        if not self.grouped:
            self.regroup(timeout)
        self.grouped = False
        values = self._perform(ranks, message, name, timeout)
        self.grouped = True
        return values

    def regroup(self, timeout):
        """Have all ranks leave their groups and join a new one."""
        self.attempt += 1
        with closing(packed(worker.join, (self.attempt, self.group))) as message:
            self._perform(range(self.nprocs), message, "joining the process group", timeout)
        self.grouped = True

    def _perform(self, ranks, message, name, timeout):
        self.settle()
        self.number, self.name, self.called, self.waiting = self.number + 1, name, list(ranks), list(ranks)
        self.values, self.raised = {}, []
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout
        sources, around = payload.cell_sources(), surroundings.now()
        for rank in self.called:
            new = {cell: sources[cell] for cell in sources.keys() - self.sources[rank]}
            self.sources[rank].update(new)
            try:
                message.send(self.channels[rank], "call", self.number, (new, around))
            except OSError:  # it has ended: the server says so in a moment
                continue
        try:
            while self.waiting and not self.raised and not self.failures:
                context.raise_if_stopped()
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise self._too_late(timeout)
                self.pump(min(TICK, left))
        except context.Stopped:
            raise
        except KeyboardInterrupt:
            raise self._interrupted() from None
        self._drain_output()
        if self.failures or self.raised:
            raise self._failed()
        values, self.values = self.values, {}  # the caller alone keeps what may be large
        return values

    def _take(self, rank, kind, rest):
        if kind == "ask":
            self._ask(rank, rest[0])
        elif kind != "answer":
            super()._take(rank, kind, rest)
        else:
            number, how, head = rest
            received = shared_message.receive(self.channels[rank], head)
            if number == self.number:
                self.waiting.remove(rank)
                if how == "value":
                    self.values[rank] = received
                elif how == "failure":
                    text, carried, when = shared_message.opened(received)
                    self.raised.append(errors.Failure(rank, when, text, loaded(carried)))

    def _ask(self, rank, text):
        """Show what pdb on a rank says, and send what the reader types; meanwhile the time of the call stands still."""
        asked = time.monotonic()
        self._drain_output()
        context.printed(None, "stdout", text)
        try:
            line = input(f"[rank {rank}] (Pdb) ")
        except Exception as error:  # IPython's own, where the front end cannot ask; EOFError in a script
            line = None
            text = f"rank {rank} waits in pdb, but nobody can type here ({error}): it goes on\n"
            context.printed(None, "stderr", text)
        self._tell([rank], "input", line)
        self.deadline += time.monotonic() - asked

    def _tell(self, ranks, *message):
        for rank in ranks:
            try:
                self.channels[rank].send(message)
            except OSError:  # it has ended: the server says so in a moment
                continue

    def _drain_output(self):
        """Show all that the ranks printed before their answers."""
        for rank in self.called:
            self._drain(rank)
        for tail in self.readers.values():
            tail.finish()

    # -- how a call ends that does not end well ----------------------------------------------------

    def _failed(self):
        """The error of the call, once the ranks are idle or have ended."""
        secondary = self.raised and errors.first_failure(self.raised).secondary
        self._pump_until(lambda: self.failures, LOST if secondary else SETTLE)
        if self.failures:
            return self.lost()
        finished = set(self.values)
        self.interrupt()
        return errors.rank_error(self.raised, finished, len(self.called), kept=True)

    def _too_late(self, timeout):
        waiting = self._interrupt_for_stacks()
        others = "they were interrupted, and keep what they hold"
        return errors.timeout_error(timeout, self.stacks, waiting, self.nprocs, others)

    def _interrupted(self):
        if waiting := self._interrupt_for_stacks():
            context.printed(None, "stderr", "interrupted; " + errors.stacks_text(self.stacks, waiting) + "\n")
        return errors.interrupted(f"{self.name} was interrupted; the {self.nprocs} ranks keep what they hold")

    def lost(self):
        """The error when a rank has ended, which ends them all."""
        self.stop()
        error = errors.rank_error(self.failures, (), self.nprocs)
        return Ended(f"{error}\n\nWhat the ranks held is lost.", error.rank, exitcode=error.exitcode)

    def _interrupt_for_stacks(self):
        """Ask where the ranks stand that have not answered, interrupt them, and return which these are."""
        waiting = list(self.waiting)
        self.ask_for_stacks()
        self.interrupt()
        self._drain_output()
        return waiting

    def interrupt(self, seconds=GRACE):
        """Have all ranks give up the call; those that take longer are waited for before the next one."""
        self._tell(self.waiting, "interrupt", self.number)
        self._pump_until(lambda: not self.waiting or self.failures, seconds)

    def settle(self):
        """Wait until no rank is busy with an earlier call. Raises Ended when a rank cannot be brought back."""
        self.pump(0)
        end = time.monotonic() + PATIENCE
        while self.waiting and not self.failures:
            if time.monotonic() > end:
                rank = self.waiting[0]
                self.ask_for_stacks()
                self.stop()
                raise Ended(
                    f"rank {rank} was interrupted and did not stop {self.name} within {PATIENCE:g} s, so all ranks "
                    "were stopped, and what they held is lost.\n\nWhere it stood:\n"
                    + errors.stacks_text(self.stacks, [rank]),
                    rank,
                )
            context.raise_if_stopped()
            self.interrupt(AGAIN)
        if self.failures:
            raise self.lost()

    def stop(self, grace=0):
        """End every rank by force; a signal that asks would not stop what a persistent rank does."""
        super().stop(grace)

    def farewell(self):
        """End all ranks: idle ones by themselves, others by force."""
        if not self.failures and not self._ended():
            self._tell(self.waiting, "interrupt", self.number)
            self._tell(self.channels, "close")
            self.waiting = []
            self._pump_until(self._ended, FAREWELL)
        self.stop()


def packed(fn, args=(), kwargs=None):
    """The SharedMessage of a call. Raises TypeError, which names what cannot be sent."""
    return payload.packed_call(fn, args, kwargs or {}, shared_message.SharedMessage)
