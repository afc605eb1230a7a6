"""Checks of long sequences and experts, notebook 14: they need no rank."""

import torch

from .verdict import attempt, exercise, formula, nearest, number, same


@exercise
def balanced(answer, say):
    """`answer(length, ranks)`: the positions of each rank, ascending, such that all have equally many pairs."""
    for length, ranks in ((16, 4), (24, 2), (48, 3)):
        say.case(length=length, ranks=ranks)
        given = attempt(answer, length, ranks)
        order = _positions(given)
        yield order is None and say("returned", kind=type(given).__name__)
        yield len(order) != ranks and say("ranks", given=len(order))
        yield sorted(sum(order, [])) != list(range(length)) and say("once")
        yield len(set(map(len, order))) > 1 and say("sizes")
        yield order != list(map(sorted, order)) and say("ascending")
        pairs = [sum(position + 1 for position in of) for of in order]
        key = "nearly" if max(pairs) < 1.5 * min(pairs) else "unequal"
        yield max(pairs) > min(pairs) and say(key, most=max(pairs), least=min(pairs), rank=pairs.index(max(pairs)))


def _positions(given):
    """Lists of whole numbers, or None."""
    try:
        return [[int(position) for position in of] for of in given]
    except (TypeError, ValueError):
        return None


def dropped(loads, capacity):
    """How many choices find their expert full."""
    return sum(max(0, load - capacity) for load in loads)


@formula(
    (((10, 2, 4, 8), 0.1), ((5, 5, 5, 5), 0.0), ((100, 0, 0, 0), 0.5), ((7, 1, 3, 3, 9, 1), 0.25)),
    number,
    part=lambda value, loads, most: value != int(value) or value < 1,
    even=lambda loads, most: -(-sum(loads) // len(loads)),
    largest=lambda loads, most: max(loads),
    drops=lambda value, loads, most: dropped(loads, value) > most * sum(loads),
)
def capacity(loads, most):
    """`answer(loads, most)`: the fewest places an expert needs so that at most the share `most` is dropped."""
    return next(c for c in range(1, max(loads) + 1) if dropped(loads, c) <= most * sum(loads))


KEPT = torch.tensor([[True, True], [True, False], [False, True], [False, False]])


@exercise
def scaled(answer, say):
    """`answer(weights, kept)`, both [tokens, 2]: the kept choices' weights, which sum to 1, or 0 where none is kept."""
    weights, towards = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1], [0.5, 0.5]]).double(), torch.arange(8.0)
    wanted, of_wanted = _with_gradient(_scaled, weights, towards)
    given, gradient = _with_gradient(answer, weights, towards)
    yield gradient is None and say("returned", kind=type(given).__name__)
    yield torch.isnan(given).any() and say("nan")
    left = weights * KEPT
    wrong = {"right": wanted, "unscaled": left, "all": weights, "one share": left / KEPT.double().mean()}
    key = nearest(given, wrong)
    yield key != "right" and say(key)
    yield torch.isnan(gradient).any() and say("nan gradient")
    yield not same(gradient, of_wanted) and say("gradient")


def _scaled(weights, kept):
    left = weights * kept
    total = left.sum(-1, keepdim=True)
    return left / torch.where(total > 0, total, 1.0)


def _with_gradient(function, weights, towards):
    """(the function's result, the gradient of the weights); None where it is no tensor that belongs to them."""
    weights = weights.clone().requires_grad_()
    given = attempt(function, weights, KEPT)
    if not isinstance(given, torch.Tensor) or given.shape != weights.shape:
        return given, None
    if not given.requires_grad:
        return given, torch.zeros_like(weights)
    return given.detach(), torch.autograd.grad((given * towards.view_as(given)).sum(), weights)[0]
