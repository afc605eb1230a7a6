"""Nobody closes a connection that another rank still reads from, however slow that one is.

A rank that leaves says so, and the first rank passes the word on to all, in one order with the decisions. Who
comes to it has carried out all that was decided before, and says so in turn. When all have, the leaver is free.
"""

PATIENCE = 30.0  # seconds that a rank which leaves waits for a word of the others, in case one hangs


class Farewells:
    """The first rank's list of who leaves and who is still to pass that word; not thread-safe.

    Args:
        size: world size. deliver: called with (rank, message).
    """

    def __init__(self, size, deliver):
        self._here, self._deliver = set(range(size)), deliver
        self._behind = {}  # who leaves -> ranks that may still carry out something with it

    def leaves(self, rank):
        """A rank has said goodbye."""
        if rank in self._here:
            self._behind[rank] = set(self._here)

    def passed(self, rank, leaver):
        """A rank has carried out all that was decided before `leaver` left."""
        if leaver in self._behind:
            self._behind[leaver].discard(rank)
            self._let_go()

    def gone(self, rank):
        """A rank's connection has ended."""
        self._here.discard(rank)
        self._behind.pop(rank, None)
        for behind in self._behind.values():
            behind.discard(rank)
        self._let_go()

    def _let_go(self):
        for leaver in [leaver for leaver, behind in self._behind.items() if not behind]:
            self._deliver(leaver, {"free": leaver})
            self.gone(leaver)  # what was decided after it left is without it
