"""Checks of what follows from its arguments: a table of questions, the right formula, and the wrong ones with hints."""

import itertools

from helpers import costmodel

from .verdict import formula, number


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


@formula(
    ((0.02, 0.05), (0.02, 0.01), (0.05, 0.02), (0.01, 0.05)),
    number,
    part=lambda value, *case: value != int(value),
    one=lambda spread, gain: 4 * (spread / gain) ** 2 // 1 + 1,
    root=lambda spread, gain: 8**0.5 * spread / gain // 1 + 1,
    few=lambda value, *case: value < runs_needed.right(*case),
)
def runs_needed(spread, gain):
    """`answer(spread, gain)`: runs of each side, until twice the standard error of a difference is below the gain."""
    return next(n for n in range(2, 1000) if 2 * spread * (2 / n) ** 0.5 < gain)


@formula(
    ((0.05, 1.6, 50, 0.1), (0.2, 400, 1000, 0.02), (1.0, 1.0, 100, 0.5), (0.1, 25, 100, 0.5)),
    number,
    part=lambda value, *case: value != int(value) or value < 1,
    bits=lambda step, megabytes, rate, most: choose_h.right(step, megabytes / 8, rate, most),
    twice=lambda step, megabytes, rate, most: choose_h.right(step, 2 * megabytes, rate, most),
    of_computing=lambda step, megabytes, rate, most: choose_h.right(step, megabytes, rate, most / (1 + most)),
    few=lambda value, *case: value < choose_h.right(*case),
)
def choose_h(step, megabytes, rate, most):
    """`answer(step, megabytes, rate, most)`: the fewest local steps for sending at most `most` of the time."""
    send = 8 * megabytes / rate
    return next(every for every in itertools.count(1) if send <= most * (every * step + send))
