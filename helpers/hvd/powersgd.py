"""PowerSGD as a communication hook of DistributedDataParallel: low-rank gradients, in a fixed order.

Vogels, Karimireddy, Jaggi: PowerSGD (NeurIPS 2019), https://arxiv.org/abs/1905.13727. A gradient seen as
an n × m matrix M travels as P (n × r) and Q (m × r) with M ≈ P Qᵀ; what the approximation lost is added to
the next gradient (error feedback).

torch has this hook too, but starts collectives from callbacks, on threads of gloo. With several buckets two ranks
can run these callbacks in different orders, and then a P of one meets a Q of the other. Here every collective is
started by the thread that runs backward, and a bucket is finished before the next begins. (torch's hook also
synchronises CUDA for gradients on the CPU, which fails wherever there is a GPU.)
"""

import torch
import torch.distributed as dist

WORTH = 2  # a gradient is compressed when that makes it at least this many times smaller


class PowerSGD:
    """The state of one model: `model.register_comm_hook(PowerSGD(group), reduce)`.

    Args:
        group: the process group of the model.
        rank: r, the columns of P and Q; more is closer to the gradient and slower.
        start: steps before compression begins. The first gradients are the largest, and DDP rearranges its
            buckets after the first step, so at least 2.
    """

    def __init__(self, group, rank=1, start=10):
        self.group, self.rank, self.start = group, rank, start
        self.steps = 0
        self.errors, self.qs = {}, {}  # by index of the bucket

    def _average(self, tensors):
        """Average tensors over the ranks, in place, as one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        flat /= self.group.size()
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))

    def compress(self, bucket):
        """Replace the gradients of a bucket by the average of their approximations."""
        index = bucket.index()
        low, rest = [], []
        for gradient in bucket.gradients():
            (low if self._is_worth_it(gradient) else rest).append(gradient)
        errors = self.errors.get(index, [0] * len(low))
        matrices = [gradient.reshape(gradient.shape[0], -1) + error for gradient, error in zip(low, errors)]
        qs = self.qs[index] if index in self.qs else [self._first_q(matrix) for matrix in matrices]
        ps = [matrix @ q for matrix, q in zip(matrices, qs)]
        self._average(rest + ps)
        if not all(torch.isfinite(p).all() for p in ps):
            # All ranks see the same p, so all of them take this way. A GradScaler will skip the step; an error
            # or a Q made from it would spoil all steps to come.
            bucket.buffer().fill_(float("nan"))
            return
        ps = [_orthonormal(p) for p in ps]
        qs = [matrix.t() @ p for matrix, p in zip(matrices, ps)]
        self._average(qs)
        products = [p @ q.t() for p, q in zip(ps, qs)]
        for gradient, product in zip(low, products):
            gradient.copy_(product.view_as(gradient))
        self.errors[index] = [matrix - product for matrix, product in zip(matrices, products)]
        self.qs[index] = [_orthonormal(q) for q in qs]

    def _is_worth_it(self, gradient):
        if gradient.dim() < 2 or gradient.numel() == 0:
            return False
        n, m = gradient.shape[0], gradient[0].numel()
        return min(self.rank, n, m) * (n + m) * WORTH < n * m

    def _first_q(self, matrix):
        """Random, but the same on all ranks."""
        n, m = matrix.shape
        generator = torch.Generator().manual_seed(n * m)
        return _orthonormal(torch.randn(m, min(self.rank, n, m), generator=generator).to(matrix))

    def _average(self, tensors):
        """Average tensors over the ranks, in place, as one message."""
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        flat /= self.group.size()
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))


def _orthonormal(matrix):
    """An orthonormal basis of the columns; QR exists for float and double only, and bears columns of zeros."""
    exact = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    return torch.linalg.qr(exact)[0].to(matrix.dtype)


def reduce(state, bucket):
    """The hook: called by DDP for one bucket after the other, in the same order on every rank."""
    buffer = bucket.buffer()
    if state.steps < state.start:
        state._average([buffer])
    else:
        state.compress(bucket)
    state.steps += bucket.is_last()
    done = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
    done.set_result(buffer)
    return done
