"""Process sets: collectives among some of the ranks (https://horovod.readthedocs.io/en/stable/process_set.html)."""

import operator

from . import job
from .requests import Entry


class ProcessSet:
    """Some ranks of the world, in any order, that run collectives among themselves once the set is registered.

    `size()` and `rank()` are None before that; `rank()` is -1 on a rank that is not in it; `included()`: whether this
    rank is (None before `init()`).
    """

    def __init__(self, ranks):
        try:
            self._ranks = None if ranks is None else sorted({operator.index(rank) for rank in ranks})
        except TypeError:
            raise ValueError(f"ProcessSet should be initialized with a list of process ranks, not {ranks!r}") from None
        self.process_set_id = None

    @property
    def ranks(self):
        """Global ranks in order."""
        if self._ranks is None:
            return list(range(job.current().size)) if job.is_initialized() else None
        return list(self._ranks)

    def size(self):
        return len(self.ranks) if self._registered() else None

    def rank(self):
        if not self._registered():
            return None
        return self.ranks.index(job.current().rank) if self.included() else -1

    def included(self):
        return job.current().rank in self.ranks if job.is_initialized() else None

    def _registered(self):
        return job.is_initialized() and self.process_set_id is not None

    def __repr__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet(None)
global_process_set.process_set_id = 0
_registered = {}


def add_process_set(process_set):
    """Register a ProcessSet, or a list of global ranks; all ranks of the world have to call it. Returns the ProcessSet.

    Raises:
        ValueError: no such ranks, or these ranks have a set already. CollectiveError: ranks disagree.
    """
    here = job.current()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks
    if not ranks or ranks[0] < 0 or ranks[-1] >= here.size:
        raise ValueError(f"a process set of ranks {ranks} is not possible among {here.size} ranks")
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already")
    number, fresh = _agree("add_set", ranks)
    if not fresh:
        raise ValueError(f"A process set containing the same ranks already exists: {ranks}, number {number}")
    process_set.process_set_id = number
    _registered[number] = process_set
    return process_set


def remove_process_set(process_set):
    """Undo `add_process_set`; all ranks of the world have to call it. Returns whether there was anything to undo."""
    job.current()
    if process_set.process_set_id in (None, 0):
        return False
    _, fresh = _agree("drop_set", process_set.ranks)
    _registered.pop(process_set.process_set_id, None)
    process_set.process_set_id = None
    return fresh


def _agree(kind, ranks):
    here = job.current()
    request = {"kind": kind, "name": here.name(kind), "set": 0, "ranks": ranks}
    return here.lanes[0].wait(here.lanes[0].submit(Entry(request), at_once=True))


def get_process_set_ids_and_ranks():
    """{number: global ranks} of all registered sets, the global one too."""
    return {0: global_process_set.ranks, **{number: each.ranks for number, each in _registered.items()}}


def known():
    """The registered sets but for the global one."""
    return list(_registered.values())


def aside(process_set):
    """The same ranks with an order of their own, for a thread that works beside the program; all members call it."""
    own = ProcessSet(process_set.ranks)
    own.process_set_id = job.current().own_lane(number(process_set)).key
    return own


def register(process_sets):
    """Register the sets that `init(process_sets=…)` was given."""
    for process_set in [] if process_sets in (None, "dynamic") else process_sets:
        if process_set is not global_process_set:
            add_process_set(process_set)


def forget():
    """Unregister all sets, after a shutdown."""
    for process_set in _registered.values():
        process_set.process_set_id = None
    _registered.clear()


def number(process_set):
    """The number of a registered set that this process belongs to; ValueError for any other."""
    here = job.current()
    if process_set is global_process_set:
        return 0
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered; call hvd.add_process_set() or hvd.init(process_sets=[…])")
    if here.rank not in process_set.ranks:
        raise ValueError(f"rank {here.rank} is not in {process_set} and cannot take part in its collectives")
    return process_set.process_set_id
