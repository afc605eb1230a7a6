"""A request for a collective, its entry on the rank that submitted it, and whether the requests of all ranks agree.

A request is a dict that is sent as JSON:
    kind     "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "add_set", …
    name     of the tensor (of the group)           set      number of the process set
    tensors  [[dtype, shape, device], …], one, or several that are reduced together
    bytes    of all tensors
    op       name of the reduction                  scales   [prescale, postscale]
    root     rank that broadcasts                   splits   rows for each rank
    ranks    of a process set to add                refused  what the rank found wrong itself
"""

import time

SAME = {  # kind -> what must be equal on all ranks
    "allreduce": ("op", "scales"),
    "reducescatter": ("op", "scales"),
    "broadcast": ("root",),
    "allgather": (),
    "alltoall": (),
    "barrier": (),
    "add_set": ("ranks",),
    "drop_set": ("ranks",),
}
WORDS = {
    "op": "reduction operations",
    "scales": "pre- and postscale factors",
    "root": "root ranks",
    "ranks": "ranks of the process set",
    "kind": "operations",
    "device": "devices",
    "dtype": "dtypes",
    "shape": "shapes",
    "dims": "numbers of dimensions",
    "row": "shapes after the first dimension",
}
ANY_ROWS = ("allgather", "alltoall")


class Entry:
    """One submitted collective. `request` is sent to rank 0; only the data plane looks at `inputs` and `outputs`."""

    __slots__ = ("request", "key", "inputs", "outputs", "ready", "bell", "ended", "error", "result", "submitted")

    def __init__(self, request, inputs=(), outputs=(), ready=None):
        self.request, self.inputs, self.outputs, self.ready = request, inputs, outputs, ready
        self.key = request["set"], request["name"]
        self.ended, self.error, self.result = False, None, None
        self.bell = None  # a threading.Event, if somebody waits: most entries end together with the one waited for
        self.submitted = time.monotonic()

    def end(self, result=None, error=None):
        """Set the result or the error, once; the caller holds the engine's lock. Returns the bell to ring after it."""
        if self.ended:
            return None
        self.error, self.result = error, result
        self.ended = True  # last, since it is read without the lock
        return self.bell

    def value(self):
        """The result of a collective that has ended, or its error raised."""
        if self.error is not None:
            raise self.error
        return self.result


def disagreement(name, requests):
    """Why the ranks' requests under one name contradict each other, as a text, or None.

    Args:
        requests: dict from rank to request, without the ranks that have joined.
    """
    first = next(iter(requests.values()))
    if "refused" not in first and all(request == first for request in requests.values()) and first["kind"] in SAME:
        return None  # the usual case
    for rank, request in sorted(requests.items()):
        if request.get("refused"):
            return f"{request['kind']} '{name}' was refused on rank {rank}: {request['refused']}"
    kind = first["kind"]
    wrong = _differing("kind", {rank: request["kind"] for rank, request in requests.items()})
    for what in SAME.get(kind, ()) if not wrong else ():
        wrong = wrong or _differing(what, {rank: request.get(what) for rank, request in requests.items()})
    wrong = wrong or _tensors_differ(kind, requests)
    if not wrong:
        return None
    return f"{kind} '{name}': {wrong}. All ranks have to give the same under one name"


def _tensors_differ(kind, requests):
    counts = {rank: len(request.get("tensors", ())) for rank, request in requests.items()}
    if len(set(counts.values())) > 1:
        return _differing("numbers of tensors in the group", counts)
    count = next(iter(counts.values()))
    for index in range(count):
        tensors = {rank: request["tensors"][index] for rank, request in requests.items()}
        aspects = [("dtype", lambda t: t[0]), ("device", lambda t: t[2])]
        if kind in ANY_ROWS:
            aspects += [("dims", lambda t: len(t[1])), ("row", lambda t: list(t[1][1:]))]
        else:
            aspects.append(("shape", lambda t: list(t[1])))
        for what, aspect in aspects:
            wrong = _differing(what, {rank: aspect(tensor) for rank, tensor in tensors.items()})
            if wrong:
                return wrong if count == 1 else f"{wrong} in tensor {index} of the group"
    return None


def _differing(what, values):
    """None if all values are equal, else which rank gives which: 'shapes differ: rank 0: [2], ranks 1 and 2: [3]'."""
    groups = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(repr(value), []).append(rank)
    if len(groups) == 1:
        return None
    given = "; ".join(f"{listed(ranks)}: {value}" for value, ranks in groups.items())
    return f"{WORDS.get(what, what)} differ between ranks ({given})"


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
