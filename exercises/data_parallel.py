"""Checks of 02_data_parallel: the gradients of a batch in pieces, and from which batch DataParallel pays."""

import torch
import torch.nn.functional as F

from .verdict import attempt, equal, exercise, formula, same


@exercise
def reduce_gradients(answer, say):
    """`answer(gradients, sizes)` must give the whole batch's gradients.

    `gradients[i]` is the list of replica i's gradients, one a parameter, of the mean loss over its
    own piece of `sizes[i]` samples.
    """
    for sizes in ((4, 4), (5, 3), (4, 2, 1)):
        whole, gradients = _gradients(sizes)
        found, problem = attempt(answer, [[g.clone() for g in of_one] for of_one in gradients], list(sizes))
        case = say("case", sizes=" + ".join(map(str, sizes)))
        yield case, problem
        listed = isinstance(found, (list, tuple)) and len(found) == len(whole)
        yield case, not listed and say("list", n=len(whole))
        shaped = all(torch.is_tensor(g) and g.shape == w.shape for g, w in zip(found, whole, strict=True))
        yield case, not shaped and say("shape")
        if not equal(found, whole):
            yield case, equal(found, _weighted(gradients, [1] * len(sizes))) and say("sum")
            yield case, equal(found, _weighted(gradients, [1 / len(sizes)] * len(sizes))) and say("mean")
            yield case, say("weighted" if equal(found, _weighted(gradients, sizes)) else "otherwise")


def _gradients(sizes):
    """(gradients of the whole batch, those of each piece), all of mean losses, in float64."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Linear(4, 3).double()
    inputs = torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (sum(sizes),), generator=generator)

    def of(some_inputs, some_labels):
        return list(torch.autograd.grad(F.cross_entropy(net(some_inputs), some_labels), net.parameters()))

    return of(inputs, labels), [of(*piece) for piece in zip(inputs.split(sizes), labels.split(sizes), strict=True)]


def _weighted(gradients, weights):
    """The sum of the replicas' gradients with these weights, parameter by parameter."""
    return [sum(w * g for w, g in zip(weights, of_all, strict=True)) for of_all in zip(*gradients, strict=True)]


def _smallest(fixed, per_image, devices):
    return None if devices == 1 else devices * (int(fixed / (per_image * (devices - 1))) + 1)


def _gain(value, fixed, per_image, devices):
    """ms that DataParallel gains with a batch of `value`."""
    return per_image * value - (fixed + per_image * value / devices)


pays_from = formula(
    "pays_from",
    "`answer(fixed, per_image, devices)`: the smallest global batch that is faster with DataParallel, or None",
    ((20, 1, 4), (20, 1, 2), (60, 2, 4), (70, 0.5, 8), (0, 1, 3), (5, 1, 1)),  # ms a step, ms an image, devices
    _smallest,
    **{
        "never": lambda value, fixed, per_image, devices: devices == 1,
        "no number": lambda value, *case: not isinstance(value, (int, float)) or isinstance(value, bool),
        "pieces": lambda fixed, per_image, devices: fixed / per_image,
        "piece": lambda value, *case: same(value * case[-1], _smallest(*case)),
        "uneven": lambda value, fixed, per_image, devices: value % devices > 0,
        "equal": lambda value, *case: same(_gain(value, *case), 0),
        "smaller": lambda value, *case: _gain(value, *case) > 0,
    },
)
