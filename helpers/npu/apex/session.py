"""What one `initialize` has set up, and the one that the process speaks of."""

import torch.distributed as dist

from .scaler import LossScaler


class Session:
    """Level and loss scales of the models and optimizers of one `initialize`.

    Attributes:
        level: their Level; None where amp is not enabled.
        loss_scalers: a LossScaler for each loss.
        verbosity: 0 for no output.
    """

    def __init__(self, level=None, losses=0, limits=(None, 2.0**24), verbosity=1):
        self.level, self.verbosity = level, verbosity
        self.loss_scalers = [LossScaler(level.loss_scale, *limits) for _ in range(losses)]

    @property
    def enabled(self):
        return self.level is not None

    def scaler(self, loss_id) -> LossScaler:
        """The scaler of a loss; ValueError if `initialize` was told of fewer losses."""
        count = len(self.loss_scalers)
        if loss_id not in range(count):
            raise ValueError(
                f"loss_id={loss_id!r} is not allowed: amp.initialize was given num_losses={count}, which numbers the "
                f"losses from 0 to {count - 1}"
            )
        return self.loss_scalers[loss_id]

    def needs_no_scaling(self, scaler) -> bool:
        """Whether a pass is an ordinary backward: fixed scale 1, gradients on the optimizer's own parameters."""
        return not self.level.master_weights and not scaler.dynamic and scaler.loss_scale() == 1

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
    """What is the same in the whole process.

    Attributes:
        session: the Session of the latest `initialize`, or None.
    """

    session = None

    @property
    def loss_scalers(self) -> list:
        """Scalers of the latest session; scripts read `amp._amp_state.loss_scalers[0].loss_scale()`."""
        return self.session.loss_scalers if self.session else []
