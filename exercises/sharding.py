"""Checks of 12_model_too_large: the bytes that a rank holds, and a model sharded block by block on two real ranks."""

import copy

import torch

from helpers import releases
from helpers.launcher.group import distributed
from helpers.training.gpt import gpt, next_token_loss

from .ranks import on_ranks
from .verdict import exercise, flat, formula, number, same

# How many of the 4 bytes each a weight costs: what every rank has, and what is shared out among the ranks.
WAYS = {"ZeRO-1": (2, 2), "ZeRO-2": (1, 3), "ZeRO-3": (0, 4), "DDP": (4, 0)}


def _bytes(everywhere, shared):
    return lambda parameters, ranks, way: 4 * parameters * (everywhere + shared / ranks)


def _is_one_of(pairs):
    return lambda value, *case: any(same(value, _bytes(*pair)(*case)) for pair in pairs)


bytes_per_rank = formula(
    "bytes_per_rank",
    "`answer(parameters, ranks, way)`: bytes of weights, gradients and Adam's state in fp32 on each rank.",
    tuple(
        (parameters, ranks, way) for way in WAYS for parameters in (9_923_200, 7_000_000_000) for ranks in (8, 2, 64, 1)
    ),
    lambda parameters, ranks, way: _bytes(*WAYS[way])(parameters, ranks, way),
    number,
    numbers=lambda parameters, ranks, way: _bytes(*WAYS[way])(parameters, ranks, way) / 4,
    all=lambda parameters, ranks, way: _bytes(*WAYS[way])(parameters, ranks, way) * ranks,
    weights=_is_one_of([(1, 0), (0, 1)]),
    other=_is_one_of(WAYS.values()),
    adam=_is_one_of([(a, 3 - a) for a in range(4)]),
)


@exercise
def sharded(answer, say):
    """`answer(model)`, called on two ranks, shards a GPT block by block and returns it with its AdamW."""
    yield releases.fsdp_refusal("cpu")
    found, problem = on_ranks(_try_sharding, 2, answer)
    yield problem
    key, places = found[0]
    yield key and say(key, **places)


def _try_sharding(answer):
    """On a rank: (the hint, its places), or (None, {})."""
    with distributed() as world:
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
        if sum(_local(p).numel() for p in trained.parameters()) == sum(p.numel() for p in alone.parameters()):
            return "nothing", {}
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
        return "whole", {"name": left[0], "n": len(left) - 1}
    if max(whole) > 1:
        return "at once" if whole[0] == len(whole) else "kept", {"n": max(whole)}
    if not all(isinstance(block, FSDPModule) for block in model.blocks):
        return "blocks", {}
    wanted = flat([p.grad for p in alone.parameters()])
    if not torch.allclose(flat([p.grad.full_tensor() for p in parameters.values()]), wanted, atol=1e-6):
        return "gradients", {}
    before = flat([_local(p) for p in parameters.values()]).clone()
    optimizer.step()
    return "optimizer" if torch.equal(before, flat([_local(p) for p in parameters.values()])) else None, {}


def _is_shard(parameter):
    return hasattr(parameter, "to_local")  # a DTensor; importing its class is slow


def _local(parameter):
    return parameter.to_local() if _is_shard(parameter) else parameter
