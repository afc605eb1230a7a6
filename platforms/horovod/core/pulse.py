"""Signs of life. A rank that is stopped keeps its connections open, so that nothing but its silence shows it.

On every connection both ends send an empty message several times within the stall time. Rank 0 watches all other
ranks, and they all watch rank 0, so a rank that is alive names the one that is not.
"""

import os
import sys
import threading
import time

BEATS = 8  # signs of life within the shorter one of the two stall times
SELDOM = 1.0  # seconds between two signs of life at most


def stall_times():
    """(seconds of silence after which a rank is named, after which the job ends); 0 stands for never."""
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        return 0.0, 0.0
    return (
        float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS", 60)),
        float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0)),
    )


class Pulse:
    """The signs of life on one rank's connections, from `start()` to `stop()`.

    Args:
        channels: {rank: Channel}. places: {rank: its process and host, as a text}.
        times: as `stall_times` returns them, the same on all ranks. end: called with (rank, why) to end the job.

    Attributes: give_up, the second of the times; gave_up, whether a rank was silent for so long.
    """

    def __init__(self, channels, places, times, end):
        self._channels, self._places, self._end_job = dict(channels), places, end
        self._warn, self.give_up = times
        self.gave_up = False
        self.interval = min([SELDOM, *(seconds / BEATS for seconds in times if seconds)])
        self._named = set()
        self._stopped = threading.Event()

    def start(self):
        """Start to send and to watch, unless both stall times are 0."""
        if self._channels and (self._warn or self.give_up):
            threading.Thread(target=self._work, daemon=True, name="hvd-pulse").start()

    def stop(self):
        """Send and watch no longer."""
        self._stopped.set()

    def silent(self):
        """The ranks that have missed three signs of life."""
        now = time.monotonic()
        watched = self._warn or self.give_up
        return [rank for rank in list(self._channels) if watched and self._silence(rank, now) > 3 * self.interval]

    def _silence(self, rank, now):
        """Seconds since the last message; 0 while there is one that this rank has not read yet."""
        channel = self._channels.get(rank)
        try:
            return 0 if channel is None or channel.readable() else now - channel.heard
        except ValueError:  # closed
            return 0

    def _work(self):
        last = time.monotonic()
        while not self._stopped.wait(self.interval):
            now = time.monotonic()
            missed = now - last - 2 * self.interval  # this rank was stopped itself: that is no silence of the others
            for channel in self._channels.values() if missed > 0 else ():
                channel.heard = min(now, channel.heard + missed)
            last = now
            for rank, channel in list(self._channels.items()):
                try:
                    channel.offer([])
                    self._watch(rank, self._silence(rank, now))
                except (OSError, ValueError):  # closed; the thread that reads from it knows why
                    del self._channels[rank]

    def _watch(self, rank, silence):
        who = f"rank {rank} ({self._places[rank]})"
        if self.give_up and silence > self.give_up:
            why = (
                f"{who} has shown no sign of life for {self.give_up:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS): its "
                "process is stopped, or its interpreter is blocked"
            )
            self.gave_up = True
            print(f"hvd: {why}; the job ends", file=sys.stderr, flush=True)
            self._end_job(rank, why)
        elif self._warn and silence > self._warn - self.interval and rank not in self._named:
            self._named.add(rank)
            print(
                f"hvd: {who} has shown no sign of life for {silence:.1f} s: its process is stopped (state T in ps; "
                "kill -CONT lets it go on), or its interpreter is blocked",
                file=sys.stderr,
                flush=True,
            )
        elif rank in self._named and silence < 2 * self.interval:
            self._named.discard(rank)
            print(f"hvd: rank {rank} shows signs of life again", file=sys.stderr, flush=True)
