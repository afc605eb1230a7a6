"""Splitting a GPT among ranks: its layers (tensor parallelism), or its row of blocks (a pipeline).

Plans, stages and schedules are PyTorch's own, in torch.distributed.tensor.parallel and torch.distributed.pipelining.
Here is what they leave to the caller: whether a model can be shared out at all, which blocks are whose, and what
differs between releases.
"""

import inspect
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.distributed.tensor.debug import CommDebugMode

import helpers
from helpers import device, releases
from helpers.costmodel.splitting import CannotSplit, share_evenly
from helpers.training.gpt import GPT, gpt, next_token_loss

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


def batch(where, sequences=16, length=64):
    """Random tokens, and those that follow each: the losses only have to agree."""
    tokens = torch.randint(0, 64, (sequences, length + 1), generator=torch.Generator().manual_seed(1)).to(where)
    return tokens[:, :-1], tokens[:, 1:]


def calls(counter):
    """{collective: how often it was called} from a CommDebugMode."""
    return {str(name).split(".")[-1].strip("_"): count for name, count in counter.get_comm_counts().items()}


def far(losses, others):
    """The largest difference of two lists of losses."""
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


def one_device(model, world):
    return model


def train(divide, steps=4):
    """On every rank: (losses, the last step's collectives, share of the weights that this rank holds)."""
    with helpers.distributed() as world:
        torch.manual_seed(0)
        model = divide(gpt().to(world.device), world)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=False)
        (tokens, following), losses = batch(world.device), []
        for _ in range(steps):
            with CommDebugMode() as forward:
                loss = next_token_loss(model(tokens), following)
            with CommDebugMode() as backward:
                loss.backward()
            with CommDebugMode() as update:
                optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        held = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters())
        counts = {"forward": calls(forward), "backward": calls(backward), "update": calls(update)}
        return losses, counts, held / sum(p.numel() for p in model.parameters())


def receive(shape, source, where, waits):
    """What rank `source` sends; how long that took is added to `waits`."""
    device.synchronize(where)
    began, tensor = time.perf_counter(), torch.empty(shape, device=where)
    dist.recv(tensor, source)
    device.synchronize(where)
    waits.append(time.perf_counter() - began)
    return tensor
