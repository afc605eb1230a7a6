"""Checks of 13_split_the_model: a row-parallel layer on real ranks, and the micro-batches of a pipeline."""

import torch

from helpers.launcher.group import distributed

from .ranks import on_ranks
from .verdict import exercise, formula, number_or_none, same

ROWS, INPUTS, OUTPUTS = 5, 12, 4


@exercise
def row_parallel(answer, say):
    """`answer(part, weight, bias)` on every rank: the whole layer's output, from its columns of input and weight."""
    for n in (2, 3):
        found, problem = on_ranks(_try_row, n, answer)
        case = say("case", n=n)
        yield case, problem
        kind = next((output for output, _ in found if isinstance(output, str)), None)
        yield case, kind and say("returned", kind=kind)
        inputs, weight, bias, towards = _layer()
        product = inputs @ weight.T
        outputs = [output for output, _ in found]
        shapes = {str(list(output.shape)) for output in outputs}
        odd = shapes != {str(list(product.shape))}
        yield case, odd and say("shape", shapes=" and ".join(sorted(shapes)), columns=OUTPUTS, rows=ROWS)
        if not _are(outputs, [product + bias] * n):
            yield case, torch.allclose(outputs[0], product + bias) and say("rank 0")
            columns = zip(inputs.chunk(n, 1), weight.chunk(n, 1), strict=True)
            parts = [part @ of_weight.T for part, of_weight in columns]
            yield case, (_are(outputs, parts) or _are(outputs, [part + bias for part in parts])) and say("own")
            yield case, _are(outputs, [product + n * bias] * n) and say("biases", n=n)
            yield case, _are(outputs, [product] * n) and say("no bias")
            means = product / n + bias, (product + n * bias) / n
            yield case, say("mean" if any(_are(outputs, [mean] * n) for mean in means) else "otherwise")
        right = towards @ weight, towards.T @ inputs, towards.sum(0)
        for rank, (_, (part, of_weight, of_bias)) in enumerate(found):
            yield case, (part is None or of_weight is None) and say("cut off")
            mine = [whole.chunk(n, 1)[rank] for whole in right[:2]]
            yield case, torch.allclose(part, n * mine[0]) and say("large", n=n)
            yield case, (of_bias is None or not torch.allclose(of_bias, right[2])) and say("bias", rank=rank)
            yield case, not _are([part, of_weight], mine) and say("gradients", rank=rank)


def _are(outputs, wanted):
    return all(torch.allclose(output, want) for output, want in zip(outputs, wanted, strict=True))


def _layer():
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (ROWS, OUTPUTS)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _try_row(answer):
    """On a rank: (its output, the gradients of its part, its weight and the bias), or (the type returned, None)."""
    with distributed() as world:
        inputs, weight, bias, towards = _layer()
        mine = [whole.chunk(world.size, 1)[world.rank].clone().requires_grad_() for whole in (inputs, weight)]
        mine.append(bias.requires_grad_())
        output = answer(*mine)
        if not isinstance(output, torch.Tensor):
            return type(output).__name__, None
        if output.requires_grad and output.shape == towards.shape:
            (output * towards).sum().backward()
        torch.distributed.barrier()  # nobody leaves while another may still wait for it
        return output.detach(), [leaf.grad for leaf in mine]


def bubble(stages, micro_batches):
    """The share of a step in which a rank of a pipeline waits."""
    return (stages - 1) / (micro_batches + stages - 1)


def _fewest(stages, batch, most):
    return next((m for m in range(1, batch + 1) if batch % m == 0 and bubble(stages, m) < most), None)


micro_batches = formula(
    "micro_batches",
    "`answer(stages, batch, most)`: the fewest micro-batches with a bubble below `most`, or None.",
    ((2, 16, 0.2), (4, 32, 0.2), (4, 24, 0.25), (2, 12, 0.2), (8, 64, 0.5), (1, 8, 0.2), (8, 16, 0.2)),
    _fewest,
    number_or_none,
    **{
        "none": lambda value, *case: value is None,
        "no count": lambda value, *case: value < 1 or value != int(value),
        "uneven": lambda value, stages, batch, most: batch % value > 0,
        "never": lambda value, *case: _fewest(*case) is None,
        "not below": lambda value, stages, batch, most: same(bubble(stages, value), most),
        "larger": lambda value, stages, batch, most: bubble(stages, value) > most,
        "share": lambda value, stages, batch, most: (
            (stages - 1) / _fewest(stages, batch, most) >= most > (stages - 1) / value
        ),
        "each": lambda stages, batch, most: batch,
    },
)
