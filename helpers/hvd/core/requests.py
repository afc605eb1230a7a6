"""What a rank asks for, and whether the ranks agree about it. Pure functions on plain values.

A request is a dict, since it travels as JSON:
    kind     "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "add_set", …
    name     of the tensor (of the group)           set      number of the process set
    tensors  [[dtype, shape, device], …], one, or several that are reduced together
    bytes    of all tensors
    op       name of the reduction                  scales   [prescale, postscale]
    root     rank that broadcasts                   splits   rows for each rank
    ranks    of a process set to add                refused  what the rank found wrong itself
"""

SAME = {  # kind -> what all ranks must give alike
    "allreduce": ("op", "scales"), "reducescatter": ("op", "scales"), "broadcast": ("root",),
    "allgather": (), "alltoall": (), "barrier": (), "add_set": ("ranks",), "drop_set": ("ranks",),
}  # fmt: skip
WORDS = {
    "op": "reduction operations", "scales": "pre- and postscale factors", "root": "root ranks",
    "ranks": "ranks of the process set", "kind": "operations", "device": "devices", "dtype": "dtypes",
    "shape": "shapes", "dims": "numbers of dimensions", "row": "shapes after the first dimension",
}  # fmt: skip
ANY_ROWS = ("allgather", "alltoall")


def disagreement(name, requests):
    """What is wrong with these requests of all ranks under one name, as a text, or None.

    Args:
        requests: dict from rank to request; ranks that joined are not in it.
    """
    first = next(iter(requests.values()))
    if "refused" not in first and all(request == first for request in requests.values()) and first["kind"] in SAME:
        return None  # as it nearly always is
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
    """None if all are alike, else who gives what: 'shapes differ: rank 0: [2], ranks 1 and 2: [3]'."""
    groups = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(repr(value), []).append(rank)
    if len(groups) == 1:
        return None
    told = "; ".join(f"{listed(ranks)}: {value}" for value, ranks in groups.items())
    return f"{WORDS.get(what, what)} differ between ranks ({told})"


def listed(ranks):
    """'rank 1' or 'ranks 0, 2 and 3'."""
    ranks = [str(rank) for rank in ranks]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"


def without_joined(kind, op):
    """Why a rank that joined cannot be stood in for, or None."""
    if kind == "allreduce" and op in ("Sum", "Average"):
        return None
    what = f"{kind} with {op}" if kind in ("allreduce", "reducescatter") else kind
    return f"{what} is not possible once a rank has joined: zeros would not be neutral for it"
