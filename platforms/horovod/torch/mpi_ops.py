"""Collectives on torch tensors, by Horovod's names (https://horovod.readthedocs.io/en/stable/api.html).

All ranks of a process set submit the same collectives in the same order; one runs when all of them have. A call without
a name gets the number of calls of its kind. When ranks give different arguments, each of them raises CollectiveError;
when a rank is lost, the others raise RankLost. Both are HorovodInternalErrors, and those are RuntimeErrors.

A form with `_async` returns a handle for `poll` and `synchronize`, one with `_` at its end works in place, `grouped_`
takes a list of tensors, none of which begins before all ranks have submitted all. Through the others gradients flow.
"""

import functools

import torch

from ..core import *  # noqa: F403  (Horovod has these here too)
from ..core import Adasum, Average, Sum, global_process_set, job, rank, reduction, sets
from ..signature import SCALES, SET, signed
from .compression import Compression
from .handles import poll, submit, synchronize, whole_splits

# Each rank's indices were checked when its tensor was made; newer torch warns unless this is given.
UNCHECKED = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}
COLLECTIVES = {  # name -> (its parameters after the tensor, its forms, what it gives)
    "allreduce": (
        f"average=None, name=None, op=None, {SCALES}, {SET}",
        "grouped _ _async _async_",
        "postscale · op over ranks of (prescale · tensor), of one shape. op: Average, Sum, Min, Max, Product, "
        "Adasum (2^k ranks). Averages of integers are truncated, scaled integers computed in float64 and truncated.",
    ),
    "reducescatter": (
        f"name=None, op=Average, {SET}, {SCALES}",
        "grouped _async",
        "This rank's rows of the reduced tensor; if they cannot be divided evenly, the first ranks get one more.",
    ),
    "allgather": (
        f"name=None, {SET}",
        "grouped _async",
        "The ranks' tensors one after the other, [rows of all ranks, …]; ranks may give unequal numbers of rows.",
    ),
    "broadcast": (
        f"root_rank, name=None, {SET}",
        "_ _async _async_",
        "The tensor of `root_rank`, a rank of the world in process sets too, on every rank.",
    ),
    "alltoall": (
        f"splits=None, name=None, {SET}",
        "_async",
        "The i-th part of the rows goes to the i-th rank. `splits`: rows for each rank (default: equally many). With "
        "`splits`, and by a handle, also how many came from each rank (int32).",
    ),
}


def _begin(kind, tensors, name, process_set, answer, in_place=False, **given):
    """Submit a collective of some tensors; returns its handle."""
    options = {}
    if kind in ("allreduce", "reducescatter"):
        op = reduction(given["op"], given.get("average"))
        if kind == "reducescatter" and op == Adasum:
            raise NotImplementedError("reducescatter with Adasum: it combines whole tensors; use allreduce")
        scales = [float(given["prescale_factor"]), float(given["postscale_factor"])]
        options = {"op": op.name, "scales": scales}
    elif kind == "broadcast":
        options = {"root": int(given["root_rank"])}
    elif kind == "alltoall":
        job.current()
        rows = tensors[0].shape[0] if isinstance(tensors[0], torch.Tensor) and tensors[0].dim() else 0
        options = {"splits": whole_splits(given["splits"], rows, len(process_set.ranks))}
        answer = functools.partial(_with_counts, given["splits"])
    return submit(kind, tensors, tensors if in_place else None, name, process_set, answer, **options)


def _first(result):
    return result[0]


def _with_counts(splits, result):
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
    return result[0], torch.tensor(result[1], dtype=like.dtype, device=like.device)


def _form(kind, group, way):
    """The form of a collective with `group` before its name and `way` after it."""
    parameters, _, about = COLLECTIVES[kind]
    what, answer = ("tensors", list) if group else ("tensor", _first)

    @signed(f"{what}, {parameters}")
    def form(name, process_set, **given):
        tensors = list(given.pop(what)) if group else [given.pop(what)]
        return _begin(kind, tensors, name, process_set, answer, way.endswith("_"), **given)

    if way == "_":
        begin = form
        form = functools.wraps(begin)(lambda *args, **options: synchronize(begin(*args, **options)))
    elif way == "":
        form = _differentiable(kind, what, parameters)
    form.__name__ = form.__qualname__ = f"{group}{kind}{way}"
    form.__doc__ = f"{about} See the module for the forms `{kind}` has."
    return form


def _differentiable(kind, what, parameters):
    parameters = parameters.replace("op=None", "compression=none, op=None").replace("op=A", "compression=none, op=A")

    @signed(f"{what}, {parameters}", none=Compression.none)
    def form(compression=Compression.none, **given):
        tensors = given.pop(what)
        if "op" in given:
            given["op"] = reduction(given["op"], given.pop("average", None))
        pairs = [compression.compress(tensor) for tensor in (tensors if what == "tensors" else [tensors])]
        results = _Collective.apply(kind, given, *(small for small, _ in pairs))
        if kind == "alltoall":
            return results[0] if given["splits"] is None else results
        results = [compression.decompress(result, how) for result, (_, how) in zip(results, pairs)]
        return results if what == "tensors" else results[0]

    return form


class _Collective(torch.autograd.Function):
    """A collective of some tensors, with the gradients that Horovod gives it."""

    @staticmethod
    def forward(ctx, kind, given, *tensors):
        results = tuple(synchronize(_begin(kind, list(tensors), answer=tuple, **given)))
        ctx.kind, ctx.given, ctx.rows = kind, given, [tensor.shape[:1] for tensor in tensors]
        if kind == "alltoall":
            ctx.received = results[1].tolist()  # the tensor is the caller's, who may write to it before backward
            ctx.mark_non_differentiable(results[1])
        return results

    @staticmethod
    def backward(ctx, *gradients):
        op, group = ctx.given.get("op", Sum), ctx.given["process_set"]
        if op not in (Sum, Average):
            raise NotImplementedError(f"the gradient of {ctx.kind} with {op.name}; Sum and Average have one")
        return (None, None, *GRADIENTS[ctx.kind](ctx, gradients, group))


def _of_allreduce(ctx, gradients, group):
    return _Collective.apply("allreduce", {**ctx.given, "name": None}, *gradients)


def _of_reducescatter(ctx, gradients, group):
    """As in Horovod, that of Average is all ranks' gradients put together, that of Sum `size` times that."""
    factor = ctx.given["prescale_factor"] * ctx.given["postscale_factor"]
    factor *= group.size() if ctx.given["op"] == Sum else 1
    return FORMS["grouped_allgather"]([factor * each for each in gradients], process_set=group)


def _of_allgather(ctx, gradients, group):
    """This rank's part of the average of the ranks' gradients."""
    rows = [shape[0] for shape in ctx.rows]
    everybodys = FORMS["allgather"](torch.tensor([rows]), process_set=group)
    before = everybodys[: group.rank()].sum(0).tolist()
    reduced = FORMS["grouped_allreduce"](gradients, process_set=group)
    return [gradient.narrow(0, begin, count) for gradient, begin, count in zip(reduced, before, rows)]


def _of_broadcast(ctx, gradients, group):
    """The average of the ranks' gradients on the root and zero elsewhere."""
    reduced = FORMS["allreduce"](gradients[0], process_set=group)
    return [reduced if rank() == ctx.given["root_rank"] else torch.zeros_like(reduced)]


def _of_alltoall(ctx, gradients, group):
    back, missing = FORMS["alltoall"](gradients[0], ctx.received, process_set=group)[0], ctx.rows[0][0]
    missing -= back.shape[0]  # rows that the splits left out were not sent
    return [torch.cat([back, back.new_zeros(missing, *back.shape[1:])]) if missing else back]


GRADIENTS = {
    "allreduce": _of_allreduce,
    "reducescatter": _of_reducescatter,
    "allgather": _of_allgather,
    "broadcast": _of_broadcast,
    "alltoall": _of_alltoall,
}
FORMS = {
    f"{group}{kind}{way}": _form(kind, group, way)
    for kind, (_, forms, _) in COLLECTIVES.items()
    for group in ("", "grouped_")[: 1 + ("grouped" in forms)]
    for way in ["", *forms.replace("grouped", "").split()]
}
globals().update(FORMS)


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Begin to reduce a sparse COO tensor (Average or Sum) by gathering everybody's entries.

    Returns a function that waits and returns the coalesced sparse tensor; `synchronize` calls it too.
    """
    if op not in (Average, Sum):
        raise ValueError(f"{reduction(op, None).name} of sparse tensors; Average and Sum are possible")
    given, gather = tensor.coalesce(), FORMS["allgather_async"]
    handles = (
        gather(given._indices().t(), f"{name}.indices", process_set),
        gather(given._values(), f"{name}.values", process_set),
    )

    def finish():
        where, what = map(synchronize, handles)
        what = what / process_set.size() if op == Average else what
        return torch.sparse_coo_tensor(where.t(), what, tensor.shape, **UNCHECKED).coalesce()

    return finish


def join(device=-1):
    """This rank has no more data: it adds zeros until all have joined; returns the rank that joined last."""
    return job.current().join()


def barrier(process_set=global_process_set):
    """Wait until all ranks of the process set have called this."""
    job.current().barrier(sets.number(process_set))


__all__ = [*FORMS, "barrier", "join", "poll", "sparse_allreduce_async", "synchronize"]
