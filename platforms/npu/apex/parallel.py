"""`apex.parallel.LARC`: a local learning rate for each parameter, around any optimizer of torch.optim.

    optimizer = LARC(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2")

The rate of a parameter follows from the norms of its weight and of its gradient ("Large batch training of convolutional
networks", arXiv:1708.03888, equation 6). Like apex's, this is no torch.optim.Optimizer: a learning-rate scheduler
gets the optimizer inside. DistributedDataParallel and SyncBatchNorm of apex.parallel are torch's own by now.
"""

import torch
from torch.optim import Optimizer

__all__ = ["LARC"]


class LARC:
    """Scales gradients before each step of `optimizer`, in place of its learning rate and its weight decay.

    Args:
        optimizer: of torch.optim; its `lr` bounds (clip) or multiplies (no clip) the local rates.
        trust_coefficient: the local rate is this · ‖weight‖ / (‖gradient‖ + weight decay · ‖weight‖ + eps).
        clip: True for min(local rate, lr), False for local rate · lr.
        eps: keeps the quotient finite.

    A parameter whose weight or gradient has norm 0 is stepped with its gradient as it is, without weight decay.
    """

    def __init__(self, optimizer, trust_coefficient=0.02, clip=True, eps=1e-8):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"LARC goes around an optimizer of torch.optim, not {optimizer!r}")
        self.optim, self.trust_coefficient, self.clip, self.eps = optimizer, trust_coefficient, clip, eps

    def __repr__(self):
        return repr(self.optim)

    @property
    def state(self):
        """That of the optimizer inside, as all below."""
        return self.optim.state

    @property
    def param_groups(self):
        """The optimizer's groups."""
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        self.optim.param_groups = groups

    def state_dict(self):
        """The optimizer's; LARC has no state of its own."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict):
        """Go on with what `state_dict()` returned."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self):
        """Forget the gradients; like apex's, it takes no argument."""
        self.optim.zero_grad()

    def add_param_group(self, param_group):
        """Add a group to the optimizer."""
        self.optim.add_param_group(param_group)

    def step(self):
        """Scale the gradients, weight decay included, and step; the optimizer adds no weight decay itself."""
        if stepper := getattr(self.optim, "_amp_stepper", None):
            stepper.pull()  # the norms are those of the weights now: DDP has sent rank 0's
        decays = [group.get("weight_decay", 0) for group in self.optim.param_groups]
        try:
            with torch.no_grad():
                for group, decay in zip(self.optim.param_groups, decays, strict=True):
                    group["weight_decay"] = 0
                    self._scale(group, decay)
            self.optim.step()
        finally:
            for group, decay in zip(self.optim.param_groups, decays, strict=True):
                group["weight_decay"] = decay

    def _scale(self, group, decay):
        for p in group["params"]:
            if p.grad is None:
                continue
            weight, gradient = torch.norm(p), torch.norm(p.grad)
            if weight != 0 and gradient != 0:
                rate = self.trust_coefficient * weight / (gradient + weight * decay + self.eps)
                if self.clip:
                    rate = min(rate / group["lr"], 1)
                p.grad.add_(p * decay).mul_(rate)


def inner(optimizer):
    """The optimizer inside a LARC, and any other as it is."""
    return optimizer.optim if isinstance(optimizer, LARC) else optimizer
