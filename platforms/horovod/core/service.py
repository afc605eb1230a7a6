"""Rank 0's service: it receives the messages of all ranks, sends out the decisions, and notices lost ranks."""

import os
import sys
import threading

from . import pulse, wire
from .coordinator import Coordinator
from .requests import listed


class Farewells:
    """Which ranks are leaving, and which ranks still need them; not thread-safe.

    Nobody closes a connection that another rank still reads from, however slow that rank is: a rank that leaves
    announces it, rank 0 forwards the announcement in one order with the decisions, and each rank that reaches it has
    run everything decided before and confirms. After all confirmations the leaving rank is free.

    Args:
        size: world size. deliver: called with (rank, message).
    """

    def __init__(self, size, deliver):
        self._here, self._deliver = set(range(size)), deliver
        self._behind = {}  # leaving rank -> ranks that may still run a collective with it

    def leaves(self, rank):
        """A rank has announced that it leaves."""
        if rank in self._here:
            self._behind[rank] = set(self._here)

    def passed(self, rank, leaver):
        """A rank has run everything that was decided before `leaver` left."""
        if leaver in self._behind:
            self._behind[leaver].discard(rank)
            self._let_go()

    def gone(self, rank):
        """A rank's connection has ended."""
        self._here.discard(rank)
        self._behind.pop(rank, None)
        for behind in self._behind.values():
            behind.discard(rank)
        self._let_go()

    def _let_go(self):
        for leaver in [leaver for leaver, behind in self._behind.items() if not behind]:
            self._deliver(leaver, {"free": leaver})
            self.gone(leaver)  # decisions made after it left do not include it


class Service:
    """Runs in the process of rank 0.

    Args:
        channels: {rank: Channel} of the other ranks. size: world size. places: {rank: its process and host}.
    """

    def __init__(self, channels, size, places):
        fusion = int(os.environ.get("HOROVOD_FUSION_THRESHOLD", 2**27))
        self.channels, self.size = channels, size
        capacity = int(os.environ.get("HOROVOD_CACHE_CAPACITY", 1024))
        self.coordinator = Coordinator(size, self._deliver, fusion, capacity)
        self.farewells = Farewells(size, self._deliver)
        self.engine = None
        self._lock = threading.RLock()
        self._out = {}
        self._here = threading.Condition(self._lock)
        self._present, self._heard = set(channels), 0
        self._ended = threading.Event()
        self._frozen = {}  # rank -> why it was given up
        self._warn, self._give_up = pulse.stall_times()
        self.pulse = pulse.Pulse(channels, places, (self._warn, self._give_up), self._give_rank_up)

    def start(self, engine):
        """Start to read from the ranks and to watch for collectives that wait too long."""
        self.engine = engine
        for rank in self.channels:
            threading.Thread(target=self._listen, args=(rank,), daemon=True, name=f"hvd-rank{rank}").start()
        if self._warn or self._give_up:
            threading.Thread(target=self._watch, daemon=True, name="hvd-stall").start()
        self.pulse.start()

    def take(self, rank, message):
        """Handle a message of a rank.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the message is malformed.
        """
        if message == []:  # a sign of life
            return
        with self._lock:
            self._heard += 1
            if "ask" in message:
                hits = [(number, int(bits, 16)) for number, bits in message.get("hits", ())]
                self.coordinator.ask(rank, message["ask"], hits)
            elif "blocked" in message:
                self.coordinator.blocked(rank, message["blocked"])
            elif "post" in message:
                for each in range(self.size):
                    self._deliver(each, {"post": message["post"]})
            elif "failed" in message:
                self._fail(message["failed"], [rank] if "rank" in message else [])
            elif "bye" in message:
                self.farewells.leaves(rank)
                self.coordinator.leave(rank, message["bye"] == "again")
            elif "past" in message:
                self.farewells.passed(rank, message["past"])
            else:
                raise ValueError(f"unknown message {sorted(message)}")
            self._send()

    def _deliver(self, rank, message):
        self._out.setdefault(rank, []).append(message)

    def _send(self):
        """Send the collected messages; the caller holds the lock, so all ranks get the decisions in one order."""
        out, self._out = self._out, {}
        own = out.pop(0, ())
        for rank, messages in out.items():
            self._send_to(self.channels[rank], messages)
        self.engine.receive(own)  # last: its thread begins at once, and would hold the GIL while the others wait

    def _send_to(self, channel, messages):
        try:
            channel.send(messages)
        except wire.TooLong:
            if len(messages) == 1:
                channel.close()  # the rank cannot receive this decision; closing makes it a lost rank
            else:
                self._send_to(channel, messages[: len(messages) // 2])
                self._send_to(channel, messages[len(messages) // 2 :])
        except OSError:
            pass  # the thread that reads from this rank notices it too

    def _listen(self, rank):
        why = None
        try:
            while True:
                self.take(rank, self.channels[rank].receive())
        except wire.Closed:
            pass
        except Exception as error:
            why = f"rank {rank} is cut off: its connection carried what no rank sends ({type(error).__name__}: {error})"
            self.channels[rank].close()
        with self._lock:
            self.farewells.gone(rank)
            self._present.discard(rank)
            self._here.notify_all()
            if rank not in self.coordinator.left and not self._ended.is_set():
                gone = f"rank {rank} is gone: its process died, was killed, or ended without hvd.shutdown()"
                self._abort(why or self._frozen.get(rank, gone), [rank])
            self._send()

    def _give_rank_up(self, rank, why):
        """End the job because a rank is silent. Its thread does the rest: whoever holds the lock may wait for it."""
        self._frozen[rank] = why
        self.channels[rank].offer([{"lost": [rank], "why": why}])
        self.channels[rank].close()

    def _fail(self, why, ranks):
        silent = [] if ranks else self.pulse.silent()
        self._abort(f"{why} ({listed(silent)} showed no sign of life)" if silent else why, ranks or silent)

    def _abort(self, why, ranks):
        for rank in range(self.size):
            self._deliver(rank, {"lost": ranks, "why": why})

    def _watch(self):
        shortest = min(seconds for seconds in (self._warn, self._give_up) if seconds)
        while not self._ended.wait(min(1.0, shortest / 4)):
            with self._lock:
                if self._warn:
                    self._report()
                stalled = self.coordinator.stalled(self._give_up) if self._give_up else ()
                silent = self.pulse.silent()  # the pulse ends the job because of those, and names their processes
                stalled = [one for one in stalled if not set(one[2]) & set(silent)]
                if stalled:
                    (_, name), came, missing = stalled[0]
                    self._abort(
                        f"'{name}' waited longer than {self._give_up:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS) for "
                        f"{listed(missing)}; {listed(came)} had submitted it",
                        missing,
                    )
                    self._send()
                    return

    def _report(self):
        fresh = [
            (key, came, missing)
            for key, came, missing in self.coordinator.stalled(self._warn)
            if not self.coordinator.waiting[key].reported
        ]
        if not fresh:
            return
        lines = [
            f"hvd: stalled for more than {self._warn:g} s: some ranks have submitted tensors that others have not. "
            "Do all ranks take the same path through the program? (Uneven data: hvd.join().)"
        ]
        for key, came, missing in fresh:
            self.coordinator.waiting[key].reported = True
            lines.append(f"hvd:   '{key[1]}': missing on {listed(missing)}; submitted by {listed(came)}")
        print("\n".join(lines), file=sys.stderr, flush=True)

    def stop(self):
        """Wait while other ranks are present and sending (unless the job is lost), then close all connections."""
        with self._lock:
            heard = -1
            while self._present and not self.engine.lost and heard != self._heard:
                heard = self._heard
                self._here.wait_for(lambda: not self._present or self.engine.lost, self.engine.patience)
            self._ended.set()
        self.pulse.stop()
        for channel in self.channels.values():
            channel.close()
