"""Checks of 13_split_the_model: a row-parallel layer on real ranks, and the micro-batches of a pipeline."""

import torch

from helpers.launcher.group import distributed

from .ranks import on_ranks
from .verdict import exercise, number_or_none

# -- the row-parallel layer ---------------------------------------------------------------

ROWS, INPUTS, OUTPUTS = 5, 12, 4


@exercise("One all-reduce forward, none backward: each rank holds a part of the weight, and all agree on the output.")
def row_parallel(answer):
    """`answer(part, weight, bias)` on every rank: the whole layer's output, from its columns of input and weight."""
    for world_size in (2, 3):
        found, problem = on_ranks(_try_row, world_size, answer)
        yield f"on {world_size} ranks", problem or _wrong_row(found, world_size)


def _layer():
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (ROWS, OUTPUTS)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _try_row(answer):
    """On a rank: (its output, the gradients of its part, its weight and the bias), or a hint."""
    with distributed() as world:
        inputs, weight, bias, towards = _layer()
        mine = [whole.chunk(world.size, 1)[world.rank].clone().requires_grad_() for whole in (inputs, weight)]
        mine.append(bias.requires_grad_())
        output = answer(*mine)
        if not isinstance(output, torch.Tensor):
            return f"your function returned {type(output).__name__}, not a tensor. Is there a `return`?"
        if output.requires_grad and output.shape == towards.shape:
            (output * towards).sum().backward()
        torch.distributed.barrier()  # nobody leaves while another may still wait for it
        return output.detach(), [leaf.grad for leaf in mine]


def _wrong_row(found, world_size):
    for of_rank in found:
        if isinstance(of_rank, str):
            return of_rank
    inputs, weight, bias, towards = _layer()
    product = inputs @ weight.T
    if any(output.shape != product.shape for output, _ in found):
        shapes = " and ".join(sorted({str(list(output.shape)) for output, _ in found}))
        return f"the output has the shape {shapes}. Each rank needs all {OUTPUTS} columns of it, for {ROWS} rows."

    def are(*wanted):  # of the ranks' outputs
        return all(torch.allclose(output, want) for (output, _), want in zip(found, wanted, strict=True))

    if are(*[product + bias] * world_size):
        return _wrong_gradients(found, inputs, weight, towards, world_size)
    if torch.allclose(found[0][0], product + bias):
        return "only rank 0 has the whole output. Which collective leaves the sum on every rank?"
    return _wrong_output(are, product, bias, _parts(inputs, weight, world_size))


def _parts(inputs, weight, world_size):
    columns = zip(inputs.chunk(world_size, 1), weight.chunk(world_size, 1), strict=True)
    return [part @ of_weight.T for part, of_weight in columns]


def _wrong_output(are, product, bias, parts):
    n = len(parts)
    if are(*[part + bias for part in parts]) or are(*parts):
        return "each rank has its own product only. The whole product is the sum over all ranks: who adds them up?"
    if are(*[product + n * bias] * n):
        return f"the bias is in the output {n} times. Every rank holds all of it: before the sum, or after it?"
    if are(*[product] * n):
        return "the products are added up, and the bias is missing."
    if are(*[product / n + bias] * n) or are(*[(product + n * bias) / n] * n):
        return "this is the mean of the ranks' products. A sum over columns, cut into pieces, is the sum of the pieces."
    return (
        "not the output of the whole layer. With its columns of input and weight, each rank has a product of the full "
        "shape; the ranks' products add up to that of the layer, and its bias is added once."
    )


def _wrong_gradients(found, inputs, weight, towards, world_size):
    wanted = towards @ weight, towards.T @ inputs, towards.sum(0)
    for rank, (_, (part, of_weight, of_bias)) in enumerate(found):
        if part is None or of_weight is None:
            return "the output is right, but no gradient reaches the input. Which call cuts it off from autograd?"
        if torch.allclose(part, world_size * wanted[0].chunk(world_size, 1)[rank]):
            return (
                f"the output is right, and the gradients are {world_size} times too large. Every rank has the whole "
                "gradient of the output already; what does the sum's backward do with it?"
            )
        if of_bias is None or not torch.allclose(of_bias, wanted[2]):
            return (
                f"the output is right, but not the gradient of the bias on rank {rank}. Each rank has a copy of the "
                "bias, and the copies must make the same steps."
            )
        of_rank = (whole.chunk(world_size, 1)[rank] for whole in wanted[:2])
        if not all(torch.allclose(a, b) for a, b in zip((part, of_weight), of_rank, strict=True)):
            return f"the output is right, but not the gradients on rank {rank}."
    return None


# -- micro-batches ------------------------------------------------------------------------

CASES = ((2, 16, 0.2), (4, 32, 0.2), (4, 24, 0.25), (2, 12, 0.2), (8, 64, 0.5), (1, 8, 0.2), (8, 16, 0.2))


@exercise("The longer the pipeline, the more micro-batches it needs; where the batch has no more, it idles.")
def micro_batches(answer):
    """`answer(stages, batch, most)`: the fewest micro-batches with a bubble below `most`, or None."""
    for stages, batch, most in CASES:
        case = f"{stages} stage{'s' * (stages > 1)}, {batch} samples, a bubble below {most:.0%}"
        fitting = [m for m in range(1, batch + 1) if batch % m == 0]
        wanted = next((m for m in fitting if bubble(stages, m) < most), None)
        got, problem = number_or_none(answer, stages, batch, most)
        yield case, problem or (None if got == wanted else _wrong_count(got, wanted, stages, batch, most))


def bubble(stages, micro_batches):
    """The share of a step in which a rank of a pipeline waits."""
    return (stages - 1) / (micro_batches + stages - 1)


def _wrong_count(got, wanted, stages, batch, most):
    if got is None:
        share = bubble(stages, wanted)
        return f"you say None, and {wanted} micro-batches of {batch // wanted} have a bubble of {share:.0%}"
    if got < 1 or got != int(got):
        return f"you say {got:g}. A step has a whole number of micro-batches, 1 or more"
    if batch % got:
        return f"you say {got:g}, which cannot divide {batch} samples evenly. Micro-batches are of one size"
    share = bubble(stages, got)
    case = f"you say {got:g}: a bubble of {share:.0%}"
    if wanted is None:
        return f"{case}. Even {batch} micro-batches of one sample have too large a bubble: return None"
    if share == most:
        return f"{case}, and that is not below"
    if share > most:
        return f"{case}. How long does the first micro-batch take to reach the last stage?"
    if (stages - 1) / wanted >= most > (stages - 1) / got:
        return f"{case}. Is yours a share of the computing alone, or of the whole step, its bubble included?"
    if got == batch:
        return f"{case}, with a micro-batch for each sample. Small ones compute badly: {batch} has smaller divisors"
    return f"{case}. There is a smaller number that divides {batch}"
