"""`optimize(model)` finds the fastest right way to train a model, in its first training steps."""

from dataclasses import replace

from torch import nn

from .plan import Plan, default_plans
from .tuner import Tuner


def optimize(model, plans=None, *, bf16=False, rounds=5, cache=True, log=print):
    """Let `model` find out, in its first training steps, which plan trains it fastest.

    The training loop stays as it is. In the first step `optimize` watches. In the second each plan (backend × memory
    layout × precision) is compiled and checked on copies of the model and of the batch: outputs, buffers and gradients
    must be as near to fp64 as eager's, within a factor of three. Then the plans that are right take real steps in turn,
    timed from the first forward pass to the end of the last backward pass, and the fastest computes all further steps.
    Eager is always among them, and stays unless another is 1.02 times as fast. `print(model.tuner)` says what was tried
    and why; or why nothing was, as where forward or a hook changes something that is no part of the model, or where
    gradients are differentiated. Evaluation (no gradients, or eval mode) runs in eager, and batches of another shape
    without the compiler. Under torch.distributed all ranks must call the model in step; they choose the same plan, by
    the slowest rank's times.

    Args:
        model: an nn.Module on its device, or one wrapped in DistributedDataParallel.
        plans: Plans or names of torch.compile backends to try beside eager (None: inductor, and where the model has 2-d
            convolutions eager in channels last, and inductor that keeps their layout).
        bf16: whether the default plans may also compute in bfloat16, which changes numbers.
        rounds: timed steps of each plan in the first stage; those that are close then take as many again.
        cache: whether inductor may take code from its cache on disk; with False the seconds that compiling took, which
            `print(model.tuner)` shows, are those of a first run.
        log: gets a line of text now and then, from rank 0 (None: silence).

    Returns:
        `model`, whose forward is now a Tuner, also `model.tuner`; the keys of its state_dict are unchanged.

    Raises:
        TypeError, ValueError: bad arguments.

    The idea is that of AGSpeed (help.aliyun.com/document_detail/468651.html): capture the graph, try backends in the
    first steps. What is compiled is torch.compile's (Ansel et al., ASPLOS 2024, doi:10.1145/3620665.3640366).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize needs an nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel):
        raise TypeError("optimize cannot work in DataParallel, which copies the model at every step; use DDP")
    if hasattr(model, "_orig_mod"):
        raise TypeError("this model was compiled by torch.compile already; give optimize the model itself")
    if plans is not None and bf16:
        raise ValueError("bf16=True is for the default plans; give plans of your own as Plan(..., bf16=True)")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; it must be 1 or more")
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    forward = inner.forward.forward if isinstance(inner.forward, Tuner) else inner.forward
    plans = default_plans(inner, bf16) if plans is None else plans
    plans = [plan if isinstance(plan, Plan) else Plan(plan) for plan in plans]
    plans = [plan if cache or plan.backend != "inductor" else replace(plan, cache=False) for plan in plans]
    inner.tuner = inner.forward = Tuner(inner, forward, plans, rounds, log)
    return model
