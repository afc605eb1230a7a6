"""Rank 0's bookkeeping: which rank has submitted which tensor, and which collective runs next.

As in Horovod's controller (Sergeev and Del Balso, arXiv:1802.05799), ranks may submit tensors
in any order. A collective runs when every rank of its process set has submitted it. All ranks run
the collectives in the one order decided here, so no two ranks can wait for each other.

Requests that every step repeats come as bits (see `cache`). In every unusual case they are treated as the requests for
which they stand: once a rank has joined or left, is blocked or late, or has submitted something else under the name.
"""

import time

from . import cache
from . import requests as req


class Waiting:
    """A name that some ranks have submitted and others have not yet."""

    def __init__(self, kind, requests=(), since=None):
        self.kind = kind
        self.requests = dict(requests)  # rank -> request
        self.later = []  # (rank, request): what ranks whose own request was invalid have submitted under the name since
        self.blocked = set()  # ranks that do nothing else until this is done
        self.since = time.monotonic() if since is None else since
        self.reported = False


class Coordinator:
    """Takes requests of ranks and delivers decisions; not thread-safe, uses no sockets.

    Args:
        size: world size. deliver: called with (rank, message) for every decision, in order.
        fusion: small tensors are fused up to this many bytes; 0 runs each by itself.
        capacity: requests of each process set that get a number, see `cache`.
    """

    def __init__(self, size, deliver, fusion=2**27, capacity=1024):
        self.size, self.deliver, self.fusion, self.capacity = size, deliver, fusion, capacity
        self.sets = {0: list(range(size))}  # number -> global ranks
        self.caches = {0: cache.Cache(self.sets[0], capacity)}  # also of sets that were removed
        self._numbers = 0
        self.waiting = {}  # (set, name) -> Waiting
        self._again = []  # (rank, request): what was submitted later, now that its turn has come
        self.joined = []  # ranks, in order
        self.left = {}  # rank -> why

    def ask(self, rank, asked, hits=()):
        """Handle requests of a rank, in the order of submission.

        Args:
            hits: pairs of a process set and the bits of submitted requests that have numbers.

        Raises:
            KeyError, ValueError: a rank cannot send this.
        """
        ready = []
        for number, bits in hits:
            self.caches[number].check(rank, bits)
            unusual = self._unusual(number, bits)
            ready += [self.caches[number].requests[each] for each in cache.numbers(unusual)]
            common = self.caches[number].ask(rank, bits & ~unusual)
            if common:
                self._run_numbered(number, common)
        asked, ready = [*ready, *asked], []
        for request in asked:
            if request["kind"] == "join":
                self._join(rank)
                ready += [key for key in list(self.waiting) if self._complete(key)]
                continue
            key = (request["set"], request["name"])
            if rank not in self.sets.get(request["set"], ()):
                self._refuse(key, {rank: request}, f"process set {request['set']} is not there, or not for rank {rank}")
                continue
            self._unfold(*key)
            if key not in self.waiting:
                self.waiting[key] = Waiting(request["kind"])
            if rank in self.waiting[key].requests:
                self.waiting[key].later.append((rank, request))
                continue
            self.waiting[key].requests[rank] = request
            if self._complete(key):
                ready.append(key)
            else:
                self._never_complete(key)
        self._run(ready)
        self._ask_again()

    def _ask_again(self):
        while self._again:
            rank, request = self._again.pop(0)
            self.ask(rank, [request])

    def _pop(self, key):
        waiting = self.waiting.pop(key)
        self._again += waiting.later
        return waiting

    def blocked(self, rank, keys):
        """A rank waits for these and does nothing else; two ranks may block each other in two process sets."""
        for key in map(tuple, keys):
            self._unfold(*key)
            if key in self.waiting:
                self.waiting[key].blocked.add(rank)
                self._crossed(key)
        self._ask_again()

    def leave(self, rank, again):
        """A rank has shut down: collectives that need it fail, all others go on. `again`: it will start again.

        Its undecided requests are dropped. Every decision that includes the rank is delivered before the message
        that it leaves.
        """
        self._unfold_all()
        self.left[rank] = f"rank {rank} has left to start again" if again else f"rank {rank} has shut down"
        for each in range(self.size):
            self.deliver(each, {"leaves": rank, "again": again})
        for key, waiting in list(self.waiting.items()):
            waiting.requests.pop(rank, None)
            waiting.later = [later for later in waiting.later if later[0] != rank]
            if waiting.requests:
                self._never_complete(key)
            else:
                self._pop(key)
        self._end_joins()
        self._ask_again()

    def stalled(self, seconds):
        """[(key, ranks that submitted it, ranks that did not)] of everything that has waited longer than `seconds`."""
        self._unfold_all(seconds)
        now = time.monotonic()
        return [
            (key, sorted(waiting.requests), self._missing(key))
            for key, waiting in self.waiting.items()
            if now - waiting.since > seconds
        ]

    # Bits

    def _unusual(self, number, bits):
        """Those of the submitted `bits` that have to be treated as requests."""
        if self.joined or self.left or number not in self.sets:
            return bits
        here = self.caches[number]
        waiting = [here.latest[name] for other, name in self.waiting if other == number and name in here.latest]
        return bits & (here.old | sum(1 << each for each in waiting))

    def _unfold(self, number, name):
        """Treat the pending bits of a name as requests."""
        here = self.caches.get(number)
        if here and name in here.latest:
            self._unfold_bits(number, 1 << here.latest[name])

    def _unfold_all(self, longer_than=0.0):
        for number, here in self.caches.items():
            self._unfold_bits(number, here.pending(longer_than))

    def _unfold_bits(self, number, bits):
        for request, ranks, since in self.caches[number].take(bits) if bits else ():
            given = dict.fromkeys(ranks, request)
            self.waiting[number, request["name"]] = Waiting(request["kind"], given, since)

    def _run_numbered(self, number, bits):
        """Start what all ranks of a process set have submitted by its bits."""
        here = self.caches[number]
        if bits not in here.plans:
            if len(here.plans) >= cache.PLANS:
                here.plans.clear()
            here.plans[bits] = [
                self._start_numbered(number, batch)
                for batch in self._batches([(here.requests[each], each) for each in cache.numbers(bits)])
            ]
        for message in here.plans[bits]:
            for rank in self.sets[number]:
                self.deliver(rank, message)

    def _start_numbered(self, number, batch):
        first = batch[0][0]
        message = {"hits": f"{sum(1 << each for _, each in batch):x}", "set": number, "kind": first["kind"]}
        if first["kind"] in req.ANY_ROWS:
            count = len(self.sets[number])
            message.update(tensors=[first["tensors"]] * count, splits=[first.get("splits")] * count)
        return message

    # Which ranks have submitted

    def _missing(self, key):
        came = self.waiting[key].requests
        return [rank for rank in self.sets[key[0]] if rank not in came and rank not in self.joined]

    def _complete(self, key):
        came = len(self.waiting[key].requests)
        if came == len(self.sets[key[0]]) or not self.joined:  # the usual case, for every tensor of every step
            return came == len(self.sets[key[0]])
        return came > 0 and not self._missing(key)

    def _never_complete(self, key):
        gone = [rank for rank in self._missing(key) if rank in self.left] if self.left else ()
        if gone:
            why = "; ".join(self.left[rank] for rank in gone)
            text = f"{self.waiting[key].kind} '{key[1]}' needs {req.listed(gone)}: {why}"
            self._refuse(key, self._pop(key).requests, text, lost=True)

    def _crossed(self, key):
        """Refuse a name submitted in two process sets by ranks that block each other."""
        here = self.waiting[key]
        for other, there in list(self.waiting.items()):
            if other[1] != key[1] or other == key:
                continue
            away = set(self._missing(key)) & set(there.requests)
            back = set(self._missing(other)) & set(here.requests)
            if away and back and away <= there.blocked and back <= here.blocked:
                given = "; ".join(
                    f"{req.listed(sorted(w.requests))}: set {k[0]}, ranks {self.sets[k[0]]}"
                    for k, w in sorted(((key, here), (other, there)))
                )
                text = f"{here.kind} '{key[1]}': process sets differ between ranks ({given}), which wait for each other"
                self._refuse(key, self._pop(key).requests, text)
                self._refuse(other, self._pop(other).requests, text)
                return

    def _join(self, rank):
        self._unfold_all()
        self.joined.append(rank)
        self._end_joins()
        if len(self.joined) == self.size:
            last, self.joined = self.joined[-1], []
            for each in range(self.size):
                self.deliver(each, {"joined": last})

    def _end_joins(self):
        """Refuse the joins that wait for a rank which has left without joining."""
        if self.left and self.joined:
            why = "; ".join(self.left[rank] for rank in sorted(self.left))
            self._refuse((0, "join"), self.joined, f"join needs {req.listed(sorted(self.left))}: {why}", lost=True)
            self.joined = []

    # Decisions

    def _run(self, keys):
        ready = []
        for key in keys:
            if key not in self.waiting:
                continue
            waiting = self._pop(key)
            first = next(iter(waiting.requests.values()))
            absent = [rank for rank in self.sets[key[0]] if rank not in waiting.requests]
            wrong = req.disagreement(key[1], waiting.requests)
            if not wrong and absent:
                wrong = req.without_joined(first["kind"], first.get("op"))
                wrong = wrong and f"{first['kind']} '{key[1]}' with {req.listed(absent)} joined: {wrong}"
            if wrong:
                self._refuse(key, waiting.requests, wrong)
            elif first["kind"] in ("add_set", "drop_set"):
                self._change_sets(key, first)
            else:
                ready.append((first, key, waiting, bool(absent)))
        for number in sorted({item[1][0] for item in ready}):
            for batch in self._batches([item for item in ready if item[1][0] == number]):
                self._start(batch)

    def _batches(self, items):
        """Lists of what runs together, of items of one process set that begin with a request."""
        plain, fused = [], {}
        for item in items:
            first = item[0]
            if self._may_fuse(first):
                look = (first["tensors"][0][0], first["tensors"][0][2], first["op"], tuple(first["scales"]))
                fused.setdefault(look, []).append(item)
            else:
                plain.append([item])
        return [part for group in fused.values() for part in self._parts(group)] + plain

    def _may_fuse(self, request):
        return (
            request["kind"] == "allreduce"
            and request["op"] != "Adasum"
            and len(request["tensors"]) == 1
            and request["bytes"] <= self.fusion
        )

    def _parts(self, group):
        """Parts of `group` of at most `fusion` bytes each."""
        part, size = [], 0
        for item in group:
            more = item[0]["bytes"]
            if part and size + more > self.fusion:
                yield part
                part, size = [], 0
            part.append(item)
            size += more
        yield part

    def _start(self, batch):
        _, key, waiting, _ = batch[0]
        message = {"run": [name for _, (_, name), _, _ in batch], "set": key[0], "kind": waiting.kind}
        members = self.sets[key[0]]
        if waiting.kind in req.ANY_ROWS:
            message["tensors"] = [waiting.requests[rank]["tensors"] for rank in members]
            message["splits"] = [waiting.requests[rank].get("splits") for rank in members]
        if any(absent for _, _, _, absent in batch):  # joined ranks need it to make zeros
            message["spec"] = [first for first, _, _, _ in batch]
        elif self.capacity:
            learn = self.caches[key[0]].learn
            given = [learn(name, list(each.requests.values())) for _, (_, name), each, _ in batch]
            if any(number is not None for number in given):
                message["numbers"] = given
        for rank in members:
            self.deliver(rank, message)

    def _refuse(self, key, asked, text, lost=False):
        for rank in sorted(asked):
            if isinstance(asked, dict) and asked[rank].get("refused"):
                continue  # it has raised the error itself, and may have submitted something else under the name
            self.deliver(rank, {"error": text, "set": key[0], "name": key[1], "left": lost})

    def _change_sets(self, key, request):
        ranks = request["ranks"]
        number = next((n for n, members in self.sets.items() if members == ranks), None)
        if request["kind"] == "add_set":
            fresh = number is None
            if fresh:
                self._numbers = number = self._numbers + 1
                self.sets[number] = ranks
                self.caches[number] = cache.Cache(ranks, self.capacity)
        else:
            fresh = bool(number)
            if fresh:
                self._unfold_bits(number, self.caches[number].pending())
            for other in [other for other in self.waiting if fresh and other[0] == number]:
                text = f"{self.waiting[other].kind} '{other[1]}': its process set {ranks} was removed"
                self._refuse(other, self._pop(other).requests, text)
            if fresh:
                del self.sets[number]
        for rank in range(self.size):
            self.deliver(rank, {request["kind"]: ranks, "number": number, "fresh": fresh, "name": key[1]})
