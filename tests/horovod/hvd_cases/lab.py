"""What the tests of platforms.horovod share: inputs known to every rank, a NumPy oracle, a table of cases.

A case is a function that every rank calls; all cases of all sections run in one launch.
"""

import importlib
import re
from contextlib import contextmanager

import numpy as np
import torch

import platforms.horovod.torch as hvd

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NUMBERS = INTEGERS + FLOATS
ERRORS = (RuntimeError, ValueError)  # what a collective may raise; both are bases of CollectiveError
SECTIONS = ("forms", "reduce", "move", "gradients", "world", "sets", "join", "arrays", "mismatch")
LARGER = ("functions", "optimizer", "batch_norm", "elastic", "ddp")  # for at most 3 ranks
CASES = {}  # section -> [(function, least, most number of ranks)]


def case(section, least=1, most=99):
    """Enter a function into the table of `section`; it runs on `least` to `most` ranks."""

    def enter(function):
        CASES.setdefault(section, []).append((function, least, most))
        return function

    return enter


def run(sections, needed=1):
    """Run the cases of some sections that need so many ranks or more; an error says which case and rank it was.

    Each section has a job of its own, so that it starts with unused names.
    """
    for section in sections:
        importlib.import_module(f"hvd_cases.{section}")
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        for function, least, most in CASES[section]:
            if not needed <= least <= size <= most:
                continue
            try:
                function()
            except BaseException as error:
                where = f"{section}.{function.__name__}, rank {rank} of {size}"
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
        hvd.shutdown()


def values(rank, shape, dtype, salt=0, low=-3, high=4):
    """Small whole numbers, so that sums and products of any dtype are exact whatever their order."""
    low = max(low, 0) if dtype in (torch.uint8, torch.bool) else low
    high = 2 if dtype == torch.bool else high
    whole = np.random.default_rng([salt, rank]).integers(low, high, shape)
    if dtype.is_complex:
        return torch.tensor(whole + 1j * (whole - 1)).to(dtype)
    return torch.tensor(whole).to(dtype)


def wide(tensor):
    """The tensor as a NumPy array of the widest dtype of its kind."""
    tensor = tensor.detach()
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128).numpy()
    return tensor.to(torch.float64 if tensor.dtype.is_floating_point else torch.int64).numpy()


def reduced(tensors, op):
    """The oracle: what reducing the tensors of all ranks gives, as a wide NumPy array."""
    arrays = np.stack([wide(tensor) for tensor in tensors])
    if op == hvd.Average:
        total = arrays.sum(0)
        return np.trunc(total / len(tensors)).astype(np.int64) if arrays.dtype == np.int64 else total / len(tensors)
    return {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op](arrays, axis=0)


def same(got, want, dtype=None, tolerance=0.0, what=""):
    """Assert that the tensor `got` has the dtype, shape and values of `want`, a NumPy array or a tensor."""
    if isinstance(want, torch.Tensor):
        dtype = dtype or want.dtype
        want = wide(want)
    want = np.asarray(want)
    assert dtype is None or got.dtype == dtype, f"{what}: dtype {got.dtype}, not {dtype}"
    assert tuple(got.shape) == want.shape, f"{what}: shape {tuple(got.shape)}, not {want.shape}"
    dtype = got.dtype
    if dtype in FLOATS and not tolerance and want.size:
        want = wide(torch.tensor(want).to(dtype))  # an average is rounded once to its own dtype
        tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    gap = np.max(np.abs(wide(got) - want), initial=0.0)
    bound = tolerance * max(1.0, np.max(np.abs(want), initial=0.0))
    assert gap <= bound, f"{what}: off by {gap}\ngot {got}\nwant {want}"


def alike(tensor, what=""):
    """Assert that all ranks have the same bits."""
    everybody = hvd.allgather(tensor.detach().reshape(1, -1).contiguous())
    assert all(torch.equal(row.nan_to_num(), everybody[0].nan_to_num()) for row in everybody), f"{what}: ranks differ"


@contextmanager
def refused(*words, error=ERRORS):
    """The block has to raise an error whose text has each of `words` (an int: a number that stands alone)."""
    try:
        yield
    except error as caught:
        text = str(caught)
        for word in words:
            found = re.search(rf"(?<!\d){word}(?!\d)", text) if isinstance(word, int) else word in text
            assert found, f"{word!r} is not named in: {text}"
    else:
        raise AssertionError("nothing was raised")


def healthy(what="the job goes on"):
    """Assert that an ordinary collective works on all ranks."""
    same(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum), [sum(range(hvd.size() + 1))], what=what)


def everyone(shape, dtype, salt=0, **bounds):
    """The inputs of all ranks."""
    return [values(rank, shape, dtype, salt, **bounds) for rank in range(hvd.size())]
