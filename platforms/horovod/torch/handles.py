"""Submitting collectives to their lane and waiting for them; invalid arguments are found here."""

import itertools
from numbers import Integral

import torch
from torch import Tensor, strided

from ..core import CollectiveError, Entry, job, sets
from ..core.requests import digest_of

_handles = {}  # number -> (Entry, its lane, function that makes the answer of its result)
_numbers = itertools.count(1)
NAME_LIMIT = 2**14
NAMES = 2**12  # names whose requests are remembered


def submit(kind, tensors, outputs, name, process_set, answer, **options):
    """Submit a collective and return its handle; invalid arguments raise here and on all other ranks."""
    here, number = job.current(), sets.number(process_set)
    looks = kind, options, outputs is None, [_look(tensor) for tensor in tensors]
    before = here.given.get((number, name)) if type(name) is str else None
    if before is None or before[0] != looks:  # else only the numbers in its tensors are others than before
        before = looks, *_described(here, kind, tensors, outputs, name, number, process_set, options)
        if type(name) is str:
            if len(here.given) >= NAMES:
                here.given.clear()
            here.given[number, name] = before
    # CUDA tensors are read when what computes them has ended.
    ready = torch.cuda.current_stream(tensors[0].device).record_event() if tensors and tensors[0].is_cuda else None
    entry = here.lanes[number].submit(Entry(before[1], tensors, outputs, ready, before[2]))
    handle = next(_numbers)
    _handles[handle] = entry, here.lanes[number], answer
    return handle


def _look(tensor):
    """What may be wrong with a tensor, apart from its numbers."""
    if not isinstance(tensor, Tensor) or tensor.layout is not strided:
        return None
    return tensor.dtype, tensor.shape, tensor.device, tensor.is_contiguous() or not _overlaps(tensor)


def _described(here, kind, tensors, outputs, name, number, process_set, options):
    """(request, digest); raises CollectiveError, on all other ranks too, if it is invalid."""
    name = here.name(kind, number) if name is None else str(name)
    wrong = _problem(kind, tensors, outputs is not None, name, options, process_set)
    if wrong:
        name = name[:NAME_LIMIT]
        here.lanes[number].refuse({"kind": kind, "name": name, "set": number, "refused": wrong})
        raise CollectiveError(f"{kind} '{name[:200]}': {wrong}")
    described = [[str(t.dtype)[6:], list(t.shape), t.device.type] for t in tensors]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    request = {"kind": kind, "name": name, "set": number, "tensors": described, "bytes": size, **options}
    return request, digest_of(request)


def _problem(kind, tensors, written, name, options, process_set):
    """Why this collective is invalid, or None; `written`: whether the result is written to the tensors."""
    count = len(process_set.ranks)
    if len(name) > NAME_LIMIT:
        return f"its name has {len(name)} characters, more than {NAME_LIMIT}"
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            return f"{type(tensor).__name__} given, a torch.Tensor is needed"
        if tensor.layout is not strided:
            return f"a tensor of layout {tensor.layout} given; sparse gradients go through sparse_allreduce_async"
        if tensor.is_quantized or tensor.device.type == "meta":
            return f"a {'quantized' if tensor.is_quantized else 'meta'} tensor given, which holds no plain numbers"
        if written and tensor.numel() and _overlaps(tensor):
            return "an expanded tensor, whose elements share their memory, cannot be written to; clone() it"
        if kind in ("allgather", "alltoall", "reducescatter") and tensor.dim() == 0:
            return "a tensor of no dimension has no rows to share out; give it one by tensor.reshape(1)"
        wrong = "op" in options and _cannot_reduce(tensor, options["op"])
        if wrong:
            return wrong
    if options.get("op") == "Adasum" and count & (count - 1):
        return f"Adasum combines ranks in pairs: {count} ranks are not a power of two"
    if kind == "broadcast" and options["root"] not in process_set.ranks:
        return f"its root rank {options['root']} is not among the ranks {process_set.ranks}"
    return _wrong_splits(options["splits"], tensors[0].shape[0], count) if kind == "alltoall" else None


def _overlaps(tensor):
    return any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape))


def _cannot_reduce(tensor, op):
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return f"{tensor.dtype} cannot be reduced by any backend; convert it to float16 or float32"
    if tensor.is_complex() and op not in ("Sum", "Average"):
        return f"{op} of complex numbers ({tensor.dtype})"
    if tensor.dtype is torch.bool and op == "Average":
        return "the average of bools; convert them to a number"
    if op == "Adasum" and not tensor.is_floating_point():
        return f"Adasum of {tensor.dtype}; it needs floating-point numbers"
    return None


def whole_splits(splits, rows, count):
    """A list of its own, which the caller cannot change, of an alltoall's `splits`; or, as a text, what is wrong."""
    if splits is None:
        each, rest = divmod(rows, count)
        return [each] * count if not rest else f"{rows} rows do not come out even for {count} ranks; give it `splits`"
    given = splits.tolist() if hasattr(splits, "tolist") else splits
    if isinstance(given, (list, tuple)) and all(isinstance(split, Integral) for split in given):
        return list(map(int, given))
    return f"its splits are {given!r}, a list of whole numbers is needed"


def _wrong_splits(splits, rows, count):
    if isinstance(splits, str):
        return splits
    if len(splits) != count:
        return f"{len(splits)} splits given, one for each of the {count} ranks is needed"
    if any(split < 0 for split in splits):
        return f"negative splits: {splits}"
    return f"its splits {splits} add up to {sum(splits)}, the tensor has {rows} rows" if sum(splits) > rows else None


def poll(handle):
    """Whether the collective has ended; then `synchronize` returns at once."""
    if handle not in _handles:
        return True
    entry, lane, _ = _handles[handle]
    if not entry.ended:
        lane.hurry()
    return entry.ended


def synchronize(handle):
    """Wait for the collective and return its result or raise its error; None for a handle synchronized before."""
    if callable(handle):  # of sparse_allreduce_async
        return handle()
    entry, lane, answer = _handles.get(handle, (None, None, None))
    if entry is None:
        return None
    try:
        result = entry.value() if entry.ended else lane.wait(entry)
    finally:
        _handles.pop(handle, None)
    return answer(result)
