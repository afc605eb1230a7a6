"""Splitting a GPT among ranks: its layers (tensor parallelism), or its row of blocks (a pipeline).

Plans, stages and schedules are PyTorch's own, in torch.distributed.tensor.parallel and torch.distributed.pipelining.
Here is what they leave to the caller: whether a model can be shared out at all, which blocks are whose, and what
differs between releases.
"""

import inspect

import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from helpers import releases
from helpers.costmodel.splitting import CannotSplit, share_evenly
from helpers.training.gpt import GPT

ONE_STAGE, V_SHAPED = ("GPipe", "1F1B"), ("ZBVZeroBubble", "DualPipeV")


def check(model, tensor=1, pipeline=1) -> None:
    """Refuse numbers that do not divide a GPT: ranks that share each layer, or stages that share the blocks.

    Raises:
        CannotSplit: the heads or the blocks cannot be shared out evenly, or the model is none that a plan is made for.
    """
    if not isinstance(model, GPT):
        raise CannotSplit(f"{type(model).__name__} has no plan to be split by; make a gpt(), or choose strategy 'fsdp'")
    attention = model.blocks[0].attention
    heads = attention.qkv.out_features // (3 * attention.width_of_head)
    share_evenly(heads, "heads", tensor, "tensor-parallel ranks")
    share_evenly(len(model.blocks), "blocks", pipeline, "pipeline stages")


def stages_of(rank, ranks, schedule) -> tuple:
    """(numbers of the stages that `rank` holds, how many stages there are) under one of PyTorch's schedules.

    Two schedules have one stage a rank. The others have two: they go round the ranks twice, or there and back (a V).
    """
    if schedule in ONE_STAGE:
        return [rank], ranks
    return [rank, 2 * ranks - 1 - rank if schedule in V_SHAPED else ranks + rank], 2 * ranks


def stage(model, number, stages) -> nn.Sequential:
    """Stage `number` of a GPT: its blocks, after the embedding in the first one, before the head in the last.

    Raises CannotSplit where the blocks cannot be shared out evenly, or there is no stage of that number.
    """
    each = share_evenly(len(model.blocks), "blocks", stages, "pipeline stages")
    if not 0 <= number < stages:
        raise CannotSplit(f"stage {number} of {stages}: they are counted from 0 to {stages - 1}")
    first = [model.embedding] if number == 0 else []
    last = [model.head] if number == stages - 1 else []
    return nn.Sequential(*first, *model.blocks[number * each : (number + 1) * each], *last)


def schedule(name, stages, micro_batches, loss):
    """One of PyTorch's schedules over the stages of this rank, such as "GPipe" or "1F1B"; `.step(…)` runs a step.

    It leaves the gradients of the mean loss of all micro-batches; the `losses` that it collects add up to that mean.

    Args:
        stages: a list of PipelineStage. loss: function of (output, target) of a micro-batch, a mean.

    Raises:
        CannotSplit: this release of torch has no such schedule.
    """
    kind = getattr(pipelining, f"Schedule{name}", None)
    if kind is None:
        there = [name[8:] for name in dir(pipelining) if name.startswith("Schedule")]
        found = f"torch {releases.version_of('torch')} has no pipeline schedule {name!r}; it has {', '.join(there)}"
        raise CannotSplit(f"{found}. ZBVZeroBubble is in 2.7 and later, DualPipeV in 2.9 and later")
    known = inspect.signature(kind).parameters
    if not hasattr(schedules, "_wait_batch_p2p"):  # such as 2.6, which waits for the last message only, as NCCL needs
        schedules._batch_p2p = lambda ops, desc=None: _Works(dist.batch_isend_irecv(ops)) if ops else None
    return kind(
        stages[0] if name in ONE_STAGE else stages,
        micro_batches,
        loss_fn=lambda output, target: loss(output, target) / micro_batches,
        **({"scale_grads": False} if "scale_grads" in known else {}),  # 2.7 divides the gradients unless told not to
    )


class _Works(list):
    def wait(self):
        return all([work.wait() for work in self])
