"""Checks of 12_model_too_large: the bytes that a rank holds, and a model sharded block by block on two real ranks."""

import copy
import math

import torch

from helpers import releases
from helpers.launcher.group import distributed
from helpers.training.gpt import gpt, next_token_loss

from .ranks import on_ranks
from .verdict import exercise, flat, number

# -- bytes of a rank ----------------------------------------------------------------------

# How many of the 4 bytes each a weight costs: what every rank has, and what is shared out among the ranks.
WAYS = {"ZeRO-1": (2, 2), "ZeRO-2": (1, 3), "ZeRO-3": (0, 4), "DDP": (4, 0)}
ASKED = tuple((parameters, ranks) for parameters in (9_923_200, 7_000_000_000) for ranks in (8, 2, 64, 1))


@exercise("With many ranks ZeRO-3 alone has no part that stays as large as the model.")
def bytes_per_rank(answer):
    """`answer(parameters, ranks, way)`: bytes of weights, gradients and Adam's state in fp32 on each rank."""
    for way in WAYS:
        for parameters, ranks in ASKED:
            asked = f"{way}, {parameters:,} weights, {ranks} rank(s)"
            got, problem = number(answer, parameters, ranks, way)
            yield asked, problem
            if not math.isclose(got, _bytes(parameters, ranks, way), rel_tol=1e-6):
                yield f"{asked}: {got:,.0f}. {_hint_bytes(got, parameters, ranks, way)}"


def _bytes(parameters, ranks, way):
    everywhere, shared = WAYS[way]
    return 4 * parameters * (everywhere + shared / ranks)


def _hint_bytes(got, parameters, ranks, way):
    def is_about(wanted):
        return math.isclose(got, wanted, rel_tol=1e-6)

    right = _bytes(parameters, ranks, way)
    other = next((name for name in WAYS if name != way and is_about(_bytes(parameters, ranks, name))), None)
    if is_about(right / 4):
        return "These are numbers. How many bytes has one in fp32?"
    if is_about(right * ranks):
        return "That is what all ranks hold together. How much is it on one of them?"
    if is_about(4 * parameters) or is_about(4 * parameters / ranks):
        return "These are the weights alone. What else has a number for each weight?"
    if other:
        return f"That is what {other} needs. Which of weights, gradients and Adam's state does {way} share out?"
    if any(is_about(4 * parameters * (a + b / ranks)) for a in range(4) for b in range(4 - a) if a + b == 3):
        return "Three numbers for each weight. How many does Adam keep, besides the weight and its gradient?"
    return "Add up weights, gradients and Adam's state; divide by the ranks only what this way shares out."


# -- a sharded model ----------------------------------------------------------------------


@exercise("Each rank holds half of everything, gathers one block at a time, and has the gradients of the whole batch.")
def sharded(answer):
    """`answer(model)`, called on two ranks, shards a GPT block by block and returns it with its AdamW."""
    yield releases.fsdp_refusal("cpu")
    found, problem = on_ranks(_try_sharding, 2, answer)
    yield problem or found[0]


def _try_sharding(answer):
    """On a rank: what is wrong, or None."""
    with distributed() as world:
        torch.manual_seed(0)
        model = gpt(3, 32, 2, 64, 16)
        alone, blocks = copy.deepcopy(model), list(model.blocks)
        batch = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(1))
        got = answer(model)
        if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], torch.optim.Optimizer)):
            return f"your function returned {type(got).__name__}; return the model and its optimizer"
        trained, optimizer = got
        for module in trained.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)  # as in training: torch's fault, not the answer's
        held = sum(_local(p).numel() for p in trained.parameters())
        if held == sum(p.numel() for p in alone.parameters()):
            return "each rank holds all weights. Nothing is sharded."
        whole = _whole_blocks(trained, blocks, batch[2 * world.rank :][:2])
        next_token_loss(alone(batch[:, :-1]), batch[:, 1:]).backward()
        return _wrong_shards(trained, optimizer, alone, whole)


def _whole_blocks(model, blocks, mine):
    """A training step's forward and backward; how many blocks were whole when each block computed."""
    counts = []

    def note(*_):
        counts.append(sum(not any(map(_is_shard, block.parameters())) for block in blocks))

    for block in blocks:
        block.norm1.register_forward_hook(note)
    next_token_loss(model(mine[:, :-1]), mine[:, 1:]).backward()
    return counts


def _wrong_shards(model, optimizer, alone, whole):
    from torch.distributed.fsdp import FSDPModule

    parameters = dict(model.named_parameters())
    left = [name for name, p in parameters.items() if not _is_shard(p)]
    if left:
        return (
            f"{left[0]} and {len(left) - 1} others are whole on each rank, and nobody averages their gradients. "
            "Which call shards what belongs to no block?"
        )
    if whole[0] == len(whole):
        return (
            f"all {len(whole)} blocks are gathered at once, before the first of them computes. "
            "FSDP gathers together what one call of fully_shard was given."
        )
    if max(whole) > 1:
        return f"in forward {max(whole)} blocks are whole at once. When does a block give its gathered weights back?"
    if not all(isinstance(block, FSDPModule) for block in model.blocks):
        return "some blocks were not given to fully_shard themselves."
    wanted = flat([p.grad for p in alone.parameters()])
    if not torch.allclose(flat([p.grad.full_tensor() for p in parameters.values()]), wanted, atol=1e-6):
        return "the gradients are not those of one device with the whole batch. Does anything else change them?"
    before = flat([_local(p) for p in parameters.values()]).clone()
    optimizer.step()
    if torch.equal(before, flat([_local(p) for p in parameters.values()])):
        return "optimizer.step() changes no weight of the model. Which parameters did it get, and when were they made?"
    return None


def _is_shard(parameter):
    return hasattr(parameter, "to_local")  # a DTensor; importing its class is slow


def _local(parameter):
    return parameter.to_local() if _is_shard(parameter) else parameter
