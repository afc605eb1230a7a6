"""Watches ranks that are kept: hands out calls, collects answers, interrupts them all when one has failed."""

import time

from .. import errors, payload, scope
from ..language import in_english, marked
from ..supervisor import GRACE, LOST, SETTLE, TICK, Supervisor, loaded
from . import debug, parcel

PATIENCE = 10.0  # s in which an interrupted rank has to come back before the next call
AGAIN = 0.5  # s between two interrupts of a rank that does not come back
FAREWELL = 1.0  # s in which idle ranks end by themselves


class Crew(Supervisor):
    """The processes of one `helpers.ranks`. One thread at a time may use it."""

    def __init__(self, server, nprocs, file, on_event=None):
        self.number, self.called, self.replies, self.raised = 0, {}, {}, []
        self.questions, self.known = [], {}  # what pdb on a rank asks; the cells whose source a rank has
        self.name, self.began = "", 0.0  # of the call
        super().__init__(server, nprocs, file, on_event)

    @property
    def waiting(self):
        """The ranks that have not answered the last call."""
        return sorted(set(self.called) - set(self.replies))

    # -- what ranks say --------------------------------------------------------------------------

    def _take(self, rank, kind, rest):
        if kind == "ask":
            self.questions.append((rank, rest[0]))
        elif kind == "say":
            scope.printed(None, "stdout", rest[0])
        elif kind != "answer":
            super()._take(rank, kind, rest)
        else:
            number, how, head = rest
            received = parcel.receive(self.channels[rank], head)
            if number == self.number:
                self.replies[rank] = how, received
                if how == "failure":
                    text, carried, when = parcel.opened(received)
                    self.raised.append(errors.Failure(rank, when, text, loaded(carried)))

    def _drain_output(self, ranks):
        """Show all that they printed before their answers."""
        for rank in ranks:
            self._drain(rank)
        for tail in self.readers.values():
            if tail.rank in ranks:
                tail.finish()

    # -- calls -----------------------------------------------------------------------------------

    def call(self, ranks, made, name, timeout=None):
        """Have `ranks` perform a call (a Parcel); {rank: what it returned, for parcel.opened}.

        Raises:
            RankError: a rank raised an exception; the others were interrupted, and all are still there.
            RankTimeout: `timeout` has passed; all were interrupted.
            Ended: a rank has ended, and so have all the others.
        """
        self._send(ranks, made, name)
        end = None if timeout is None else time.monotonic() + timeout
        while self.waiting and not self.raised and not self.failures:
            scope.raise_if_stopped()
            if self.questions:
                asked = time.monotonic()
                self._answer(*self.questions.pop(0))
                end = end and end + time.monotonic() - asked
            left = TICK if end is None else min(TICK, end - time.monotonic())
            if left <= 0:
                raise self._too_late(timeout)
            self.pump(left)
        self._drain_output(self.called)
        if self.failures or self.raised:
            raise self._failed()
        values = {rank: received for rank, (_, received) in self.replies.items()}
        self.replies = dict.fromkeys(values)  # the caller alone keeps what may be large
        return values

    def _send(self, ranks, made, name):
        self.settle()
        self.number += 1
        self.called, self.replies, self.raised, self.questions = dict.fromkeys(ranks), {}, [], []
        self.name, self.began = name, time.monotonic()
        sources = payload.cell_sources()
        for rank in ranks:
            known = self.known.setdefault(rank, set())
            new = {name: sources[name] for name in sources.keys() - known}
            known.update(new)
            try:
                made.send(self.channels[rank], "call", self.number, new)
            except OSError:  # it has ended: the server says so in a moment
                self.called.pop(rank)
                self._pump_until(lambda: bool(self.failures), LOST)

    def _failed(self):
        """The error of the call, once the ranks are idle or have ended."""
        self._pump_until(lambda: bool(self.failures), SETTLE)
        if not self.failures and errors.first_failure(self.raised).secondary:
            self._pump_until(lambda: bool(self.failures), LOST)
        if self.failures:
            return self.lost()
        finished = {rank for rank, (how, _) in self.replies.items() if how == "value"}
        self.interrupt()
        return errors.rank_error(self.raised, finished, len(self.called), kept=True)

    def _too_late(self, timeout):
        waiting = self.waiting
        self.ask_for_stacks()
        self.interrupt()
        self._drain_output(self.called)
        return errors.timeout_error(
            timeout, self.stacks, waiting, self.nprocs, marked("they were interrupted, and keep what they hold")
        )

    def _answer(self, rank, text):
        """Show what pdb on a rank says, and send what is typed."""
        self._drain_output(self.called)
        line = debug.typed(rank, text)
        try:
            self.channels[rank].send(("input", line))
        except OSError:  # it has ended, and its failure follows
            pass

    # -- interrupting ----------------------------------------------------------------------------

    def interrupt(self):
        """Have all ranks give up the call; those that take longer are waited for before the next one."""
        self._interrupt_once()
        self._pump_until(lambda: not self.waiting or self.failures, GRACE)

    def _interrupt_once(self):
        for rank in self.waiting:
            try:
                self.channels[rank].send(("interrupt", self.number))
            except OSError:
                continue

    def settle(self):
        """Wait until no rank is busy with an earlier call. Raises Ended when a rank cannot be brought back."""
        self.pump(0)
        end = time.monotonic() + PATIENCE
        while self.waiting and not self.failures:
            if time.monotonic() > end:
                raise self._stubborn()
            scope.raise_if_stopped()
            self._interrupt_once()
            self._pump_until(lambda: not self.waiting or self.failures, AGAIN)
        if self.failures:
            raise self.lost()

    def _stubborn(self):
        rank = self.waiting[0]
        self.ask_for_stacks()
        self.stop()
        told = marked(
            f"rank {rank} was interrupted and did not stop {self.name} within {PATIENCE:g} s, so all ranks were "
            "stopped, and what they held is lost. Where it stood:"
        )
        return Ended(f"{told}\n\n{errors.stacks_text(self.stacks, [rank])}", rank)

    def lost(self):
        """The error when a rank has ended, which ends them all."""
        self.stop()
        error = errors.rank_error(self.failures, (), self.nprocs)
        lost = marked("What the ranks held is lost.")
        return Ended(f"{in_english(error)}\n\n{lost}", error.rank, exitcode=error.exitcode)

    def stop(self, grace=0):
        """End every rank by force; a signal that asks would not stop what a kept rank does."""
        super().stop(grace)

    def farewell(self):
        """End all ranks: idle ones by themselves, others by force."""
        if not self.failures and self._ended() is False:
            self._interrupt_once()
            for channel in self.channels.values():
                try:
                    channel.send(("close",))
                except OSError:
                    continue
            self.called = {}
            self._pump_until(self._ended, FAREWELL)
        self.stop()


class Ended(errors.RankError):
    """A rank has ended, and with it the others; they cannot be called any more."""


def packed(fn, args, kwargs):
    """The Parcel of a call. Raises TypeError, which names what cannot be sent."""
    return payload.packed_call(fn, args, kwargs, parcel.Parcel)
