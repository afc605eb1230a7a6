"""Checks of 02_data_parallel: the gradients of a batch in pieces, and from which batch DataParallel pays."""

import torch
import torch.nn.functional as F

from .verdict import attempt, equal, exercise

PIECES = ((4, 4), (5, 3), (4, 2, 1))  # sizes of the pieces of one batch
COSTS = ((20, 1, 4), (20, 1, 2), (60, 2, 4), (70, 0.5, 8), (0, 1, 3), (5, 1, 1))  # ms a step, ms an image, devices


@exercise("Every sample counts the same, however the batch was cut, as if one device had seen all of it.")
def reduce_gradients(answer):
    """`answer(gradients, sizes)` must give the whole batch's gradients.

    `gradients[i]` is the list of replica i's gradients, one a parameter, of the mean loss over its
    own piece of `sizes[i]` samples.
    """
    for sizes in PIECES:
        whole, gradients = _gradients(sizes)
        found, problem = attempt(answer, [[g.clone() for g in of_one] for of_one in gradients], list(sizes))
        hint = problem or _wrong_gradients(found, whole, gradients, sizes)
        yield f"pieces of {' and '.join(map(str, sizes))} samples", hint


def _gradients(sizes):
    """(gradients of the whole batch, those of each piece), all of mean losses, in float64."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Linear(4, 3).double()
    inputs = torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (sum(sizes),), generator=generator)

    def of(some_inputs, some_labels):
        return list(torch.autograd.grad(F.cross_entropy(net(some_inputs), some_labels), net.parameters()))

    return of(inputs, labels), [of(*piece) for piece in zip(inputs.split(sizes), labels.split(sizes), strict=True)]


def _wrong_gradients(found, whole, gradients, sizes):
    if not isinstance(found, (list, tuple)) or len(found) != len(whole):
        return f"return a list of {len(whole)} tensors, one a parameter, in the order in which they came."
    if any(not isinstance(g, torch.Tensor) or g.shape != w.shape for g, w in zip(found, whole, strict=True)):
        return "each result must be a tensor of its parameter's shape. Combine first with first, second with second."
    if equal(found, whole):
        return None
    if equal(found, _weighted(gradients, [1] * len(sizes))):
        return "this is the sum. Each replica has already divided by its own number of samples: the sum is too large."
    if equal(found, _weighted(gradients, [1 / len(sizes)] * len(sizes))):
        return (
            "this is the plain mean. It gives a sample in a small piece more weight than one in a large piece. "
            "How much should a piece count?"
        )
    if equal(found, _weighted(gradients, sizes)):
        return "every sample has the same weight now, but nothing divides by their number: the result is too large."
    return "not the gradients of the whole batch. What did each replica divide by, and what would one device divide by?"


def _weighted(gradients, weights):
    """The sum of the replicas' gradients with these weights, parameter by parameter."""
    return [
        sum(weight * g for weight, g in zip(weights, of_all, strict=True)) for of_all in zip(*gradients, strict=True)
    ]


@exercise("The smaller what is added to a step, and the slower the device, the sooner DataParallel pays.")
def pays_from(answer):
    """`answer(fixed, per_image, devices)`: the smallest global batch that is faster with DataParallel, or None.

    One device takes `per_image` ms an image, DataParallel `per_image` ms an image of a piece and `fixed` ms more.
    """
    for fixed, per_image, devices in COSTS:
        value, problem = attempt(answer, fixed, per_image, devices)
        wanted = None if devices == 1 else devices * (int(fixed / (per_image * (devices - 1))) + 1)
        if problem is None and value != wanted:
            problem = _wrong_batch(value, wanted, fixed, per_image, devices)
        yield f"{fixed} ms a step, {per_image} ms an image, {devices} device{'s' * (devices > 1)}", problem


def _wrong_batch(value, wanted, fixed, per_image, devices):
    if wanted is None:
        return f"you say {value}. One device with something added is never faster: return None"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return f"you return {value!r}, and a batch is a number. With several devices there always is one"
    if value == fixed / per_image:
        return f"you say {value:g}: there the whole batch takes {fixed} ms. But DataParallel computes its pieces, too"
    if value * devices == wanted:
        return f"you say {value:g}. That is a device's piece; the global batch is asked for"
    if value % devices:
        return f"you say {value:g}, which cannot be divided by {devices}. Every device gets the same number of images"
    one, several = per_image * value, fixed + per_image * value / devices
    case = f"you say {value:g}: one device takes {one:g} ms there, DataParallel {several:g} ms"
    if one == several:
        return f"{case}. That is not less"
    return f"{case}. A smaller batch is faster as well" if several < one else f"{case}. That is not faster yet"
