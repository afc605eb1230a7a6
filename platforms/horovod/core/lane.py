"""A lane: collectives of one process set, run in the order in which the program asks for them.

A thread takes what has been asked for and begins a round: one small gather, to which each rank gives the digests of its
requests. What stands at the same place with the same digest on all ranks runs, fused where it can be. Where digests
differ, all ranks gather the requests in full and raise an error that shows them. A rank that has joined takes part in
the rounds with nothing of its own, is sent the requests, and gives zeros.

Each process set has a lane, and so has each DistributedOptimizer, whose first request of a step announces the others.
"""

import collections
import os
import threading
import time

from . import requests as req
from .errors import CollectiveError, RankLost

MOST = 255  # requests in one round
FLUSH = 2**24  # bytes of submitted tensors after which a round begins at once
JOINED = -1  # instead of a number of requests
CLOSING = 1.0  # seconds that a lane which is closed waits for a collective under way
LOOK = 0.2  # seconds between two looks at the other ranks while this one waits


class Lane:
    """See the module. `key`: a text for it, equal on all ranks; `mover`: makes a `collectives.Mover`."""

    def __init__(self, job, key, ranks, mover):
        self.job, self.key, self.ranks, self._make_mover = job, key, ranks, mover
        self.submitted, self.gone = 0, {}  # requests so far; rank that has left -> when it was noticed
        self._queue, self._names = collections.deque(), set()
        self._bytes, self._due = 0, None  # when the next round has to begin
        self._joined = []  # places of the ranks that have joined
        self._refused = None  # the error of an announcement, which its followers share
        self._closed = None  # why nothing more can be submitted, an exception
        self._busy, self._wake = False, threading.Condition()
        self._cycle = float(os.environ.get("HOROVOD_CYCLE_TIME", 20)) / 1000
        self._fusion = int(os.environ.get("HOROVOD_FUSION_THRESHOLD", 2**27))
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"hvd-{key}")
        self._thread.start()

    # What callers do

    def submit(self, entry, at_once=False):
        """Ask for a collective; returns its entry. CollectiveError: its name is in use. RankLost: a rank is lost."""
        key = entry.key
        with self._wake:
            if self._closed or self.job.forked:
                raise self._closed or RankLost("this process was forked from a rank and is none itself")
            if self.gone:
                entry.end(error=RankLost(self.job.says_goodbye(self.gone)))
                return entry
            if key in self._names:
                raise CollectiveError(
                    f"{entry.request['kind']} '{key}': this name is in use by an earlier request of rank "
                    f"{self.job.rank} that has not ended; synchronize that first, or use another name"
                )
            if key is not None:
                self._names.add(key)
            self._queue.append(entry)
            self.submitted += 1
            self._bytes += entry.request.get("bytes", 0)
            first = self._due is None
            if at_once or self._bytes > FLUSH:
                self._due = 0.0
            elif first:
                self._due = time.monotonic() + self._cycle
            if first or not self._due:
                self._wake.notify()
        return entry

    def refuse(self, request):
        """Take this rank's place in a collective about which it has raised an error itself, so that all others do."""
        with self._wake:
            if request["name"] in self._names:
                return  # the name is in use; the earlier request under it remains valid
        self.submit(req.Entry(request), at_once=True)

    def wait(self, entry):
        """Wait for an entry; return its result or raise its error."""
        if not entry.ended:
            with self._wake:
                bell = entry.bell = entry.bell or threading.Event()
            self.hurry()
            while not entry.ended and not bell.wait(LOOK):  # one that has ended before rings no bell
                self.job.watch.glance(self.ranks)
        return entry.value()

    def hurry(self):
        """Begin a round with what there is."""
        with self._wake:
            if self._queue and self._due:
                self._due = 0.0
                self._wake.notify()

    def oldest(self):
        """The first entry that has not ended, and its number; (None, 0) if there is none. Joins do not count."""
        with self._wake:
            first = self._queue[0] if self._queue else None
            if first is None or first.request["kind"] == "join":
                return None, 0
            return first, self.submitted - len(self._queue)

    def has_joined(self):
        """Whether this rank answers with zeros now."""
        with self._wake:
            return any(entry.request["kind"] == "join" for entry in self._queue)

    def abort(self, error):
        """End everything that has not ended by this error, and refuse what comes."""
        with self._wake:
            if self._closed is None:
                self._closed = error
            entries = list(self._queue)
            self._queue.clear()
            self._names.clear()
            self._wake.notify()
        for bell in filter(None, [entry.end(error=error) for entry in entries]):
            bell.set()

    def close(self):
        """End the lane; what has not ended fails, but a collective under way may come to its end."""
        until = time.monotonic() + CLOSING
        while self._busy and not self._closed and time.monotonic() < until:
            time.sleep(0.002)
        self.abort(RankLost("Horovod has been shut down; call hvd.init() again"))
        if threading.current_thread() is not self._thread:
            self._thread.join(0.05 if self._busy else CLOSING)

    # The thread

    def _work(self):
        try:
            mover = self._make_mover()
            while True:
                batch = self._next()
                if batch is None:
                    return
                self._round(mover, batch)
        except Exception as error:
            if self._closed is None:
                self.job.failed(error, self)

    def _next(self):
        """The entries of the next round, in order: a follower alone, a join alone, or others up to one of these."""
        with self._wake:
            self._busy = False
            while self._closed is None:
                if self._queue and self._due is not None and time.monotonic() >= self._due:
                    break
                self._wake.wait(None if self._due is None else max(0.0, self._due - time.monotonic()))
            if self._closed is not None:
                return None
            self._busy, batch = True, []
            for entry in self._queue:
                alone = entry.follower or entry.request["kind"] == "join"
                if batch and (alone or len(batch) == MOST):
                    break
                batch.append(entry)
                if alone:
                    break
            return batch

    def _done(self, entries, results=(), error=None):
        """End entries, which stand at the front of the queue or near it."""
        with self._wake:
            if self._closed is not None:
                return
            gone = set(entries)
            self._queue = collections.deque(entry for entry in self._queue if entry not in gone)
            self._names.difference_update([entry.key for entry in entries])
            self._bytes -= sum([entry.request.get("bytes", 0) for entry in entries])
            if not self._queue:
                self._due = None
        bells = [entry.end(result, error) for entry, result in zip(entries, results or [None] * len(entries))]
        for bell in filter(None, bells):  # after all have ended, because the waiting thread takes the interpreter next
            bell.set()

    def _round(self, mover, batch):
        self.job.timeline.cycle()
        first = batch[0]
        if first.follower:
            if self._refused is None:
                self._run(mover, [first])
            else:
                self._done([first], error=self._refused)
            return
        joined = first.request["kind"] == "join"
        table = mover.digests(JOINED if joined else len(batch), [entry.digest for entry in batch], MOST)
        active = [place for place, row in enumerate(table) if row[0] != JOINED]
        self._joined = [place for place, row in enumerate(table) if row[0] == JOINED]
        if not active:
            last = self.ranks[max(self._joined, key=lambda place: table[place][1])]
            self.job.all_joined(self)
            self._done([first], [last])
            self.submitted = len(self._queue)  # the ranks count alike again
            return
        same = _common([table[place][1 : 1 + table[place][0]] for place in active])
        if same == 0:
            self._disagree(mover, first, active, joined)
        elif self._joined:
            self._run_joined(mover, batch, same, active[0], joined)
        else:
            self._run(mover, batch[:same])

    def _disagree(self, mover, entry, active, joined):
        """All ranks show each other their requests at one place, and raise."""
        asked = mover.gather_json(None if joined else entry.request)
        if not joined:
            text = req.disagreement({self.ranks[place]: asked[place] for place in active})
            self._refused = CollectiveError(text)
            self._done([entry], error=CollectiveError(text))

    def _run_joined(self, mover, batch, count, teller, joined):
        """Run what the active ranks have agreed on; those that have joined hear of it from the first of them."""
        specs = mover.gather_json([e.request for e in batch[:count]] if mover.me == teller else None)[teller]
        for spec, entry in zip(specs, [None] * count if joined else batch):
            why = spec.get("refused") or req.without_joined(spec["kind"], spec.get("op"))
            if joined:
                for each in [spec, *spec.get("more", ())] if why is None else ():
                    mover.run([each], [None])
            elif why is None:
                self._refused = None
                self._done([entry], mover.run([spec], [entry]))
            else:
                who = req.listed(sorted(self.ranks[place] for place in self._joined))
                text = f"{spec['kind']} '{spec['name']}' with {who} joined: {why}"
                self._refused = CollectiveError(text)
                self._done([entry], error=CollectiveError(text))

    def _run(self, mover, batch):
        """Run entries that all ranks have, the small reductions among them together."""
        for entry in batch:
            if "refused" in entry.request:  # on all ranks alike, each of which has raised the error itself
                self._done([entry], error=CollectiveError(entry.request["refused"]))
        batch = [entry for entry in batch if not entry.ended]
        rows = mover.rows(batch)
        for part in self._fused(batch):
            began = time.monotonic()
            if part[0].request["kind"] in ("add_set", "drop_set"):
                results = [self.job.change_sets(part[0].request)]
            elif part[0].request["kind"] == "barrier":
                results = [None]
            else:
                results = mover.run([entry.request for entry in part], part, rows)
            if self.job.timeline.writes():
                for entry in part:
                    self.job.timeline.ran(entry, began)
            if not part[0].follower:
                self._refused = None
            self._done(part, results)

    def _fused(self, batch):
        """Lists of entries that run together, at most HOROVOD_FUSION_THRESHOLD bytes in each."""
        parts, open_parts = [], {}
        for entry in batch:
            request, look = entry.request, None
            new = request.get("bytes", 0)
            if request["kind"] == "allreduce" and request["op"] != "Adasum" and len(request["tensors"]) == 1:
                look = (request["tensors"][0][0], request["tensors"][0][2], request["op"], tuple(request["scales"]))
            part, size = open_parts.get(look, (None, 0))
            if look is None or part is None or size + new > self._fusion:
                part, size = [], 0
                parts.append(part)
            part.append(entry)
            open_parts[look] = part, size + new
        return parts


def _common(rows):
    """How many of their first places lists have in common."""
    count = min(map(len, rows))
    if all(row[:count] == rows[0][:count] for row in rows):
        return count
    return next(place for place in range(count) if any(row[place] != rows[0][place] for row in rows))
