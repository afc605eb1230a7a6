"""The job that this process belongs to: `start`, `stop`, and who it is in it."""

import atexit
import hmac
import importlib
import itertools
import os
import sys
import threading
from collections import defaultdict

from ...launcher.group import place
from ...launcher.rank import at_end
from . import links, meeting, wire
from .engine import Engine
from .errors import HorovodInternalError, NotInitialized, RankLost
from .requests import listed
from .service import Service
from .timeline import Timeline

_job = None
_generation = itertools.count()
_lock = threading.RLock()


class Job:
    """This process's place, its engine, and its connections.

    Attributes: rank, size, local_rank, local_size, cross_rank, cross_size, homogeneous, engine, timeline;
    members: the ranks as the launcher numbered them, those that are left after a reset.
    """

    def __init__(self, number, members, secret, table, homogeneous):
        self.members, self.rank, self.size = members, members.index(number), len(members)
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = table[self.rank]
        self.homogeneous, self.secret = homogeneous, secret
        self.timeline = Timeline()
        self.service = self.channel = None
        self._names = defaultdict(itertools.count)

    def name(self, kind, number=0):
        """The next name for what was submitted without one: counted alike on all ranks of a process set."""
        return f"{kind}.noname.{next(self._names[kind, number])}"

    def count_anew(self):
        """After a join ranks have made unequal numbers of requests; from here they count alike again."""
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
    """Meet the other ranks and begin to work.

    Args:
        members: the ranks that meet, as the launcher numbered them (default: all).

    Raises:
        RankLost: not all came. ValueError: the launcher's variables are incomplete.
    """
    global _job
    with _lock:
        if _job is not None:
            return
        number, size, local_rank = place()
        members = sorted(members) if members else list(range(size))
        if number not in members:
            members = [number]
        made = _meet(number, members, {"host": links.host(), "local_rank": local_rank}, next(_generation))
        _set_working(made)
        _job = made


def _meet(number, members, about, generation):
    if len(members) == 1:
        return _first({}, {number: about}, os.urandom(32), number, members, generation)
    board = meeting.board(number, members, generation)
    if number == members[0]:
        channels, told, secret = links.gather(board, members, _patience())
        return _first(channels, {**told, number: about}, secret, number, members, generation)
    channel, welcome, secret = links.join(board, number, members, about, _patience())
    made = Job(number, members, secret, welcome["table"], welcome["homogeneous"])
    made.channel = channel
    return made


def _patience():
    """Seconds that the ranks wait for each other at the start."""
    return float(os.environ.get("HOROVOD_START_TIMEOUT", os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", 30)))


def _hang_up(made):
    for channel in [made.channel] if made.channel else made.service.channels.values():
        channel.close()


def _first(channels, told, secret, number, members, generation):
    numbered = None if generation else [told[member]["local_rank"] for member in members]
    table, homogeneous = links.seats([told[member]["host"] for member in members], numbered)
    for channel in channels.values():
        channel.settimeout(None)
        try:
            channel.send({"table": table, "homogeneous": homogeneous})
        except OSError:
            pass  # the service notices and names the rank
    made = Job(number, members, secret, table, homogeneous)
    made.service = Service({members.index(member): channel for member, channel in channels.items()}, len(members))
    return made


def _set_working(made):
    if made.service:
        send = lambda message: made.service.take(0, message)  # noqa: E731
    else:
        send = made.channel.send
    engine = made.engine = Engine(made.rank, made.size, send, made.timeline)
    engine.on_joined = made.count_anew
    if made.service:
        made.service.start(engine)
    else:
        threading.Thread(target=_listen, args=(made.channel, engine), daemon=True, name="hvd-rank0").start()
    plane = importlib.import_module("helpers.hvd.plane")  # by name: this package knows no framework
    channels = [made.channel] if made.channel else list(made.service.channels.values())
    address = channels[0].address() if channels else "127.0.0.1"
    try:
        engine.start(plane.Plane(made.rank, made.size, engine.notices.post, engine.notices.read, address, _patience()))
    except Exception as error:
        _hang_up(made)
        why = engine.lost[0] if engine.lost else f"{type(error).__name__}: {error}"
        raise RankLost(f"rank {made.rank} could not connect its data plane to the other ranks: {why}") from error
    if os.environ.get("HOROVOD_TIMELINE") and made.rank == 0:
        made.timeline.start(os.environ["HOROVOD_TIMELINE"])


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
    """Leave the job; what has not ended fails. Does nothing if there is no job. `again`: to meet all anew."""
    global _job
    with _lock:
        made, _job = _job, None
    if made is None or made.engine.forked:
        return
    made.engine.leave(again)
    if made.service:
        made.service.stop()
    made.engine.stop()
    if made.channel:
        made.channel.close()
    made.timeline.stop()
    made.engine.plane.close()


def survivors():
    """The ranks of this job that are not known to be lost or gone, as the launcher numbered them."""
    made = current()
    gone = made.engine.gone | set(made.engine.lost[1] if made.engine.lost else ())
    return [member for rank, member in enumerate(made.members) if rank not in gone]


def reset():
    """Leave the job and meet again with the ranks that are left, numbered anew from 0.

    Raises:
        RankLost: they could not meet, say because another rank was lost meanwhile.
    """
    members = survivors()
    stop(again=True)
    try:
        start(members)
    except RankLost as error:
        raise HorovodInternalError(f"{listed(members)} could not go on together: {error}") from None


def sign(data):
    """`data` (bytes) with the proof that it comes from a rank of this job."""
    return wire.proof(current().secret, b"data" + data) + data


def verify(data):
    """The bytes that `sign` was given.

    Raises:
        PermissionError: they were not signed in this job.
    """
    claimed, data = bytes(data[: wire.PROOF]), bytes(data[wire.PROOF :])
    if not hmac.compare_digest(claimed, wire.proof(current().secret, b"data" + data)):
        raise PermissionError("these bytes were not sent by a rank of this job; they are not unpickled")
    return data


def _after_fork():
    """A child (a worker of a DataLoader, say) knows who it is, but holds no connection of the rank open."""
    if _job is None:
        return
    _job.engine.forked = True
    nothing = os.open(os.devnull, os.O_RDWR)
    for channel in [_job.channel] if _job.channel else list(_job.service.channels.values()):
        try:
            os.dup2(nothing, channel.fileno())  # not closed: the number might be given to another file
        except OSError:
            pass


def _at_exit():
    """A process that ends by an exception is lost at once; one that ends as planned may have others finish."""
    failed = getattr(sys, "last_type", None)
    if failed is not None and _job is not None and not _job.engine.forked:
        why = f"rank {_job.rank} has ended with {failed.__name__}: {str(getattr(sys, 'last_value', ''))[:500]}"
        try:
            _job.engine.send({"failed": why, "rank": _job.rank})
        except (OSError, ValueError):
            pass
        _job.engine.abort(why, [_job.rank])  # nor does it wait for anybody
    stop()


atexit.register(_at_exit)
at_end(stop)  # for ranks of `launch`, which end without what an interpreter does at its end
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
