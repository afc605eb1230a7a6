"""The loss scale: how far a loss is lifted before backward, and when that was too far.

Dynamic scaling is that of Micikevicius et al., "Mixed precision training" (arXiv:1710.03740), with the
constants of apex: begin at 2**16, halve at an overflow, double after 2000 passes without one.
"""

from collections import defaultdict

import torch

INITIAL = 2.0**16
WINDOW = 2000  # passes without an overflow before the scale doubles
# Gradients that overflow float16 (65504) at this scale are above 10**12: nothing that a scale can mend.
HOPELESS = 2.0**-24


class LossScaler:
    """The scale of one loss.

    Args:
        scale: a number, which stays, or "dynamic".
        minimum, maximum: limits of a dynamic scale; None for no minimum.

    Attributes:
        dynamic: whether the scale moves.
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
        """Adapt the scale to what `unscale` found since the last time; True after an overflow.

        Raises:
            FloatingPointError: the dynamic scale is so low that the scale cannot be the reason.
        """
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
