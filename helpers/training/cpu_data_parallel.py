"""`nn.DataParallel`, which is for CUDA only, on CPUs.

It does the same four things in every forward pass, in one process: scatter the batch, replicate the model, run the
replicas side by side, gather the outputs. In every backward pass it adds the replicas' gradients up on the first. As
there, only the first replica's BatchNorm statistics survive. (torch/nn/parallel/data_parallel.py)
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn

from ..compiler.copies import tensors


class CPUDataParallel(nn.Module):
    """Runs `module` on `devices` replicas; inputs and outputs are split and joined along dim 0."""

    def __init__(self, module, devices):
        super().__init__()
        self.module, self.devices = module, devices
        self.outputs = None  # of the first replica, for their containers
        self.threads = ThreadPoolExecutor(devices, thread_name_prefix="replica")

    def forward(self, batch):
        """`batch` [N, …] -> what the module makes of it: tensors [N, …], in whichever containers."""
        pieces = batch.chunk(self.devices)
        if len(pieces) == 1:
            return self.module(batch)
        joined = _Replicas.apply(self, pieces, *self.module.parameters())
        outputs, self.outputs = self.outputs, None
        return copy.deepcopy(outputs, {id(t): new for t, new in zip(tensors(outputs), joined, strict=True)})


class _Replicas(torch.autograd.Function):
    """Replicate, apply in parallel, gather; backward does the reverse.

    Autograd has a thread for each GPU, and one for all CPU cores: here each replica's backward gets its own.
    """

    @staticmethod
    def forward(ctx, parallel, pieces, *parameters):
        learn = any(ctx.needs_input_grad)
        copies = [[p.detach().clone().requires_grad_(learn and p.requires_grad) for p in parameters] for _ in pieces]
        replicas = [replicate(parallel.module, parameters, copy, first=i == 0) for i, copy in enumerate(copies)]

        # What a thread is to do about gradients and autocast is not passed on to the threads it starts.
        kind = pieces[0].device.type
        autocast = partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

        def apply(i):
            with torch.set_grad_enabled(learn), autocast():
                return replicas[i](pieces[i])

        whole = list(parallel.threads.map(apply, range(len(pieces))))
        outputs = [list(map(torch.atleast_1d, tensors(one))) for one in whole]
        ctx.parallel, ctx.copies, ctx.outputs, parallel.outputs = parallel, copies, outputs, whole[0]
        joined = [torch.cat([tensor.detach() for tensor in each]) for each in zip(*outputs, strict=True)]
        ctx.mark_non_differentiable(*(joined[n] for n, old in enumerate(outputs[0]) if not old.requires_grad))
        return tuple(joined)

    @staticmethod
    def backward(ctx, *gradients):
        each = zip(gradients, zip(*ctx.outputs, strict=True), strict=True)
        parts = [gradient.split(list(map(len, outputs))) for gradient, outputs in each]

        def differentiate(i):
            wanted = [p for p in ctx.copies[i] if p.requires_grad]
            pairs = [(o, part[i]) for o, part in zip(ctx.outputs[i], parts, strict=True) if o.requires_grad]
            outputs, given = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
            return [next(found) if p.requires_grad else None for p in ctx.copies[i]]

        of_replicas = ctx.parallel.threads.map(differentiate, range(len(ctx.outputs)))
        return None, None, *(_added(gradients) for gradients in zip(*of_replicas, strict=True))


def replicate(module, parameters, copies, first):
    """A copy of `module`'s structure that computes with `copies` in place of `parameters`."""
    instead = {id(p): copy for p, copy in zip(parameters, copies, strict=True)}
    twins = {m: m._replicate_for_data_parallel() for m in module.modules()}
    for original, twin in twins.items():
        twin._modules = {name: child and twins[child] for name, child in original._modules.items()}
        twin._parameters = {name: None if p is None else instead[id(p)] for name, p in original._parameters.items()}
        twin._buffers = {name: b if first or b is None else b.clone() for name, b in original._buffers.items()}
    return twins[module]


def _added(gradients):
    there = [g for g in gradients if g is not None]
    return sum(there[1:], there[0]) if there else None
