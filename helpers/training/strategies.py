"""How a model is spread over devices: a class for each of helpers.config.STRATEGIES.

The training loop calls the wrapped model like any other, and asks its strategy for all that differs.
"""

from contextlib import nullcontext
from pkgutil import resolve_name

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import STRATEGIES
from ..language import N_
from . import checkpoint, sharded_checkpoint
from .cpu_data_parallel import CPUDataParallel

EMULATED_DATA_PARALLEL = N_(
    "nn.DataParallel needs CUDA; this is the same algorithm with CPU replicas in threads "
    "(helpers/training/cpu_data_parallel.py)"
)


def make(config, device) -> "Strategy":
    """The strategy of a RunConfig, for a rank on `device`."""
    return resolve_name(STRATEGIES[config.strategy].trains)(config, device)


def data_parallel(model, device, devices):
    """`model` (on `device`) with a replica on each of `devices` devices, which one process drives."""
    if device.type == "cuda":
        return nn.DataParallel(model, device_ids=list(range(devices)))
    return CPUDataParallel(model, devices)


class Strategy:
    """Training on one device; the others change what differs.

    `sharded`: a rank has only shards of the weights. `visible`: this thread runs all of the forward pass, so that
    activations can be counted. `note`: for the record. `unused`: parameters without a gradient, to be known
    where there are `buckets`.
    """

    sharded, visible, buckets, note, unused = False, True, False, "", ()

    def __init__(self, config, device):
        self.config, self.device = config, device

    def wrap(self, model, gathered_in=None) -> nn.Module:
        """`model`, on the device, ready to be trained; `gathered_in` is that of MixedPrecision."""
        return model

    def optimizer(self, kind, parameters, **options):
        """An optimizer of class `kind`."""
        return kind(parameters, **options)

    def without_reduction(self, wrapped):
        """A context in which gradients are added up, and not exchanged."""
        return nullcontext()

    def compiled_parts(self, model) -> list:
        """The modules that are compiled, each by itself."""
        return [model]

    def after_evaluation(self, model) -> None:
        """Free what a forward pass without a backward pass has left."""

    def communication(self, wrapped) -> dict | None:
        """Seconds a step that rank 0 spends on communication, if that is known."""

    def save(self, run, state) -> None:
        """Write a checkpoint of `run`, a loop.Run: `state`, weights and the optimizer's state; all ranks call it."""
        state.update(model=run.precision.weights(), optimizer=self._optimizer_state(run.optimizer))
        if run.world.is_main:
            checkpoint.save(run.config.checkpoint_dir, run.step, state)

    def _optimizer_state(self, optimizer):
        return optimizer.state_dict()

    def load(self, run, state) -> None:
        """Bring weights and optimizer of `run` to those of a checkpoint, which any strategy may have saved."""
        if "folder" in state:
            state = sharded_checkpoint.whole(run, state["folder"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.precision.load_weights(state["model"])


class DataParallel(Strategy):
    """One process drives all devices, each with a replica of the model for its part of the batch."""

    visible = False  # the replicas run in threads

    def wrap(self, model, gathered_in=None):
        if self.device.type != "cuda":
            self.note = EMULATED_DATA_PARALLEL
        return data_parallel(model, self.device, self.config.nproc_per_node)


class DDP(Strategy):
    """A process for each device; gradients are averaged during the backward pass."""

    def wrap(self, model, gathered_in=None):
        index = None if self.device.index is None else [self.device.index]
        if self.unused:
            names = ", ".join(self.unused[:3]) + ", …" * (len(self.unused) > 3)
            self.note = f"find_unused_parameters=True, since no output depends on {names}"
        return DistributedDataParallel(model, device_ids=index, find_unused_parameters=bool(self.unused))

    def without_reduction(self, wrapped):
        return wrapped.no_sync()

    def communication(self, wrapped):
        """None for one rank. "hidden_s" ran while the backward pass computed, "exposed_s" after it, waits included.

        DDP times its first ten steps and every hundredth after them (torch/csrc/distributed/c10d/logger.cpp).
        """
        clocks = wrapped._get_ddp_logging_data()
        total, hidden = (clocks.get(f"avg_backward_{name}_time", 0) for name in ("comm", "compute_comm_overlap"))
        if wrapped.process_group.size() == 1 or not total:
            return None
        timed = min(10, clocks["iteration"]) + clocks["iteration"] // 100
        return {"steps": timed, "exposed_s": max(0, total - hidden) / 1e9, "hidden_s": min(total, hidden) / 1e9}


class ZeRO1(DDP):
    """DDP, and every rank updates the weights of its share and sends them to the others (arXiv:1910.02054)."""

    def optimizer(self, kind, parameters, **options):
        from torch.distributed.optim import ZeroRedundancyOptimizer  # slow

        return ZeroRedundancyOptimizer(parameters, kind, **options)

    def _optimizer_state(self, optimizer):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if torch.distributed.get_rank() == 0 else None
