"""Checks that run the reader's function on real ranks: notebooks 00, 03, 11, 12 and 13.

On two of them, and often on three, because a 2 in the answer may be the number of ranks or only look like it.
"""

import copy
import math
from collections import Counter

import torch

from helpers import releases
from helpers.training.gpt import gpt, next_token_loss

from .ranks import call, in_group, on_ranks
from .verdict import exercise, flat, formula, nearest, number, same


@formula(
    ((2,), (3,)),
    lambda answer, n: [number(lambda one=one: one) for one in on_ranks(call, n, answer)],
    own=lambda n: [rank**2 for rank in range(n)],
    divided=lambda n: [rank**2 / n for rank in range(n)],
    sum=lambda n: [n * mean for mean in mean_of_squares.right(n)],
    ranks=lambda n: [(n - 1) / 2] * n,
    different=lambda value, n: len(set(value)) > 1,
)
def mean_of_squares(n):
    """`function()` gives, on every rank, the mean of rank² over all ranks."""
    return [sum(rank**2 for rank in range(n)) / n] * n


@exercise
def accuracy(answer, say):
    """`answer(test, samples)`, called on every rank: the share of all samples that are right, each tested once."""
    for n, samples in ((2, 9), (3, 10), (3, 2)):
        say.case(n=n, samples=samples)
        values, asked = zip(*in_group(_try_accuracy, n, answer, samples), strict=True)
        values, counts = [number(lambda one=one: one) for one in values], Counter(sum(asked, []))
        yield len(counts) < samples and say("untested", n=samples - len(counts))
        yield counts.total() == n * samples and say("all")
        yield max(counts.values()) > 1 and say("twice", sample=max(counts, key=counts.get))
        shares = [[_RIGHT[k] for k in range(rank, samples, n)] for rank in range(n)]
        rates = [sum(share) / len(share) if share else math.nan for share in shares]
        guesses = {"right": [sum(_RIGHT[:samples]) / samples] * n, "own": rates, "rates": [sum(rates) / n] * n}
        key = nearest(values, guesses)
        yield any(map(math.isnan, values)) and say("empty")
        yield key != "right" and say(key, value=values[0])


_RIGHT = (False, True, True, True, False, True, True, True, False, False)  # what the model says of each sample


def _try_accuracy(world, answer, samples):
    """(what the answer returns, the numbers of the samples that it has tested)."""
    asked = []

    def test(numbers):
        asked.extend(mine := [int(number) for number in numbers])
        return torch.tensor([_RIGHT[k] for k in mine], dtype=torch.bool)

    return answer(test, samples), asked


def _until(batches, *ends):
    """Before each step whether it comes before a rank's end."""
    return [[step < end for step in range(max(batches) + 1)] for end in ends]


@formula(
    (((3, 1),), ((2, 2),), ((2, 4, 1),)),
    lambda answer, batches: in_group(_try_everybody, len(batches), answer, batches),
    none=lambda value, batches: any(None in of_rank for of_rank in value),
    own=lambda batches: _until(batches, *batches),
    any=lambda batches: _until(batches, *[max(batches)] * len(batches)),
    never=lambda batches: _until(batches, *[0] * len(batches)),
    disagree=lambda value, batches: any(of_rank != value[0] for of_rank in value),
)
def everybody(batches):
    """`answer(has_batch)`, called by all ranks before each step: True while every rank still has a batch."""
    return _until(batches, *[min(batches)] * len(batches))


def _try_everybody(world, answer, batches):
    """What the answer said before each step, until nobody has a batch any more."""
    said = [answer(step < batches[world.rank]) for step in range(max(batches) + 1)]
    return [None if one is None else bool(one) for one in said]


@exercise
def sharded(answer, say):
    """`answer(model)`, called on two ranks, shards a GPT block by block and returns it with its AdamW."""
    yield releases.fsdp_refusal("cpu")
    key, places = in_group(_try_sharding, 2, answer)[0]
    yield key and say(key, **places)


def _try_sharding(world, answer):
    """(the hint, its places), or (None, {})."""
    torch.manual_seed(0)
    model = gpt(3, 32, 2, 64, 16)
    alone, blocks = copy.deepcopy(model), list(model.blocks)
    batch = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(1))
    got = answer(model)
    if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], torch.optim.Optimizer)):
        return "returned", {"kind": type(got).__name__}
    trained, optimizer = got
    for module in trained.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # as in training: torch's fault, not the answer's
    parameters, counts = dict(trained.named_parameters()), []
    if _held(parameters).numel() == flat(alone.parameters()).numel():
        return "nothing", {}

    def note(*_):
        counts.append(sum(not any(map(_is_shard, block.parameters())) for block in blocks))

    for block in blocks:  # how many are whole when each computes
        block.norm1.register_forward_hook(note)
    mine = batch[2 * world.rank :][:2]
    next_token_loss(trained(mine[:, :-1]), mine[:, 1:]).backward()
    left = [name for name, p in parameters.items() if not _is_shard(p)]
    if left:
        return "whole", {"name": left[0], "n": len(left) - 1}
    if max(counts) > 1:
        return "at once" if counts[0] == len(counts) else "kept", {"n": max(counts)}
    if not all(hasattr(block, "unshard") for block in blocks):
        return "blocks", {}
    next_token_loss(alone(batch[:, :-1]), batch[:, 1:]).backward()
    if not torch.allclose(
        flat([p.grad.full_tensor() for p in parameters.values()]), flat([p.grad for p in alone.parameters()]), atol=1e-6
    ):
        return "gradients", {}
    before = _held(parameters).clone()
    optimizer.step()
    return "optimizer" if torch.equal(before, _held(parameters)) else None, {}


def _is_shard(parameter):
    return hasattr(parameter, "to_local")  # a DTensor; importing its class is slow


def _held(parameters):
    """What this rank has of them."""
    return flat([p.to_local() if _is_shard(p) else p for p in parameters.values()])


@exercise
def row_parallel(answer, say):
    """`answer(part, weight, bias)` on every rank: the whole layer's output, from its columns of input and weight."""
    inputs, weight, bias, towards = _layer()
    product = inputs @ weight.T
    for n in (2, 3):
        say.case(n=n)
        outputs, gradients = zip(*in_group(_try_row, n, answer), strict=True)
        kind = next((output for output in outputs if isinstance(output, str)), None)
        yield kind and say("returned", kind=kind)
        shapes, (rows, columns) = {str(list(output.shape)) for output in outputs}, product.shape
        odd = shapes != {str(list(product.shape))}
        yield odd and say("shape", shapes=" and ".join(sorted(shapes)), columns=columns, rows=rows)
        parts = [part @ of.T for part, of in zip(inputs.chunk(n, 1), weight.chunk(n, 1), strict=True)]
        guesses = (
            ("right", [product + bias] * n),
            ("rank 0", [product + bias, *outputs[1:]]),
            ("own", parts),
            ("biases", [product + n * bias] * n),
            ("no bias", [product] * n),
            ("mean", [product / n + bias] * n),
        )
        key = next((key for key, guess in guesses if same(list(outputs), guess)), "otherwise")
        yield key != "right" and say(key, n=n)
        for rank, (part, of_weight, of_bias) in enumerate(gradients):
            yield (part is None or of_weight is None) and say("cut off")
            mine = [whole.chunk(n, 1)[rank] for whole in (towards @ weight, towards.T @ inputs)]
            yield same(part, n * mine[0]) and say("large", n=n)
            yield not same(of_bias, towards.sum(0)) and say("bias", rank=rank)
            yield not same([part, of_weight], mine) and say("gradients", rank=rank)


def _layer():
    """Inputs, weight and bias of a layer from 12 to 4 numbers, and the gradient of its output."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 12), (4, 12), (4,), (5, 4))]


def _try_row(world, answer):
    """(its output, the gradients of its part, its weight and the bias), or (the type returned, None)."""
    inputs, weight, bias, towards = _layer()
    mine = [whole.chunk(world.size, 1)[world.rank].clone().requires_grad_() for whole in (inputs, weight)]
    mine.append(bias.requires_grad_())
    output = answer(*mine)
    if not isinstance(output, torch.Tensor):
        return type(output).__name__, None
    if output.requires_grad and output.shape == towards.shape:
        (output * towards).sum().backward()
    return output.detach(), [leaf.grad for leaf in mine]
