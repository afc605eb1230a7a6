"""Submitting collectives to the engine and waiting for them; invalid arguments are found here."""

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
    before = here.given.get((number, name)) if type(name) is str else None
    known = _repeated(before, kind, tensors, options) if before else None
    request, digest = known or _described(here, kind, tensors, outputs is not None, name, number, process_set, options)
    entry = here.lanes[number].submit(Entry(request, tensors, outputs, _computed(tensors), digest))
    handle = next(_numbers)
    _handles[handle] = entry, here.lanes[number], answer
    return handle


def _repeated(before, kind, tensors, options):
    """(request, digest) of an earlier call with the same name, if this one differs only in its tensors' numbers."""
    earlier, given, looks, request, digest = before
    if earlier != kind or given != options or len(looks) != len(tensors):
        return None
    for tensor, (dtype, shape, device) in zip(tensors, looks):
        if not (
            isinstance(tensor, Tensor)
            and tensor.dtype is dtype
            and tensor.shape == shape
            and tensor.device == device
            and tensor.layout is strided
            and (tensor.is_contiguous() or not _overlaps(tensor))
        ):
            return None
    return request, digest


def _described(here, kind, tensors, written, name, number, process_set, options):
    """(request, digest); raises CollectiveError, on all other ranks too, if it is invalid."""
    given = name
    name = here.name(kind, number) if name is None else str(name)
    wrong = _problem(kind, tensors, written, name, options, process_set)
    if wrong:
        name = name[:NAME_LIMIT]
        here.lanes[number].refuse({"kind": kind, "name": name, "set": number, "refused": wrong})
        raise CollectiveError(f"{kind} '{name[:200]}': {wrong}")
    described = [[str(t.dtype)[6:], list(t.shape), t.device.type] for t in tensors]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    request = {"kind": kind, "name": name, "set": number, "tensors": described, "bytes": size, **options}
    digest = digest_of(request)
    if type(given) is str:
        before = here.given
        if len(before) >= NAMES:
            before.clear()
        looks = [(t.dtype, t.shape, t.device) for t in tensors]
        before[number, given] = kind, options, looks, request, digest
    return request, digest


def _computed(tensors):
    """The event that the data plane waits for before it reads CUDA tensors."""
    if tensors and tensors[0].is_cuda:
        return torch.cuda.current_stream(tensors[0].device).record_event()
    return None


def _problem(kind, tensors, written, name, options, process_set):
    """Why this collective is invalid, or None; `written`: whether the result is written to the tensors."""
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
        wrong = _cannot_reduce(tensor, options.get("op"))
        if wrong:
            return wrong
    if options.get("op") == "Adasum" and len(process_set.ranks) & (len(process_set.ranks) - 1):
        return f"Adasum combines ranks in pairs: {len(process_set.ranks)} ranks are not a power of two"
    if kind == "broadcast" and options["root"] not in process_set.ranks:
        return f"its root rank {options['root']} is not among the ranks {process_set.ranks}"
    if kind == "alltoall":
        return _wrong_splits(options["splits"], tensors[0].shape[0], len(process_set.ranks))
    return None


def _overlaps(tensor):
    return any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape))


def _cannot_reduce(tensor, op):
    if op is None:
        return None
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
    if sum(splits) > rows:
        return f"its splits {splits} add up to {sum(splits)}, the tensor has {rows} rows"
    return None


def poll(handle):
    """Whether the collective has ended; then `synchronize` returns at once."""
    if handle not in _handles:
        return True
    entry, lane, _ = _handles[handle]
    if not entry.ended:
        lane.hurry()
    return entry.ended


def synchronize(handle):
    """Wait for the collective and return its result; None for a handle that was synchronized before.

    Raises:
        CollectiveError, RankLost: see the module.
    """
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


def first(result):
    """The answer of a collective of one tensor."""
    return result[0]
