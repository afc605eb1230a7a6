"""Watches persistent ranks: hands out calls, collects answers, interrupts them all when one has failed."""

import time
from contextlib import closing

from ..launcher import context, errors, payload, surroundings
from ..launcher.shared_message import SharedMessage
from ..launcher.supervisor import GRACE, LOST, SETTLE, Supervisor, failure
from . import worker

PATIENCE = 10.0  # s in which an interrupted rank has to come back before the next call
AGAIN = 0.5  # s between two interrupts of a rank that does not come back
FAREWELL = 1.0  # s in which idle ranks end by themselves


class Ended(errors.RankError):
    """A rank has ended, and with it the others; they cannot be called any more."""


class RankPool(Supervisor):
    """The processes of one `helpers.ranks`. One thread at a time may use it."""

    def __init__(self, engine, nprocs, message, on_event=None, group=True):
        self.group, self.grouped, self.attempt = group, False, 0
        self.number, self.name, self.called = 0, "", ()  # of the last call
        self.values, self.raised = {}, []  # what came of it
        self.sources = {rank: set() for rank in range(nprocs)}  # the cells whose source a rank has
        super().__init__(engine, nprocs, message, on_event)
        self.waiting = []  # the ranks that have not answered the last call
        self.fate = f"the {nprocs} ranks were interrupted, and keep what they hold"

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
        sources, around = payload.cell_sources(), surroundings.now()
        for rank in self.called:
            new = {cell: sources[cell] for cell in sources.keys() - self.sources[rank]}
            self.sources[rank].update(new)
            try:
                message.send(self.engine.channels[rank], "call", self.number, (new, around))
            except OSError:  # it has ended: the server says so in a moment
                continue
        self._wait(timeout)
        self._drain_output()
        values, self.values = self.values, {}  # the caller alone keeps what may be large
        return values

    def _on_answer(self, rank, number, how, received):
        if number == 0:
            super()._on_answer(rank, number, how, received)
        elif number == self.number:
            self.waiting = [one for one in self.waiting if one != rank]  # an interrupt may have come in between
            if how == "value":
                self.values[rank] = received
            elif how == "failure":
                self.raised.append(failure(rank, received))

    def _any_failed(self):
        return bool(self.failures or self.raised)

    def _drain_output(self):
        """Show all that the ranks printed before their answers."""
        for rank in self.called:
            self._handle(self.engine.drain(rank))
        for reader in self.readers.values():
            reader.finish()
        self.output.end()

    # -- how a call ends that does not end well ----------------------------------------------------

    def _failed(self):
        """The error of the call, once the ranks are idle or have ended."""
        secondary = self.raised and errors.first_failure(self.raised).secondary
        self._pump_until(lambda: self.failures, LOST if secondary else SETTLE)
        if self.failures:
            return self.lost()
        finished = set(self.values)
        self.end_call()
        return errors.rank_error(self.raised, finished, len(self.called), kept=True)

    def end_call(self):
        self.interrupt()
        self._drain_output()

    def lost(self):
        """The error when a rank has ended, which ends them all."""
        self.stop()
        error = errors.rank_error(self.failures, (), self.nprocs)
        return Ended(f"{error}\n\nWhat the ranks held is lost.", error.rank, exitcode=error.exitcode)

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
            self._tell(range(self.nprocs), "close")
            self.waiting = []
            self._pump_until(self._ended, FAREWELL)
        self.stop()


def packed(fn, args=(), kwargs=None):
    """The SharedMessage of a call. Raises TypeError, which names what cannot be sent."""
    return payload.packed_call(fn, args, kwargs or {}, SharedMessage)
