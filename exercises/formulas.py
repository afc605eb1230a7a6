"""Checks of what follows from its arguments: a table of questions, the right formula, and the wrong ones with hints."""

from functools import partial

from helpers import costmodel

from .verdict import formula, number, same


@formula(
    ((1e6, 2, 1e-4, 1e-8), (1e8, 8, 1e-5, 1e-10), (0.0, 16, 1e-3, 1e-9), (4e6, 1024, 1e-6, 1e-9), (1e6, 1, 1.0, 1.0)),
    number,
    alone=lambda value, size, n, latency, per_byte: n == 1,
    bytes=lambda size, n, latency, per_byte: ring_seconds.right(size, n, 0, per_byte),
    once=lambda *case: ring_seconds.right(*case) / 2,
)
def ring_seconds(size, n, latency, per_byte):
    """`answer(size, n, latency, per_byte)`: seconds of a ring all-reduce of `size` bytes on `n` devices."""
    return sum(costmodel.all_reduce(size, n, costmodel.Link(latency, per_byte)))


@formula(
    (
        (1.0, (1.0,), (0.3,)),
        (1.0, (0.2, 0.5, 1.0), (0.1, 0.1, 0.2)),
        (1.0, (0.2, 0.4, 1.0), (0.9, 0.4, 0.1)),
        (2.0, (0.5, 1.0), (0.1, 0.0)),
    ),
    number,
    all=lambda backward, ready, costs: sum(costs),
    last=lambda backward, ready, costs: costs[-1],
    negative=lambda value, *case: value < 0,
    less=lambda value, *case: value > not_hidden.right(*case),
)
def not_hidden(backward, ready, costs):
    """`answer(backward, ready, costs)`: seconds of sending that are left when backward is over."""
    return costmodel.overlap(backward, ready, costs, [0.0] * len(costs))[1]


# How many of the 4 bytes each a weight costs: what every rank has, and what is shared out among the ranks.
WAYS = {"ZeRO-1": (2, 2), "ZeRO-2": (1, 3), "ZeRO-3": (0, 4), "DDP": (4, 0)}


def _bytes(everywhere, shared):
    return lambda parameters, ranks, way: 4 * parameters * (everywhere + shared / ranks)


def _is_one_of(*pairs):
    return lambda value, *case: any(same(value, _bytes(*pair)(*case)) for pair in pairs)


@formula(
    [(n, ranks, way) for way in WAYS for n in (9_923_200, 7_000_000_000) for ranks in (8, 2, 64, 1)],
    number,
    numbers=lambda *case: bytes_per_rank.right(*case) / 4,
    all=lambda n, ranks, way: bytes_per_rank.right(n, ranks, way) * ranks,
    weights=_is_one_of((1, 0), (0, 1)),
    other=_is_one_of(*WAYS.values()),
    adam=_is_one_of(*((a, 3 - a) for a in range(4))),
)
def bytes_per_rank(parameters, ranks, way):
    """`answer(parameters, ranks, way)`: bytes of weights, gradients and Adam's state in fp32 on each rank."""
    return _bytes(*WAYS[way])(parameters, ranks, way)


def bubble(stages, micro_batches):
    """The share of a step in which a rank of a pipeline waits."""
    return (stages - 1) / (micro_batches + stages - 1)


@formula(
    ((2, 16, 0.2), (4, 32, 0.2), (4, 24, 0.25), (2, 12, 0.2), (8, 64, 0.5), (1, 8, 0.2), (8, 16, 0.2)),
    partial(number, none=True),
    none=lambda value, *case: value is None,
    count=lambda value, *case: value < 1 or value != int(value),
    uneven=lambda value, stages, batch, most: batch % value > 0,
    never=lambda value, *case: micro_batches.right(*case) is None,
    just=lambda value, stages, batch, most: same(bubble(stages, value), most),
    larger=lambda value, stages, batch, most: bubble(stages, value) > most,
    each=lambda stages, batch, most: batch,
)
def micro_batches(stages, batch, most):
    """`answer(stages, batch, most)`: the fewest micro-batches with a bubble below `most`, or None."""
    return next((m for m in range(1, batch + 1) if batch % m == 0 and bubble(stages, m) < most), None)
