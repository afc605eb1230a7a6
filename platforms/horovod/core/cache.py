"""Numbers for the requests that every step repeats, as in Horovod's response cache.

A request that all ranks of a process set have made alike twice in a row gets a number. From then on a rank sends one
bit for it, and rank 0 finds what all ranks have submitted by an AND of their bits. A number stands for one and the
same request for ever: a tensor whose shape or dtype has changed is sent as a request again, and may get a new number.
"""

import functools
import operator
import time

PLANS = 64  # decisions of each process set that are kept, because most steps repeat those of the step before
FORGET = 2**14  # names seen once that are remembered at most; the names of unnamed collectives never come back


def numbers(bits):
    """The numbers whose bits are set, in ascending order."""
    return [number for number, digit in enumerate(reversed(f"{bits:b}")) if digit == "1"]


class Cache:
    """The numbers of one process set and the ranks' bits, on rank 0; not thread-safe.

    Args:
        ranks: the set's. capacity: how many numbers there are at most (HOROVOD_CACHE_CAPACITY); 0 stands for none.

    Attributes: requests, by number; latest: {name: the number that ranks use now}; plans: {bits: decisions}.
    """

    def __init__(self, ranks, capacity):
        self.requests, self.latest, self.plans = [], {}, {}
        self.old = 0  # bits of numbers that a later one has replaced; a rank may send them until it hears of that
        self._capacity = capacity
        self._once = {}  # name -> the last request under it that had no number
        self._asked = dict.fromkeys(ranks, 0)
        self._since = []  # [(moment, bits that a rank submitted then and that are pending)]

    def learn(self, name, requests):
        """The new number of a collective that is about to run, or None; `requests`: those of all ranks."""
        if len(self.requests) >= self._capacity or not requests[0].get("tensors"):
            return None
        request, number = requests[0], self.latest.get(name)
        if any(other != request for other in requests) or (number is not None and self.requests[number] == request):
            return None
        if self._once.get(name) != request:
            if len(self._once) >= FORGET:
                self._once.clear()
            self._once[name] = request
            return None
        del self._once[name]
        if number is not None:
            self.old |= 1 << number
        self.latest[name] = len(self.requests)
        self.requests.append(request)
        return self.latest[name]

    def check(self, rank, bits):
        """Raise ValueError unless `rank` can have been told of these numbers."""
        if rank not in self._asked or bits >> len(self.requests):
            raise ValueError(f"rank {rank} sent numbers of requests that it was not given")

    def ask(self, rank, bits):
        """Note what a rank has submitted; returns the bits that all ranks have now, which are pending no longer."""
        self._asked[rank] |= bits
        self._since.append((time.monotonic(), bits))
        common = functools.reduce(operator.and_, self._asked.values())
        if common:
            self._clear(common)
        return common

    def pending(self, longer_than=0.0):
        """The bits that some ranks have submitted, more than so many seconds ago, and others have not."""
        now = time.monotonic()
        return functools.reduce(operator.or_, (bits for since, bits in self._since if now - since >= longer_than), 0)

    def take(self, bits):
        """Give up these pending bits: [(request, ranks that submitted it, since when)]."""
        taken = []
        for number in numbers(bits & self.pending()):
            ranks = [rank for rank, asked in self._asked.items() if asked >> number & 1]
            since = next(moment for moment, asked in self._since if asked >> number & 1)
            taken.append((self.requests[number], ranks, since))
        self._clear(bits)
        return taken

    def _clear(self, bits):
        for rank in self._asked:
            self._asked[rank] &= ~bits
        self._since = [(moment, asked & ~bits) for moment, asked in self._since if asked & ~bits]
