"""The watch: a thread that tells the other ranks, through the job's store, that this one lives, what it waits for, and
why it leaves; and that names a rank which is lost, stands still, or does not come to a collective.

A line `hvd: …` on stderr names it after HOROVOD_STALL_CHECK_TIME_SECONDS, and an error in all other ranks after
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS. A process of this host that has ended is found at once.
"""

import json
import os
import sys
import threading
import time

from . import place
from .requests import listed

TICK = 0.1  # seconds between two looks at the store
SELDOM = 1.0  # seconds between two signs of life at most
BEATS = 8  # signs of life within the shorter one of the stall times
GRACE = 1.0  # seconds that what is under way may take to end once a rank has left
BLAME = 20  # looks for the rank to blame for a broken connection
CANNOT = "its process is stopped (state T in ps; kill -CONT lets it go on), or its interpreter is blocked"


def stall_times():
    """(seconds after which a rank is named, after which the job ends); 0 stands for never."""
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        return 0.0, 0.0
    warn, give_up = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    return float(os.environ.get(warn, 60)), float(os.environ.get(give_up, 0))


class Watch:
    """See the module. `about`: {rank: {"host", "process"}}; `serves`: whether this process serves the store."""

    def __init__(self, job, store, about, serves):
        self._job, self._store, self._about, self._serves = job, store, about, serves
        self._warn, self._give_up = stall_times()
        self._interval = min([SELDOM, *(seconds / BEATS for seconds in (self._warn, self._give_up) if seconds)])
        self._read, self._hearing, self._beats, self._next = 0, threading.Lock(), 0, 0.0
        self._heard = {}  # rank -> (its last sign of life, when it came), while this rank waits
        self._named = set()  # ranks and requests that were named already
        self._still = {}  # rank of this host -> since when it is stopped
        self._looked, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="hvd-watch")
        if job.size > 1:
            store.add("events", 0)
            self._thread.start()

    # What other threads call

    def post(self, **event):
        """Tell all ranks; whether that worked."""
        try:
            self._store.set(f"event/{self._store.add('events', 1) - 1}", json.dumps(event))
        except (RuntimeError, OSError):
            return False
        return True

    def leave(self, again):
        """Tell that this rank leaves, and end; who serves the store waits until all know why."""
        self._over.set()
        if self._job.size == 1:
            return
        why, lost = self._job.lost or (None, ())
        if 0 not in self._job.left and 0 not in lost:  # else nobody serves the store
            try:
                self._say_goodbye(why is None, again, set(range(self._job.size)) - set(lost))
            except (RuntimeError, OSError):
                pass
        self._thread.join(2 * GRACE)  # a thread that is inside of torch when Python ends would abort the process

    def _say_goodbye(self, well, again, others):
        if well:
            self.post(left=self._job.rank, again=again)
        self._store.set(f"knows/{self._job.rank}", "")  # how the job ends
        until = time.monotonic() + 2 * GRACE
        while self._serves and time.monotonic() < until:
            if all(place.has(self._store, f"knows/{rank}") for rank in others):
                return
            time.sleep(TICK / 10)

    def glance(self, ranks):
        """Look at the processes of this host, without the store, while a thread waits for `ranks`."""
        now = time.monotonic()
        here = self._about[self._job.rank]["host"]
        for rank in ranks:
            if rank in self._job.left or self._about[rank]["host"] != here or rank == self._job.rank:
                continue
            state = place.state(self._about[rank]["process"])
            # Once rank 0 has left, nobody serves the store: `rank` may have said unheard that it leaves, too.
            if state == "Z" and not self._has_left(rank) and 0 not in self._job.left:
                text = f"rank {rank} is gone: its process died, was killed, or ended without hvd.shutdown()"
                return self._lose([rank], text)
            if state == "T":
                self._stands_still(rank, now - self._still.setdefault(rank, now))
            elif self._still.pop(rank, None):
                self._alive_again(rank)

    def _has_left(self, rank):
        """Whether a process that has ended had said so."""
        try:
            self._hear()
        except (RuntimeError, OSError):
            pass
        return rank in self._job.left

    def blame(self):
        """([ranks], why) of a broken connection: who has left, ended or given a reason; ([…], None) if nobody has."""
        for _ in range(BLAME):  # not by the clock: on a busy machine this waits longer, as the other threads do
            self.glance(range(self._job.size))
            if self._job.lost:
                return self._job.lost[1], self._job.lost[0]
            if self._job.left:
                return sorted(self._job.left), self._job.says_goodbye(self._job.left)
            time.sleep(TICK)
        return self.silent(), None

    def silent(self):
        """The ranks that have missed three signs of life."""
        now = time.monotonic()
        return [rank for rank, (_, when) in list(self._heard.items()) if now - when > 3 * self._interval] + [
            rank for rank in self._still if rank not in self._heard
        ]

    # The thread

    def _work(self):
        while not self._over.wait(TICK):
            try:
                self._look()
            except (RuntimeError, OSError):
                if self._over.is_set() or self._serves:
                    return
                why = "rank 0 is gone, or the launcher: the store of the job does not answer"
                busy = any(lane.oldest()[0] for lane in list(self._job.lanes.values()))
                return self._job.abort(why, [0]) if busy else None

    def _look(self):
        now = time.monotonic()
        if now - self._looked > 2 * TICK + self._interval:  # this rank was stopped: that is no silence of the others
            self._heard.clear()
        self._looked = now
        self._hear()
        if now >= self._next and not self._over.is_set():
            self._next, self._beats = now + self._interval, self._beats + 1
            self._store.set(f"beat/{self._job.rank}", json.dumps(self._state()))
        if self._over.is_set():
            return
        waits = [(lane, *lane.oldest()) for lane in list(self._job.lanes.values())]
        waits = [(lane, entry, number) for lane, entry, number in waits if entry is not None]
        if any(now - entry.submitted > self._interval for _, entry, _ in waits):
            self._listen(now, sorted({rank for lane, _, _ in waits for rank in lane.ranks}))
            for lane, entry, number in waits:
                self._judge(now, lane, entry, number)
        else:
            self._heard.clear()

    def _hear(self):
        """Read what the ranks have told since the last time."""
        with self._hearing:
            # Never wait for an event: its sender may be this process, which uses the same connection.
            while self._read < int(self._store.get("events")) and place.has(self._store, f"event/{self._read}"):
                event = json.loads(self._store.get(f"event/{self._read}"))
                self._read += 1
                self._take(event)

    def _take(self, event):
        if "lost" in event:
            self._job.abort(event["why"], event["lost"])
            self._store.set(f"knows/{self._job.rank}", "")  # how the job ends
        elif event["left"] != self._job.rank:
            self._job.rank_left(event["left"], event["again"])
            if event["left"] == 0:  # it may serve the store, and waits until nobody uses that
                self._store.set(f"knows/{self._job.rank}", "")  # how the job ends
                self._over.set()

    def _state(self):
        lanes = list(self._job.lanes.values())
        waiting = next((entry.request["name"] for entry, _ in (lane.oldest() for lane in lanes) if entry), None)
        counts = {lane.key: 1 << 60 if lane.has_joined() else lane.submitted for lane in lanes}
        return {"beat": self._beats, "counts": counts, "waits": waiting}

    def _listen(self, now, ranks):
        """Read the signs of life of `ranks`."""
        self._states = {}
        for rank in ranks:
            if rank == self._job.rank or not place.has(self._store, f"beat/{rank}"):
                continue
            self._states[rank] = state = json.loads(self._store.get(f"beat/{rank}"))
            if self._heard.get(rank, (None, 0))[0] != state["beat"]:
                self._heard[rank] = state["beat"], now
                self._alive_again(rank)

    def _judge(self, now, lane, entry, number):
        """Name who keeps a lane's oldest request waiting."""
        waited = now - entry.submitted
        if any(now - when > GRACE for when in lane.gone.values()):
            self._job.end_lane(lane)
            return
        for rank in lane.ranks:
            silence = now - self._heard[rank][1] if rank in self._heard else 0
            if rank not in self._still and rank not in self._job.left and silence > 3 * self._interval:
                self._stands_still(rank, silence)
        missing = [rank for rank in self._states if rank in lane.ranks]
        missing = [rank for rank in missing if self._states[rank]["counts"].get(lane.key, 0) <= number]
        name, silent = entry.request["name"], self.silent()
        if not missing or set(missing) & set(silent):
            return
        if self._warn and waited > self._warn and (lane.key, name, number) not in self._named:
            self._named.add((lane.key, name, number))
            others = {rank: self._states[rank]["waits"] for rank in missing if self._states[rank]["waits"]}
            wait = "".join(f"; rank {rank} waits for '{other}'" for rank, other in others.items())
            say(
                f"stalled for more than {self._warn:g} s: '{name}' is missing on {listed(missing)}, and rank "
                f"{self._job.rank} has asked for it{wait}. Do all ranks take the same path through the program? "
                "(Uneven data: hvd.join().)"
            )
        if self._give_up and waited > self._give_up:
            self._lose(
                missing,
                f"'{name}' waited longer than {self._give_up:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS) for "
                f"{listed(missing)}; rank {self._job.rank} had asked for it",
            )

    def _stands_still(self, rank, seconds):
        who = f"rank {rank} (process {self._about[rank]['process']} on {self._about[rank]['host'].partition('/')[0]})"
        if self._give_up and seconds > self._give_up:
            limit = f"{self._give_up:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"
            why = f"{who} has shown no sign of life for {limit}: {CANNOT}"
            say(f"{why}; the job ends")
            self._lose([rank], why)
        elif self._warn and seconds > self._warn - self._interval and rank not in self._named:
            self._named.add(rank)
            say(f"{who} has shown no sign of life for {seconds:.1f} s: {CANNOT}")

    def _alive_again(self, rank):
        if rank in self._named:
            self._named.discard(rank)
            say(f"rank {rank} shows signs of life again")

    def _lose(self, ranks, why):
        if not self._job.lost:
            self._job.abort(why, ranks)
            threading.Thread(target=self.post, kwargs={"lost": ranks, "why": why}, daemon=True).start()


def say(text):
    """A message of this rank."""
    print(f"hvd: {text}", file=sys.stderr, flush=True)
