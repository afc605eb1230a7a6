"""What one `initialize` has set up: a level, and a loss scale for each loss.

A loss scale says how far a loss is lifted before backward. Dynamic scaling is that of Micikevicius et al., "Mixed
precision training" (arXiv:1710.03740), with the constants of apex: begin at 2**16, halve at an overflow, double after
2000 passes without one.
"""

from collections import defaultdict

import torch
import torch.distributed as dist

INITIAL = 2.0**16
WINDOW = 2000  # passes without an overflow before the scale doubles
# Gradients that overflow float16 (65504) at this scale are above 10**12: nothing that a scale can mend.
HOPELESS = 2.0**-24


class LossScaler:
    """The scale of one loss: a number, which stays, or "dynamic" and then within limits.

    Attributes:
        unskipped: passes since the last overflow or doubling.
        waiting: whose gradients were divided since the last `settle`.
    """

    def __init__(self, scale, minimum=None, maximum=2.0**24):
        self.dynamic = scale == "dynamic"
        self.minimum, self.maximum = minimum, maximum
        self._scale = self._limited(INITIAL) if self.dynamic else scale
        self.unskipped = 0
        self.waiting = []
        self._found = []  # tensors on the devices: above 0 where a gradient was not finite

    def loss_scale(self) -> float:
        """The scale now."""
        return self._scale

    def _limited(self, scale):
        return max(min(scale, self.maximum), self.minimum or 0.0)

    def unscale(self, gradients):
        """Divide `gradients` by the scale in place and note, without waiting for the device, if all were finite."""
        alike = defaultdict(list)
        for gradient in gradients:
            values = gradient._values() if gradient.is_sparse else gradient
            alike[values.device, values.dtype].append(values)
        for (device, _), values in alike.items():
            found = torch.zeros((), device=device)
            inverse = torch.full((), 1 / self._scale, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(values, found, inverse)
            self._found.append(found)

    def settle(self) -> bool:
        """Adapt the scale to what `unscale` found since the last time; True after an overflow."""
        overflow = any(found.item() > 0 for found in self._found)
        self._found.clear()
        self.waiting.clear()
        self.unskipped = 0 if overflow else self.unskipped + 1
        if self.dynamic and overflow:
            self._scale = self._limited(self._scale / 2)
            if self._scale < HOPELESS:
                raise FloatingPointError(
                    f"gradients are inf or NaN even at a loss scale of {self._scale:g}, so it is not the scale; "
                    "look for NaN in the batches, a log or a division of 0 in the loss, or a learning rate too high"
                )
        elif self.dynamic and self.unskipped == WINDOW:
            self._scale = self._limited(self._scale * 2)
            self.unskipped = 0
        return overflow

    def state_dict(self) -> dict:
        """{"loss_scale": …, "unskipped": …}, the keys of apex."""
        return {"loss_scale": self._scale, "unskipped": self.unskipped}

    def load_state_dict(self, state) -> None:
        """Go on from `state`; a fixed scale stays what it was set to."""
        self.unskipped = state["unskipped"]
        if self.dynamic:
            self._scale = self._limited(state["loss_scale"])


class Session:
    """What one `initialize` set up: a Level (None where amp is not enabled), and a LossScaler for each loss."""

    def __init__(self, level=None, losses=0, limits=(None, 2.0**24), verbosity=1):
        self.level, self.verbosity = level, verbosity
        self.loss_scalers = [LossScaler(level.loss_scale, *limits) for _ in range(losses)]

    def scaler(self, loss_id) -> LossScaler:
        """The scaler of a loss; ValueError if `initialize` was told of fewer losses."""
        count = len(self.loss_scalers)
        if loss_id not in range(count):
            raise ValueError(
                f"loss_id={loss_id!r} is not allowed: amp.initialize was given num_losses={count}, which numbers the "
                f"losses from 0 to {count - 1}"
            )
        return self.loss_scalers[loss_id]

    def settle(self, waiting=None, loss=None):
        """Decide about the gradients unscaled so far (those of the Stepper `waiting`, or all): step or skip."""
        for number, scaler in enumerate(self.loss_scalers):
            steppers = list(scaler.waiting)
            if not steppers or waiting is not None and waiting not in steppers:
                continue
            before = scaler.loss_scale()
            if scaler.settle():
                for stepper in steppers:
                    stepper.skip = True
                self._tell_skip(number, before, scaler, loss)

    def _tell_skip(self, number, before, scaler, loss):
        if loss is not None and not loss.detach().isfinite().all():
            text = "the loss is inf or NaN itself, which no scale mends: look at the batch and the learning rate"
        elif scaler.dynamic:
            text = f"the loss scale goes from {before:g} to {scaler.loss_scale():g}"
        else:
            text = f"the loss scale stays at {before:g}; loss_scale='dynamic' would lower it"
        which = f" of loss {number}" if len(self.loss_scalers) > 1 else ""
        self.say(f"gradients{which} overflowed, so the next optimizer.step() is skipped; {text}")

    def say(self, text):
        """Print a line, on rank 0 only."""
        if self.verbosity and not (dist.is_available() and dist.is_initialized() and dist.get_rank()):
            print(f"amp: {text}", flush=True)


class State:
    """The `session` of the latest `initialize` in this process, or None."""

    session = None

    @property
    def loss_scalers(self) -> list:
        """Scalers of the latest session; scripts read `amp._amp_state.loss_scalers[0].loss_scale()`."""
        return self.session.loss_scalers if self.session else []
