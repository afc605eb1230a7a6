"""What can go wrong. The names with Horovod in them are Horovod's own."""


class HorovodInternalError(RuntimeError):
    """A collective failed; `elastic.run` catches this, restores the last commit and starts again."""


class CollectiveError(HorovodInternalError, ValueError):
    """One collective was refused: ranks disagree about it, or its arguments are wrong. The job goes on."""


class RankLost(HorovodInternalError):
    """A rank died, left or never came. Nothing that needs it works until `shutdown()` and `init()`."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed; an elastic state raises this between steps.

    Args:
        skip_sync: whether the state need not be broadcast again.
    """

    def __init__(self, skip_sync=False):
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync

    def __reduce__(self):  # else an exception is unpickled with its message as the argument
        return type(self), (self.skip_sync,)


class NotInitialized(ValueError):
    """A function was called before `init()` (Horovod raises a ValueError too)."""

    def __init__(self):
        super().__init__("Horovod has not been initialized; use hvd.init().")

    def __reduce__(self):
        return type(self), ()
