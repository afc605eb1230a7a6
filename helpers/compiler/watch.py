"""Times one training step from the start of its forward to the end of its backward."""

import time

import torch
from torch.utils import _pytree as pytree

from .. import device as devices


class Watch:
    """Started when it is made; calls `tell(seconds)` when the backward pass has ended.

    Attributes:
        running: whether a backward pass has begun and not ended; if the next step finds it so, the
            backward pass broke off.
    """

    def __init__(self, device, tell):
        self.device, self.tell, self.running = device, tell, False
        devices.synchronize(device)
        self.began = time.perf_counter()

    def outputs(self, outputs):
        """`outputs` of the forward pass, with what is needed to notice their backward pass."""
        for tensor in pytree.tree_leaves(outputs):
            if torch.is_tensor(tensor) and tensor.requires_grad:
                tensor.register_hook(self._backward_began)
        return outputs

    def _backward_began(self, gradient):
        if not self.running and self.tell is not None:
            self.running = True
            queue = torch.autograd.Variable._execution_engine.queue_callback
            # Twice: what DDP queues meanwhile, the wait for its last bucket, comes in between.
            queue(lambda: queue(self._backward_ended))

    def _backward_ended(self):
        devices.synchronize(self.device)
        tell, self.tell, self.running = self.tell, None, False
        tell(time.perf_counter() - self.began)
