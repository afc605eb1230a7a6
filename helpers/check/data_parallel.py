"""Checks of 02_data_parallel: scattering a batch, and adding up the gradients of its pieces."""

import torch
import torch.nn.functional as F

from .verdict import attempt, equal, exercise

SCATTERED = ((64, 2), (10, 4), (5, 4), (7, 3), (3, 4))  # (samples, devices)
PIECES = ((4, 4), (5, 3), (4, 2, 1))  # sizes of the pieces of one batch


@exercise("No sample is lost, none comes twice, the order is kept, and no device waits for a longer piece.")
def scatter(answer):
    """`answer(batch, devices)` must give a list of `devices` pieces of `batch`, as equal as can be."""
    for samples, devices in SCATTERED:
        batch = torch.arange(2 * samples).view(samples, 2)
        pieces, problem = attempt(answer, batch.clone(), devices)
        yield f"{samples} samples on {devices} devices", problem or _wrong_pieces(pieces, batch, devices)


def _wrong_pieces(pieces, batch, devices):
    if not isinstance(pieces, (list, tuple)) or not all(isinstance(piece, torch.Tensor) for piece in pieces):
        return f"return a list of tensors, one a device; this is a {type(pieces).__name__}."
    sizes = [piece.size(0) if piece.dim() else 0 for piece in pieces]
    if len(pieces) != devices:
        return f"there are {len(pieces)} pieces, of {sizes} samples. Every device needs a piece, even if it is small."
    if any(piece.shape[1:] != batch.shape[1:] for piece in pieces):
        return "the pieces have another shape than samples of the batch. Cut along the first dimension only."
    if sum(sizes) != len(batch):
        return f"the pieces have {sizes} samples, {sum(sizes)} in all. Every sample belongs to exactly one piece."
    if max(sizes) - min(sizes) > 1:
        return (
            f"the pieces have {sizes} samples. The step takes as long as the largest piece: "
            "how small can that be? Start from samples // devices, and ask what to do with the remainder."
        )
    if torch.cat(list(pieces)).tolist() != batch.tolist():
        return "joined again, the pieces are not the batch. Keep the order, or outputs and labels do not fit any more."
    return None


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
