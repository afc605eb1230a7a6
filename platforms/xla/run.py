"""The training loop of helpers.training.loop, on an XLA device."""

import copy
from itertools import pairwise

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from helpers import device
from helpers.training.loop import Run
from helpers.training.precision import MixedPrecision

from . import compilations, gradients, xla_step


class XlaRun(Run):
    """A Run whose model, optimizer and steps are XLA's; data, schedule, timing and records stay the same.

    No DDP wrapper: the gradients are averaged where the optimizer is about to use them. `model` is
    the CPU's copy of the weights, brought up to date to be evaluated; `wrapped` trains.

    One thing is not as in eager mode: torch_xla's BatchNorm keeps the running mean of the biased
    variance (n, not n - 1, in the denominator), so that accuracy on the test set can differ a little.
    """

    def __init__(self, config, world, parts, tell):
        if xr.device_type() != "CPU":
            gradients.check_world(world.size)
        alone = config.but(strategy="baseline", nproc_per_node=1, compiler="none", label=config.label)
        super().__init__(alone, world, parts, tell)
        self.strategy.visible = False  # XLA decides itself what it keeps
        self.note = device.oversubscribed(config.nproc_per_node, config.threads, config.device)
        self.wrapped, self.optimizer = xla_step.prepare(
            copy.deepcopy(self.model), config.peak_lr, config.momentum, config.weight_decay
        )
        self.device = torch_xla.device()
        torch_xla.manual_seed(config.seed + 1 + world.rank)  # dropout
        self.precision = Precision(config.precision, self.wrapped, self.device)
        self.compilations = [compilations.count()]  # before the first step, then after each

    def _update(self, inputs, labels):
        return super()._update(inputs.to(self.device), labels.to(self.device)).cpu()

    def _timed_step(self, batches):
        super()._timed_step(batches)
        self.compilations.append(compilations.count())

    def _evaluation(self):
        self.model.load_state_dict(self.wrapped.state_dict())
        return super()._evaluation()

    def _measured(self, evaluation):
        measured = super()._measured(evaluation)
        if measured is not None:
            measured["compiler"] = {
                "asked": "xla",
                "plan": "XLA",
                "device": xr.device_type(),
                "versions": torch_xla.__version__,
                "compile_s": compilations.seconds(),
                "compilations": self.compilations[-1],
                "compilations_by_step": [after - before for before, after in pairwise(self.compilations)],
            }
        return measured


class Precision(MixedPrecision):
    """A MixedPrecision whose step first averages the gradients, still scaled, and then ends the XLA step."""

    def step(self, optimizer, clip_norm=None) -> bool:
        gradients.average(xm._fetch_gradients(optimizer))
        done = super().step(optimizer, clip_norm)
        torch_xla.sync(wait=True)
        return done
