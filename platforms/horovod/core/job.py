"""The job that this process belongs to: start, stop, and this process's rank in it."""

import atexit
import hmac
import importlib
import itertools
import os
import sys
import threading
import time
from collections import defaultdict

from . import links, meeting, pulse, roster, wire
from .engine import Engine
from .errors import HorovodInternalError, NotInitialized, RankLost
from .place import place
from .requests import listed
from .service import Service
from .timeline import Timeline

_job = None
_generation = itertools.count()  # how often the ranks of this version of the roster have met
_lost = set()  # the launcher's numbers of ranks that will not come again
_lock = threading.RLock()
_left_behind = False  # whether the last job ended well, but for a rank that was stopped before it could leave
_exits_with = None  # the text of a sys.exit() with a status, where the runner of the script has seen it


class Job:
    """This process's rank, its engine and its connections.

    Attributes: rank, size, local_rank, local_size, cross_rank, cross_size, homogeneous, engine, timeline;
    members: the launcher's numbers of the ranks in this job (after a reset, of the remaining ones).
    """

    def __init__(self, number, members, secret, table, homogeneous):
        self.members, self.rank, self.size = members, members.index(number), len(members)
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = table[self.rank]
        self.homogeneous, self.secret, self.version = homogeneous, secret, roster.chosen
        self.timeline = Timeline()
        self.service = self.channel = self.pulse = None
        self._names = defaultdict(itertools.count)

    @property
    def channels(self):
        """This rank's connections: rank 0 has one to each other rank, any other rank one to rank 0."""
        return [self.channel] if self.channel else list(self.service.channels.values())

    def name(self, kind, number=0):
        """The name for the next collective submitted without one; all ranks of a process set count alike."""
        return f"{kind}.noname.{next(self._names[kind, number])}"

    def restart_names(self):
        """Count from 0 again, because ranks have submitted unequal numbers of collectives before a join."""
        self._names.clear()


def current():
    """The job.

    Raises:
        NotInitialized: there is none.
    """
    if _job is None:
        raise NotInitialized
    return _job


def is_initialized():
    """Whether `init()` was called, and `shutdown()` not since."""
    return _job is not None


def start(members=None):
    """Meet the other ranks and start the engine.

    Args:
        members: the ranks that meet, by the launcher's numbers (default: all).

    Raises:
        RankLost: not all of them came. ValueError: the launcher's variables are incomplete.
    """
    global _job
    with _lock:
        if _job is not None:
            return
        number, size, local_rank = place()
        if members is None and roster.folder() and roster.chosen == 1 and number not in roster.versions()[1]:
            members = _expected(number)
        members = sorted(members) if members else list(range(size))
        if number not in members:
            members = [number]
        about = {"host": links.host(), "local_rank": local_rank, "process": os.getpid()}
        job = _meet(number, members, about, (roster.chosen, next(_generation)))
        _set_working(job)
        _job = job
        roster.joined(number)


def _expected(number):
    """The members of the version by which the others wait for this rank, which was started later."""
    until = time.monotonic() + float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", 600))
    while time.monotonic() < until:
        members = roster.join(number)
        if meeting.board(number, members, (roster.chosen, 0)).get(roster.LOOK):
            return members
    raise RankLost(f"rank {number} was not asked to join in time (HOROVOD_ELASTIC_TIMEOUT): no rank called commit()")


def _meet(number, members, about, generation):
    if len(members) == 1:
        return _first({}, {number: about}, os.urandom(32), number, members, generation)
    board = meeting.board(number, members, generation)
    with meeting.tidied(board):
        if number == members[0]:
            channels, hellos, secret = links.gather(board, members, _patience())
        else:
            channel, welcome, secret = links.join(board, number, members, about, _patience())
    if number == members[0]:
        return _first(channels, {**hellos, number: about}, secret, number, members, generation)
    job = Job(number, members, secret, welcome["table"], welcome["homogeneous"])
    job.channel = channel

    def end(rank, why):
        job.engine.abort(why, [rank])
        channel.close()

    job.pulse = pulse.Pulse({0: channel}, {0: welcome["place"]}, welcome["stall"], end)
    return job


def _patience():
    """How many seconds the ranks wait for each other at the start."""
    return float(os.environ.get("HOROVOD_START_TIMEOUT", os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", 30)))


def _first(channels, hellos, secret, number, members, generation):
    numbered = None if generation != (1, 0) else [hellos[member]["local_rank"] for member in members]
    table, homogeneous = links.seats([hellos[member]["host"] for member in members], numbered)
    for channel in channels.values():
        channel.settimeout(None)
        welcome = {"table": table, "homogeneous": homogeneous, "place": _place(hellos[number])}
        links.tell(channel, {**welcome, "stall": pulse.stall_times()})
    job = Job(number, members, secret, table, homogeneous)
    job.service = Service(
        {members.index(member): channel for member, channel in channels.items()},
        len(members),
        {members.index(member): _place(about) for member, about in hellos.items()},
    )
    job.pulse = job.service.pulse
    return job


def _place(about):
    return f"process {about['process']} on {about['host'].partition('/')[0]}"


def _set_working(job):
    if job.service:
        send = lambda message: job.service.take(0, message)  # noqa: E731
    else:
        send = job.channel.send
    engine = job.engine = Engine(job.rank, job.size, send, job.timeline)
    engine.on_joined, engine.silent = job.restart_names, job.pulse.silent
    engine.patience = max(engine.patience, job.pulse.give_up + 1)  # so that a stopped rank is found at the end, too
    if job.service:
        job.service.start(engine)
    else:
        threading.Thread(target=_listen, args=(job.channel, engine), daemon=True, name="hvd-rank0").start()
        job.pulse.start()
    plane = importlib.import_module("platforms.horovod.plane")  # by name, because this package imports no framework
    address = job.channels[0].address() if job.channels else "127.0.0.1"
    try:
        engine.start(plane.Plane(job.rank, job.size, engine.notices.post, engine.notices.read, address, _patience()))
    except Exception as error:
        for channel in job.channels:
            channel.close()
        why = engine.lost[0] if engine.lost else f"{type(error).__name__}: {error}"
        raise RankLost(f"rank {job.rank} could not connect its data plane to the other ranks: {why}") from error
    path = os.environ.get("HOROVOD_TIMELINE", "DYNAMIC")
    if path not in ("", "DYNAMIC") and job.rank == 0:  # DYNAMIC: the script calls start_timeline
        job.timeline.start(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))


def _listen(channel, engine):
    why = "rank 0 is gone: its process died, was killed, or has ended"
    try:
        while True:
            engine.receive(channel.receive())
    except wire.Closed:
        pass
    except Exception as error:
        why = f"the connection to rank 0 carried what no rank sends ({type(error).__name__}: {error})"
    engine.abort(why, [] if engine.first_returns else [0])


def stop(again=False):
    """Leave the job, if there is one; unfinished collectives fail. `again`: this rank will start again."""
    global _job, _left_behind
    with _lock:
        job, _job = _job, None
    if job is None or job.engine.forked:
        return
    well = not job.engine.lost
    job.engine.leave(again)
    if job.service:
        job.service.stop()
    job.engine.stop()
    job.pulse.stop()
    _left_behind = well and job.pulse.gave_up
    if job.channel:
        job.channel.close()
    job.timeline.stop()
    job.engine.plane.close()


def survivors():
    """The ranks of this job that are not known to be lost or gone, by the launcher's numbers."""
    job = current()
    gone = job.engine.gone | set(job.engine.lost[1] if job.engine.lost else ())
    return [member for rank, member in enumerate(job.members) if rank not in gone]


def reset():
    """Leave the job and start a new one with the remaining ranks and those that joined, numbered from 0.

    Raises:
        HorovodInternalError: they could not meet, for example because another rank was lost in the meantime.
        SystemExit: this rank is no longer among them.
    """
    global _generation
    job, members = current(), survivors()
    _lost.update(set(job.members) - set(members))
    if roster.chosen != job.version:
        members = [member for member in roster.versions()[roster.chosen] if member not in _lost]
        _generation = itertools.count()
    number = job.members[job.rank]
    stop(again=True)
    if number not in members:
        raise SystemExit(0)
    try:
        start(members)
    except RankLost as error:
        raise HorovodInternalError(f"{listed(members)} could not go on together: {error}") from None


def sign(data):
    """`data` (bytes) with a proof that it comes from a rank of this job."""
    return wire.proof(current().secret, b"data" + data) + data


def verify(data):
    """Check what `sign` has returned; returns the data.

    Raises:
        PermissionError: it was not signed in this job.
    """
    claimed, data = bytes(data[: wire.PROOF]), bytes(data[wire.PROOF :])
    if not hmac.compare_digest(claimed, wire.proof(current().secret, b"data" + data)):
        raise PermissionError("these bytes were not sent by a rank of this job; they are not unpickled")
    return data


def _after_fork():
    """A forked child, such as a DataLoader worker, keeps its rank number but no open connection of the rank."""
    if _job is None:
        return
    _job.engine.forked = True
    nothing = os.open(os.devnull, os.O_RDWR)
    for channel in _job.channels:
        try:
            os.dup2(nothing, channel.fileno())  # not closed: another file could get the same number
        except OSError:
            pass


def exits(status):
    """The script ends by `sys.exit(status)`: this rank has failed, unless the status is 0."""
    global _exits_with
    _exits_with = f"sys.exit({status!r})" if status not in (None, 0) else None


def _at_exit():
    """A process that ends by an exception is lost at once; any other shuts down and lets the others finish."""
    failed = getattr(sys, "last_type", None)
    what = _exits_with or (failed and f"{failed.__name__}: {str(getattr(sys, 'last_value', ''))[:500]}")
    if what and _job is not None and not _job.engine.forked:
        why = f"rank {_job.rank} has ended with {what}"
        try:
            _job.engine.send({"failed": why, "rank": _job.rank})
        except (OSError, ValueError):
            pass
        _job.engine.abort(why, [_job.rank])  # so that this rank waits for nobody
    stop()
    if _left_behind:  # a status that makes the launcher end the stopped rank
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
