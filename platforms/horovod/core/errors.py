"""What can go wrong. The names with Horovod in them are Horovod's own."""


class HorovodInternalError(RuntimeError):
    """A collective failed; `elastic.run` catches this, restores the last commit and starts again."""


class CollectiveError(HorovodInternalError, ValueError):
    """One collective was refused: ranks disagree about it, or its arguments are wrong. The job goes on."""


class RankLost(HorovodInternalError):
    """A rank died, left or never came. Nothing that needs it works until `shutdown()` and `init()`."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised, since no rank joins later; scripts of Horovod catch it."""


class NotInitialized(ValueError):
    """A function was called before `init()` (Horovod raises a ValueError too)."""

    def __init__(self, text="Horovod has not been initialized; use hvd.init()."):
        super().__init__(text)
