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

SAME = {  # kind -> what must be equal on all ranks
    "allreduce": ("op", "scales"),
    "reducescatter": ("op", "scales"),
    "broadcast": ("root",),
    "allgather": (),
    "alltoall": (),
    "add_set": ("ranks",),
    "drop_set": ("ranks",),
    "barrier": (),
}
WORDS = {
    "op": "reduction operations",
    "scales": "pre- and postscale factors",
    "root": "root ranks",
    "ranks": "ranks of the process set",
    "device": "devices",
    "dtype": "dtypes",
    "shape": "shapes",
    "dims": "numbers of dimensions",
    "row": "shapes after the first dimension",
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
        request = {**request, "splits": None, "bytes": 0}
        request["tensors"] = [[dtype, shape[1:], device] for dtype, shape, device in request["tensors"]]
    text = json.dumps(request, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def disagreement(requests):
    """Why the ranks' requests contradict each other, as a text.

    Args:
        requests: dict from rank to request, without the ranks that have joined.
    """
    for rank, request in sorted(requests.items()):
        if request.get("refused"):
            return f"{request['kind']} '{request['name']}' was refused on rank {rank}: {request['refused']}"
    first = next(iter(requests.values()))
    kind, name = first["kind"], first["name"]
    if len({(request["kind"], request["name"]) for request in requests.values()}) > 1:
        wrong = _differing("ranks call different collectives", {r: _told(request) for r, request in requests.items()})
        return f"{wrong or 'ranks call different collectives'}. {ORDER}"
    wrong = None
    for what in SAME[kind]:
        wrong = wrong or _differ(what, {rank: request.get(what) for rank, request in requests.items()})
    wrong = wrong or _tensors_differ(kind, requests) or _more_differ(requests)
    return f"{kind} '{name}': {wrong or 'requests differ'}. {ORDER}"


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
    counts = {rank: len(request.get("tensors", ())) for rank, request in requests.items()}
    if len(set(counts.values())) > 1:
        return _differ("numbers of tensors in the group", counts)
    count = next(iter(counts.values()))
    for index in range(count):
        tensors = {rank: request["tensors"][index] for rank, request in requests.items()}
        aspects = [("dtype", lambda t: t[0]), ("device", lambda t: t[2])]
        if kind in ANY_ROWS:
            aspects += [("dims", lambda t: len(t[1])), ("row", lambda t: list(t[1][1:]))]
        else:
            aspects.append(("shape", lambda t: list(t[1])))
        for what, aspect in aspects:
            wrong = _differ(what, {rank: aspect(tensor) for rank, tensor in tensors.items()})
            if wrong:
                labels = {rank: request.get("parts", [None] * count)[index] for rank, request in requests.items()}
                label = next(iter(labels.values()))
                where = f"tensor {index} of the group" if label is None else f"'{label}'"
                return wrong if count == 1 and label is None else f"{wrong} in {where}"
    return _differ("tensors", {rank: request.get("parts") for rank, request in requests.items()})


def _differ(what, values):
    return _differing(f"{WORDS.get(what, what)} differ between ranks", values)


def _differing(what, values):
    """None if all values are equal, else which rank gives which: 'shapes differ: rank 0: [2], ranks 1 and 2: [3]'."""
    groups = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value if isinstance(value, str) else repr(value), []).append(rank)
    if len(groups) == 1:
        return None
    return f"{what} ({'; '.join(f'{listed(ranks)}: {value}' for value, ranks in groups.items())})"


def listed(ranks):
    """'rank 1' or 'ranks 0, 2 and 3'."""
    ranks = [str(rank) for rank in ranks]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"


def without_joined(kind, op):
    """Why zeros cannot replace the tensors of ranks that have joined, or None if they can."""
    if kind == "allreduce" and op in ("Sum", "Average"):
        return None
    what = f"{kind} with {op}" if kind in ("allreduce", "reducescatter") else kind
    return f"{what} is not possible once a rank has joined: zeros would not be neutral for it"
