"""Every public form of every collective, blocking, async, in place and grouped, with what NumPy says it has to give.

An act is a dictionary: the form's name, and the dtype, shape, memory layout, operation, scale factors, members.
"""

import random

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .lab import FLOATS, INTEGERS, NUMBERS, case, reduced, same, values, wide

FORMS = [
    *(f"{group}allreduce{way}" for group in ("", "grouped_") for way in ("", "_", "_async", "_async_")),
    *(
        f"{group}{kind}{way}"
        for group in ("", "grouped_")
        for kind in ("allgather", "reducescatter")
        for way in ("", "_async")
    ),
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "alltoall",
    "alltoall_async",
]
CARRIED = (*NUMBERS, torch.bool, torch.complex64)
SHAPES = ((), (1,), (7,), (0,), (3, 5), (0, 4), (4, 0), (5, 1), (2, 3, 4), (2, 3, 4, 5))
SCALES = ((1.0, 1.0), (0.5, 1.0), (1.0, 1.7), (2.0, 0.25))
OPS = {"average": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
NOTHING = torch.empty(0)
LAYOUTS = {  # tensor -> (view with the same values, its neighbours in memory)
    "whole": lambda t: (t.clone(), NOTHING),
    "transposed": lambda t: (flipped(flipped(t).clone(memory_format=torch.contiguous_format)), NOTHING),
    "gaps": lambda t: torch.stack([t, torch.ones_like(t)], -1).unbind(-1),
    "offset": lambda t: torch.stack([torch.ones_like(t), t]).unbind()[::-1],
    "channels last": lambda t: (t.clone(memory_format=torch.channels_last) if t.dim() == 4 else t.clone(), NOTHING),
}


def flipped(tensor):
    """The tensor with its dimensions in the reverse order, on the same memory."""
    return tensor.permute(tuple(range(tensor.dim()))[::-1])


def gathered(inputs):
    return np.concatenate([wide(tensor) for tensor in inputs])


def block(size, rank, rows):
    """The rows of `rank` when `rows` are scattered: the first ranks get one more where it does not come out even."""
    low = rank * (rows // size) + min(rank, rows % size)
    return slice(low, low + rows // size + (rank < rows % size))


def exchanged(inputs, sent, rank):
    """What `rank` gets when `inputs` are cut as the matrix `sent` [from, to] says."""
    starts = np.concatenate([np.zeros((len(sent), 1), int), np.cumsum(sent, 1)], 1)
    return np.concatenate([wide(t)[starts[r][rank] : starts[r][rank + 1]] for r, t in enumerate(inputs)])


def scaled(array, factor, dtype):
    """As documented: whole numbers are computed in float64 and then cut off."""
    return np.trunc(array * factor) if dtype in INTEGERS else array * factor


def oracle(kind, act, rank):
    """(this rank's input, the array that has to come of it, the options of the call, the wanted received splits)."""
    members, salt, dtype, shape = act["members"], act["salt"], getattr(torch, act["dtype"]), tuple(act["shape"])
    place, size, options = members.index(rank), len(members), {}
    if kind in ("allgather", "alltoall", "reducescatter"):
        shape = shape or (3,)
    if kind in ("allreduce", "reducescatter"):
        op, (before, after) = act["op"], act["scales"]
        bounds = {"low": 1, "high": 3} if op == "product" else {"low": 0} if op == "average" else {}
        inputs = [values(r, shape, dtype, salt, **bounds) for r in members]
        want = reduced(inputs, OPS[op])
        if (before, after) != (1, 1):
            options = {"prescale_factor": before, "postscale_factor": after}
            arrays = np.stack([scaled(wide(one), before, dtype) for one in inputs])
            want = scaled({"sum": np.sum, "min": np.min, "max": np.max}[op](arrays, 0), after, dtype)
        options["op"] = OPS[op]
        want = want[block(size, place, shape[0])] if kind == "reducescatter" else want
        return inputs[place], want, options, None
    if kind == "broadcast":
        root = members[salt % size]
        return values(rank, shape, dtype, salt), wide(values(root, shape, dtype, salt)), {"root_rank": root}, None
    if kind == "allgather":
        inputs = [values(r, (shape[0] * (r + salt) % 5, *shape[1:]), dtype, salt) for r in members]
        return inputs[place], gathered(inputs), {}, None
    sent = np.random.default_rng(salt).integers(0, min(4, shape[0] + 1), (size, size))
    inputs = [values(r, (sent[n].sum() + salt % 2, *shape[1:]), dtype, salt) for n, r in enumerate(members)]
    splits = (list, np.array, lambda s: torch.tensor(s, dtype=torch.int32))[salt % 3](sent[place].tolist())
    return inputs[place], exchanged(inputs, sent, place), {"splits": splits}, sent[:, place].tolist()


def begin(act, group=hvd.global_process_set, api=hvd):
    """Call a form on this rank; returns a function that waits for its result and compares it with the oracle's."""
    form, dtype = act["form"], getattr(torch, act["dtype"])
    kind, grouped = form.replace("grouped_", "").replace("_async", "").rstrip("_"), form.startswith("grouped")
    acts = [act, {**act, "salt": act["salt"] + 1, "shape": (2, *act["shape"])}][: 1 + grouped]
    parts = [oracle(kind, one, hvd.rank()) for one in acts]
    laid = [LAYOUTS[act["layout"]](mine) for mine, *_ in parts]
    given = [view if api is hvd else view.numpy() for view, _ in laid]
    before = [rest.clone() for _, rest in laid]
    options = {"name": act["name"], "process_set": group, **parts[0][2]}
    result = getattr(api, form)(given if grouped else given[0], **options)

    def check():
        answers = api.synchronize(result) if "async" in form else result
        if kind == "alltoall":
            answers, received = answers
            assert received.tolist() == parts[0][3], act
        answers = answers if grouped else [answers]
        for answer, (view, rest), kept, part in zip(answers, laid, before, parts, strict=True):
            answer = torch.as_tensor(answer)
            loose = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6}.get(dtype, 1e-12)
            exact = dtype in (*FLOATS, *INTEGERS) and act["scales"] == (1, 1)
            same(answer, part[1], dtype, 0 if exact else max(loose, 1e-6) * len(act["members"]), what=str(act))
            assert not answer.requires_grad and torch.equal(rest, kept), f"{act}: its neighbours were changed"
            there = bool(answer.numel()) and answer.data_ptr() == view.data_ptr()
            if form.endswith("_"):
                assert there or not answer.numel(), f"{act} is not in place"
            else:
                assert not there and torch.equal(view, part[0]), f"{act} changed or returned its input"

    return check


def acts(members, forms=FORMS, dtypes=CARRIED):
    """Each form with each dtype that it takes; the rest is drawn, alike on all ranks."""
    draw = random.Random(f"{members}")
    for salt, (form, dtype) in enumerate((form, dtype) for form in forms for dtype in dtypes):
        ops = ["sum"] if dtype.is_complex else [*OPS]
        if "reduce" in form and dtype is torch.bool:
            continue  # a case of its own
        if "reducescatter" in form:
            ops = [op for op in ops if op in ("sum", "average")]
        op = draw.choice(ops)
        factors = draw.choice(SCALES) if op in ("sum", "min", "max") and dtype in NUMBERS else (1.0, 1.0)
        yield {
            "form": form,
            "dtype": str(dtype)[6:],
            "shape": draw.choice(SHAPES),
            "op": op,
            "scales": factors,
            "layout": draw.choice([*LAYOUTS]),
            "members": members,
            "salt": salt,
            "name": f"act {salt}",
        }


@case("forms")
def every_form_of_every_collective():
    checks = [begin(act) for act in acts(list(range(hvd.size())))]
    for check in reversed(checks):
        check()
