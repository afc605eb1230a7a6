"""The job that this process belongs to: start, stop, its lanes, and this process's rank in it."""

import atexit
import importlib
import itertools
import json
import os
import sys
import threading
import time
from collections import defaultdict

from . import place
from .errors import HorovodInternalError, NotInitialized, RankLost
from .lane import Lane
from .requests import Entry, listed
from .timeline import Timeline
from .watch import GRACE, Watch

_job = None
_met = defaultdict(itertools.count)  # members -> how often they have met
_lock = threading.RLock()
_exits_with = None  # the text of a sys.exit() with a status, where the runner of the script has seen it


class Job:
    """This process's rank and its lanes.

    Attributes: rank, size, local_rank, local_size, cross_rank, cross_size, homogeneous, timeline, watch;
    members: the launcher's numbers of the ranks; lanes: {number of a process set, or key of an optimizer: Lane};
    lost: (why, ranks) once a rank is lost; left: {rank: whether it will start again}; forked: whether this process is
    a fork of the rank; given: what the framework has checked and described before (see torch/handles.py).
    """

    def __init__(self, number, members, store, meeting, serves):
        self.members, self.rank, self.size = members, members.index(number), len(members)
        self.lost, self.left, self.forked, self.given = None, {}, False, {}
        self.lanes, self.timeline, self._base, self._meeting = {}, Timeline(), store, meeting
        self._store, self._names, self._numbers = self._part("start"), defaultdict(itertools.count), itertools.count(1)
        self._members = {0: list(range(self.size))}
        about = self._meet({"host": place.host(), "local": place.place()[2], "process": os.getpid()}, serves)
        table, self.homogeneous = place.seats([a["host"] for a in about], [a["local"] for a in about])
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = table[self.rank]
        self.watch = Watch(self, self._part("watch"), dict(enumerate(about)), serves)
        self.add_lane(0, self._members[0])

    def _part(self, name):
        """A part of the store, by a connection of its own: lanes connect at the same time, each waiting for others."""
        from torch.distributed import PrefixStore

        return PrefixStore(f"{self._meeting}/{name}", place.another(self._base) if self.size > 1 else self._base)

    def _meet(self, mine, serves):
        """What every rank says of itself."""
        patience = float(os.environ.get("HOROVOD_START_TIMEOUT", os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", 30)))
        until, ranks, missing = time.monotonic() + patience, range(self.size), None
        try:
            self._store.set(f"at/{self.rank}", json.dumps(mine))
            for rank in ranks:
                while missing is None and not place.has(self._store, f"at/{rank}"):
                    time.sleep(0.01)
                    if place.has(self._store, "gave up"):
                        missing = json.loads(self._store.get("gave up"))
                    elif time.monotonic() > until:
                        missing = [other for other in ranks if not place.has(self._store, f"at/{other}")]
            if missing is None:
                return [json.loads(self._store.get(f"at/{rank}")) for rank in ranks]
            self._store.set("gave up", json.dumps(missing))
        except (RuntimeError, OSError):
            missing = missing or [0]  # it serves the store, or its launcher does
        if serves:
            time.sleep(GRACE)  # so that the others read it
        raise RankLost(
            f"{listed(missing)} of {self.size} did not come within {patience:g} s (HOROVOD_START_TIMEOUT). "
            "Does every rank call hvd.init(), with the same arguments?"
        )

    # Lanes

    def add_lane(self, key, ranks):
        """Open a lane; its members do so alike."""
        collectives = importlib.import_module("platforms.horovod.collectives")  # which imports torch, as this does not
        store, address = self._part(f"lane/{key}"), place.address(self.size)
        self.lanes[key] = Lane(self, str(key), ranks, lambda: collectives.Mover(self.rank, ranks, store, address))
        return self.lanes[key]

    def own_lane(self, number):
        """A further lane for the members of a process set, which all of them open in the same order."""
        return self.add_lane(f"{number}.{next(self._names['lane', number])}", self._members[number])

    def barrier(self, number):
        """Wait until all ranks of a process set have called this. It has a lane, so its order among others is free."""
        key = f"{number}.barrier"
        lane = self.lanes.get(key) or self.add_lane(key, self._members[number])
        request = {"kind": "barrier", "name": self.name("barrier", number)}
        lane.wait(lane.submit(Entry(request), at_once=True))

    def change_sets(self, request):
        """Add or drop a process set, as all ranks have asked: (its number, whether that changed anything)."""
        ranks, add = request["ranks"], request["kind"] == "add_set"
        known = next((number for number, members in self._members.items() if members == ranks), None)
        if add and known is None:
            known = next(self._numbers)
            self._members[known] = ranks
            if self.rank in ranks:
                self.add_lane(known, ranks)
            return known, True
        if add or not known:
            return known, False
        del self._members[known]
        for key in [key for key in self.lanes if str(key).partition(".")[0] == str(known)]:
            threading.Thread(target=self.lanes.pop(key).close, daemon=True).start()
        return known, True

    def name(self, kind, number=0):
        """The name for the next collective submitted without one; all ranks of a process set count alike."""
        return f"{kind}.noname.{next(self._names[kind, number])}"

    def join(self):
        """Answer all ranks with zeros until all have joined; returns the rank that joined last."""
        lanes, turn = list(self.lanes.values()), self._store.add("joins", 1)  # who has the last turn, joined last
        entries = [lane.submit(Entry({"kind": "join", "name": "join"}, digest=turn), at_once=True) for lane in lanes]
        return [lane.wait(entry) for lane, entry in zip(lanes, entries)][0]

    def all_joined(self, lane):
        """All ranks of a lane have joined: its members count from 0 again, as they had unequal numbers of steps."""
        for key in [key for key in self._names if key[0] != "lane" and str(key[1]) == lane.key]:
            del self._names[key]

    # Ranks that go

    def abort(self, why, ranks):
        """A rank is lost: whatever has not ended fails, and whatever comes."""
        if self.lost is None:
            self.lost = why, list(ranks)
            for lane in list(self.lanes.values()):
                lane.abort(RankLost(why))

    def rank_left(self, rank, again):
        """A rank has shut down; what all ranks have agreed on before may still end."""
        self.left[rank] = again
        for lane in list(self.lanes.values()):
            if rank in lane.ranks:
                lane.gone[rank] = time.monotonic()

    def says_goodbye(self, ranks):
        """The words for ranks that have left."""
        words = {True: "left to start again", False: "shut down"}
        return "; ".join(f"rank {rank} has {words[bool(self.left.get(rank))]}" for rank in sorted(ranks))

    def end_lane(self, lane):
        """Fail what waits for a rank that has left."""
        entry = lane.oldest()[0]
        what = f"{entry.request['kind']} '{entry.request['name']}' needs {listed(sorted(lane.gone))}: " if entry else ""
        lane.abort(RankLost(what + self.says_goodbye(lane.gone)))

    def failed(self, error, lane):
        """The thread of a lane has met an error: most likely a rank has just died."""
        ranks, why = self.watch.blame()
        if why is not None and set(ranks) <= set(self.left) and not self.lost:
            lane.gone.update((rank, 0.0) for rank in ranks)
            return self.end_lane(lane)
        if why is None:
            why = f"a collective failed on rank {self.rank}: {type(error).__name__}: {error}"
            why += f" ({listed(ranks)} showed no sign of life)" if ranks else ""
        self.watch.post(lost=list(ranks), why=why)
        self.abort(why, ranks)


def current():
    """The job; NotInitialized where there is none."""
    if _job is None:
        raise NotInitialized
    return _job


def is_initialized():
    """Whether `init()` was called, and `shutdown()` not since."""
    return _job is not None


def start(members=None):
    """Meet the other ranks: `members` by the launcher's numbers, or all; RankLost where not all of them came."""
    global _job
    from torch.distributed import HashStore

    with _lock:
        if _job is not None:
            return
        number, size, _ = place.place()
        members = sorted(members) if members else list(range(size))
        members = members if number in members else [number]
        store, serves = place.store(number, size)
        store = store if len(members) > 1 else HashStore()
        meeting = f"hvd/{place.restart()}/{'-'.join(map(str, members))}/{next(_met[tuple(members)])}"
        _job = Job(number, members, store, meeting, serves)
    path = os.environ.get("HOROVOD_TIMELINE", "DYNAMIC")
    if path not in ("", "DYNAMIC") and _job.rank == 0:  # DYNAMIC: the script calls start_timeline
        _job.timeline.start(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))


def stop(again=False):
    """Leave the job, if there is one; unfinished collectives fail. `again`: this rank will start again."""
    global _job
    with _lock:
        job, _job = _job, None
    if job is not None and not job.forked:
        for lane in job.lanes.values():
            lane.close()
        job.watch.leave(again)
        job.timeline.stop()


def reset():
    """Leave the job and meet the same ranks again, after a failure that no rank was lost by.

    HorovodInternalError where a rank is lost: the launcher has to start all of them again (see `elastic`).
    """
    job = current()
    if job.lost and job.lost[1]:
        raise HorovodInternalError(f"{job.lost[0]}; torchrun --max-restarts or --min-np starts all ranks again")
    stop(again=True)
    try:
        start(job.members)
    except RankLost as error:
        raise HorovodInternalError(f"{listed(job.members)} could not go on together: {error}") from None


def exits(status):
    """The script ends by `sys.exit(status)`: this rank has failed, unless the status is 0."""
    global _exits_with
    _exits_with = f"sys.exit({status!r})" if status not in (None, 0) else None


def _at_exit():
    """A process that ends by an exception is lost at once; any other shuts down and lets the others finish."""
    failed = getattr(sys, "last_type", None)
    what = _exits_with or (failed and f"{failed.__name__}: {str(getattr(sys, 'last_value', ''))[:500]}")
    if what and _job is not None and not _job.forked:
        why = f"rank {_job.rank} has ended with {what}"
        if not _job.lost:
            _job.watch.post(lost=[_job.rank], why=why)
        _job.abort(why, [_job.rank])  # so that this rank waits for nobody
    stop()


def _after_fork():
    """A forked child, such as a DataLoader worker, keeps its rank number, and is no rank."""
    if _job is not None:
        _job.forked = True


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
