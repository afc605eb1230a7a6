"""A plan: one way to compute a model's training step."""

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .. import releases
from . import stats
from .copies import replaced, tensors


@dataclass(frozen=True)
class Plan:
    """Backend × memory layout × precision.

    Attributes:
        backend: "eager" for no compiler, or a backend of torch.compile: a name, or a function
            (graph module, example inputs) -> callable.
        channels_last: whether images [N, C, H, W] reach the model with a pixel's channels side by side. Weights stay as
            they are, so that the plan can be changed at every step.
        bf16: whether the forward pass runs under autocast in bfloat16, which changes numbers.
        layout_kept: whether inductor leaves the layout of convolutions as it is; by default it takes channels last.
        cache: whether inductor may take code from its cache on disk, which earlier runs have filled.
    """

    backend: str | Callable = "eager"
    channels_last: bool = False
    bf16: bool = False
    layout_kept: bool = False
    cache: bool = True

    def __post_init__(self):
        if self.backend != "inductor" and (self.layout_kept or not self.cache):
            name = "layout_kept" if self.layout_kept else "cache"
            raise ValueError(f"{name} is a setting of inductor; {self.backend!r} has none of this name")
        if not callable(self.backend) and not (isinstance(self.backend, str) and self.backend):
            raise TypeError(f"{self.backend!r} is no backend; give its name, or a function that compiles a graph")

    @property
    def compiled(self) -> bool:
        """Whether a compiler is involved."""
        return self.backend != "eager"

    def __str__(self):
        name = self.backend if isinstance(self.backend, str) else getattr(self.backend, "__name__", "own backend")
        layout = ["channels last"] * self.channels_last + ["layout kept"] * self.layout_kept
        return " · ".join([name, *layout] + ["bf16"] * self.bf16)

    def make(self, forward):
        """The function `forward` as this plan computes it; compiles at the first call, for the shapes of that call."""
        quiet()
        run = forward
        if self.compiled:
            stats.remember()
            # Random numbers are drawn as eager draws them, so that the results can be compared.
            options = {"fallback_random": True} if self.backend == "inductor" else None
            options = {**options, "layout_optimization": False} if self.layout_kept else options
            options = options if self.cache else {**options, "force_disable_caches": True}
            run = torch.compile(forward, backend=self.backend, dynamic=False, options=options, **releases.isolated())

        def call(*args, **kwargs):
            if self.channels_last:
                last = lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t  # noqa: E731
                args, kwargs = pytree.tree_map_only(torch.Tensor, last, (args, kwargs))
            if not self.bf16:
                return run(*args, **kwargs)
            full = lambda t: t.float() if t.dtype == torch.bfloat16 else t  # noqa: E731
            with torch.autocast(device_of(args, kwargs).type, torch.bfloat16):
                return replaced(run(*args, **kwargs), full)

        return call


def default_plans(model, bf16=False) -> list:
    """Eager and inductor; where the model has 2-d convolutions also eager in channels last, and inductor without it."""
    convolves = any(isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)) for m in model.modules())
    layouts = {"eager": ({}, {"channels_last": True}), "inductor": ({}, {"layout_kept": True})}
    return [
        Plan(backend, bf16=half, **layout)
        for backend, found in layouts.items()
        for half in (False, True)[: 1 + bf16]
        for layout in found[: 1 + convolves]
    ]


def device_of(args, kwargs) -> torch.device:
    """Where the first tensor among the arguments is."""
    return next((tensor.device for tensor in tensors((args, kwargs))), torch.device("cpu"))


def quiet() -> None:
    """Silence warnings that say nothing new to the reader.

    The compiler's, that there is no GPU and where a graph breaks, which compiler_stats reports (TORCH_LOGS brings them
    back); and DDP's, that gradients arrive in another layout than the weights', as a compiler or channels last make
    them: it copies them as they are.
    """
    if "TORCH_LOGS" not in os.environ:
        for name in ("torch.utils.cpp_extension", "torch._dynamo", "torch._inductor"):
            logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
