"""What of elastic training needs no framework: states of plain objects, and the loop around a training function.

Names and behaviour as in "Elastic Horovod" and the API reference; instead of a driver that watches hosts, the
surviving ranks find each other again (`core.reset`).
"""

import copy
import functools
import queue

from ... import core


class HostUpdateResult:
    """What has happened to the hosts; values can be or-ed."""

    no_update, removed, added, mixed = 0, 1, 2, 3


class State:
    """What has to be alike on all ranks and survive the loss of some.

    Args:
        bcast_object: function that returns rank 0's object on every rank.
        get_rank: function that returns the rank of this process.
    """

    def __init__(self, bcast_object, get_rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions to call after every reset, say to scale the learning rate to the new number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """Called when the ranks have come together anew, before `sync`."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        """Note that hosts have changed: `update_res` is a `HostUpdateResult`; any thread may call it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self):
        """`save()`, then `check_host_updates()`. It copies everything: once in many batches is often enough."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self):
        """Raise HostsUpdatedInterrupt, on all ranks together, if hosts have changed."""
        before = latest = self._last_updated_timestamp
        updates = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest, updates = timestamp, updates | update
        before, self._last_updated_timestamp, updates = self._agreed((before, latest, updates))
        if self._last_updated_timestamp > before:
            raise core.HostsUpdatedInterrupt(skip_sync=updates == HostUpdateResult.removed)

    def _agreed(self, news):
        return self._bcast_object(news)

    def save(self):
        """Keep a copy of the state in memory."""
        raise NotImplementedError

    def restore(self):
        """Go back to the last copy."""
        raise NotImplementedError

    def sync(self):
        """Take over the state of rank 0."""
        raise NotImplementedError

    def reset(self):
        """Adapt to the new world; nothing by default."""


class ObjectState(State):
    """Plain Python objects, given as keyword arguments, as attributes. They have to be picklable."""

    def __init__(self, bcast_object, get_rank, **kwargs):
        self._saved_state = kwargs
        for name, value in kwargs.items():
            setattr(self, name, value)
        ObjectState.save(self)
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self):
        # Copies: a list that is appended to after a commit must not change the commit.
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self):
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self):
        if self._saved_state:
            values = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            for name, value in values.items():
                setattr(self, name, value)
            ObjectState.save(self)


def run_fn(func, reset, reset_limit=None):
    """`func(state, …)` that goes on after ranks were lost or hosts have changed, until it returns.

    After a HorovodInternalError the state goes back to the last commit, after a HostsUpdatedInterrupt it stays; then
    `reset()` brings the remaining ranks together, the state is told (`on_reset`) and sent to all (`sync`).

    Raises:
        RuntimeError: more than `reset_limit` resets would have been needed.
        CollectiveError: the same refusal twice in a row, since a mistake in the program does not go away.
        Whatever else `func` raises.
    """

    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        resets, refusal, skip_sync, together = 0, None, False, True
        while True:
            try:
                if not together:
                    reset()
                    state.on_reset()
                    together = True
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except core.HorovodInternalError as error:
                if isinstance(error, core.CollectiveError):
                    if str(error) == refusal:
                        raise
                    refusal = str(error)
                if not together:
                    raise  # those who are left could not come together
                cause, skip_sync = error, False
                state.restore()
            except core.HostsUpdatedInterrupt as interrupt:
                cause, skip_sync = interrupt, interrupt.skip_sync
            if reset_limit is not None and resets >= reset_limit:
                raise RuntimeError(f"the ranks were reset {resets} times, and reset_limit is {reset_limit}") from cause
            resets, together = resets + 1, False

    return wrapper
