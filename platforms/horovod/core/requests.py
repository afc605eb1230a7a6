"""A request for a collective, its entry on the rank that made it, and whether the requests of all ranks agree.

A request is a dict that can be sent as JSON:
    kind     "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "add_set", …
    name     of the tensor (of the group)           set      number of the process set
    tensors  [[dtype, shape, device], …], one, or several that are reduced together
    bytes    of all tensors
    op       name of the reduction                  scales   [prescale, postscale]
    root     rank that broadcasts                   splits   rows for each rank
    ranks    of a process set to add                refused  what the rank found wrong itself
    more     requests that follow without a check of their own, see `lane`
"""

import hashlib
import json
import time

SAME = {  # what must be equal on all ranks -> its words
    "op": "reduction operations",
    "scales": "pre- and postscale factors",
    "root": "root ranks",
    "ranks": "ranks of the process set",
}
ANY_ROWS = ("allgather", "alltoall")
ORDER = "All ranks have to call the same collectives, with the same arguments, in the same order"


class Entry:
    """One submitted collective. All ranks compare `digest`; only `collectives` looks at `inputs` and `outputs`.

    A `follower` was announced by the `more` of an earlier request, and is not compared again.
    """

    __slots__ = ("request", "digest", "inputs", "outputs", "ready", "follower", "bell", "ended", "error", "result")
    __slots__ += ("submitted",)

    def __init__(self, request, inputs=(), outputs=(), ready=None, digest=None, follower=False):
        self.request, self.inputs, self.outputs, self.ready = request, inputs, outputs, ready
        self.digest, self.follower = digest or digest_of(request), follower
        self.ended, self.error, self.result = False, None, None
        self.bell = None  # a threading.Event, if somebody waits: most entries end together with the one waited for
        self.submitted = time.monotonic()

    @property
    def key(self):
        """The name under which it is in flight; a follower has none of its own."""
        return None if self.follower else self.request["name"]

    def end(self, result=None, error=None):
        """Set the result or the error, once; returns the bell to ring after it, if somebody waits."""
        if self.ended:
            return None
        self.error, self.result, self.inputs = error, result, ()
        self.ended = True  # last, since it is read without a lock
        return self.bell

    def value(self):
        """The result of a collective that has ended, or its error raised."""
        if self.error is not None:
            raise self.error
        return self.result


def digest_of(request):
    """64 bits that are equal where ranks ask for the same; rows and splits of allgather and alltoall may differ."""
    if request["kind"] in ANY_ROWS and "refused" not in request:
        tensors = [[dtype, shape[1:], device] for dtype, shape, device in request["tensors"]]
        request = {**request, "splits": None, "bytes": 0, "tensors": tensors}
    text = json.dumps(request, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def disagreement(requests):
    """Why requests contradict each other, as a text; `requests`: {rank: request} of the ranks that have not joined."""
    for rank, request in sorted(requests.items()):
        if request.get("refused"):
            return f"{request['kind']} '{request['name']}' was refused on rank {rank}: {request['refused']}"
    first = next(iter(requests.values()))
    if any((request["kind"], request["name"]) != (first["kind"], first["name"]) for request in requests.values()):
        wrong = _differing("ranks call different collectives", {r: _told(request) for r, request in requests.items()})
        return f"{wrong or 'ranks call different collectives'}. {ORDER}"
    wrong = None
    for what, words in SAME.items():
        wrong = wrong or _differ(words, {rank: request.get(what) for rank, request in requests.items()})
    wrong = wrong or _tensors_differ(first["kind"], requests) or _more_differ(requests)
    return f"{first['kind']} '{first['name']}': {wrong or 'requests differ'}. {ORDER}"


def _told(request):
    tensors = ", ".join(f"{dtype} {shape}" for dtype, shape, _ in request.get("tensors", ())[:3])
    more = ", …" if len(request.get("tensors", ())) > 3 else ""
    return f"{request['kind']} '{request['name']}' {tensors}{more}".rstrip()


def _more_differ(requests):
    """The first of the announced requests about which the ranks differ."""
    lists = {rank: request.get("more", []) for rank, request in requests.items()}
    wrong = _differ("numbers of messages", {rank: len(more) for rank, more in lists.items()})
    for each in zip(*lists.values()) if not wrong else ():
        if any(one != each[0] for one in each):
            return disagreement(dict(zip(lists, each))).partition(f". {ORDER}")[0]
    return wrong


def _tensors_differ(kind, requests):
    wrong = _differ("numbers of tensors in the group", {r: len(of.get("tensors", ())) for r, of in requests.items()})
    if wrong:
        return wrong
    rows = {"numbers of dimensions": lambda t: len(t[1]), "shapes after the first dimension": lambda t: list(t[1][1:])}
    aspects = {"dtypes": lambda t: t[0], "devices": lambda t: t[2]}
    aspects.update(rows if kind in ANY_ROWS else {"shapes": lambda t: list(t[1])})
    first = next(iter(requests.values()))
    count, parts = len(first.get("tensors", ())), first.get("parts")
    for index in range(count):
        for what, aspect in aspects.items():
            wrong = _differ(what, {rank: aspect(request["tensors"][index]) for rank, request in requests.items()})
            if wrong and count == 1 and not parts:
                return wrong
            if wrong:
                return f"{wrong} in " + (f"'{parts[index]}'" if parts else f"tensor {index} of the group")
    return _differ("tensors", {rank: request.get("parts") for rank, request in requests.items()})


def _differ(what, values):
    return _differing(f"{what} differ between ranks", values)


def _differing(what, values):
    """None if all values are equal, else which rank gives which: 'shapes differ: rank 0: [2], ranks 1 and 2: [3]'."""
    groups = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value if isinstance(value, str) else repr(value), []).append(rank)
    told = "; ".join(f"{listed(ranks)}: {value}" for value, ranks in groups.items())
    return f"{what} ({told})" if len(groups) > 1 else None


def listed(ranks):
    """'rank 1' or 'ranks 0, 2 and 3'."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def without_joined(kind, op):
    """Why zeros cannot replace the tensors of ranks that have joined, or None if they can."""
    if kind == "allreduce" and op in ("Sum", "Average"):
        return None
    what = f"{kind} with {op}" if kind in ("allreduce", "reducescatter") else kind
    return f"{what} is not possible once a rank has joined: zeros would not be neutral for it"
