"""`import platforms.horovod.ddp as dist`: torch.distributed with a DistributedDataParallel that can compress.

Every name of `torch.distributed` is here, and some are changed or added:

    init_process_group          needs no MASTER_ADDR and MASTER_PORT under launch, torchrun and mpirun
    DistributedDataParallel     torch's own, bit for bit; `compression=` makes its gradients smaller on the way
    use_perseus                 True: what scripts for the vendor's drop-in ask before they use the next two
    get_local_rank              this rank's number on its host
    broadcast_optimizer_state   the root's, for optimizers that are not torch's own
"""

import os

import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from helpers.group import rendezvous
from helpers.group.process_group import leave, place

HALVES = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
METHODS = (None, *HALVES, "powersgd")
use_perseus = True
WORTH = 2  # PowerSGD compresses a gradient if that makes it at least this many times smaller


def __getattr__(name):
    try:
        return getattr(torch.distributed, name)
    except AttributeError:
        raise AttributeError(f"neither torch.distributed nor platforms.horovod.ddp has a {name!r}") from None


def __dir__():
    return sorted({*globals(), *dir(torch.distributed)})


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, **options):
    """`torch.distributed.init_process_group`, whose place in the world may come from mpirun too.

    Under mpirun it sets RANK, WORLD_SIZE and LOCAL_RANK for the scripts that read them. Without a launcher it
    is a world of one. A `store`, another `init_method` than "env://", or a given `rank` and `world_size` are passed on.

    Raises:
        ValueError: only some of the launcher's variables are there, or ranks of mpirun are on several hosts and
            the first is not where mpirun runs (then MASTER_ADDR and MASTER_PORT are needed).
    """
    if store is None and (rank, world_size) == (0, 1) and place()[1] > 1:
        # The vendor's train.sh gives these to each of mpirun's ranks, with an address that none of them can use.
        init_method, rank, world_size = None, -1, -1
    if init_method in (None, "env://") and store is None and (rank, world_size) == (-1, -1):
        rank, world_size, local_rank = place()
        if "OMPI_COMM_WORLD_RANK" in os.environ:
            for name, value in (("RANK", rank), ("WORLD_SIZE", world_size), ("LOCAL_RANK", local_rank)):
                os.environ.setdefault(name, str(value))
        if "MASTER_ADDR" not in os.environ:
            init_method, store = None, rendezvous.store(rank, world_size)
    torch.distributed.init_process_group(backend, init_method, timeout, world_size, rank, store, **options)


def destroy_process_group(group=None):
    """torch.distributed's; the default group is left as at the end of `helpers.distributed`."""
    leave() if group in (None, torch.distributed.group.WORLD) else torch.distributed.destroy_process_group(group)


def get_local_rank():
    """This rank's number on its host, also under mpirun."""
    return place()[2]


def broadcast_optimizer_state(optimizer, root_rank=0):
    """Give every rank's optimizer the state and the options (rate, momentum, …) of the root's."""
    state = [optimizer.state_dict()]
    torch.distributed.broadcast_object_list(state, src=root_rank)
    if torch.distributed.get_rank() != root_rank:
        optimizer.load_state_dict(state[0])  # brings its tensors to the device of the parameters


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel, with gradients that can be compressed between the ranks.

    Without `compression` all results equal torch's bit for bit. ValueError for options that do not go together.

    Args:
        compression: None; "fp16" or "bf16", halves the bytes; "powersgd", sends matrices of low rank (see `PowerSGD`).
        powersgd_rank: rank of these matrices (1 if None), 1 to 4 is usual.
        powersgd_start: steps with full gradients before it begins (10 if None), a tenth of all steps is usual.
    """

    def __init__(self, module, *args, compression=None, powersgd_rank=None, powersgd_start=None, **kwargs):
        if compression not in METHODS:
            raise ValueError(f"compression is {compression!r}; give one of {', '.join(map(repr, METHODS))}")
        for name, value, least in ("powersgd_rank", powersgd_rank, 1), ("powersgd_start", powersgd_start, 2):
            if value is not None and compression != "powersgd":
                raise ValueError(f"{name} is given, but compression is {compression!r}; it goes with 'powersgd' only")
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"{name} is {value!r}; give a whole number, {least} or more")
        super().__init__(module, *args, **kwargs)
        if compression in HALVES:
            self.register_comm_hook(self.process_group, HALVES[compression])
        elif compression == "powersgd":
            self.register_comm_hook(PowerSGD(self.process_group, powersgd_rank or 1, powersgd_start or 10), reduce)


class PowerSGD:
    """Low-rank gradients as a communication hook: `model.register_comm_hook(PowerSGD(group), reduce)`.

    Vogels, Karimireddy, Jaggi: PowerSGD (NeurIPS 2019), https://arxiv.org/abs/1905.13727. A gradient seen as an n × m
    matrix M is sent as P (n × r) and Q (m × r) with M ≈ P Qᵀ. The approximation error is added to the next gradient.

    torch has this hook too, but starts collectives from callbacks, on threads of gloo. With several buckets two ranks
    can run these callbacks in different orders, and then a P of one meets a Q of the other. Here the thread that runs
    backward starts every collective, and finishes a bucket before the next. `start`: steps before compression begins;
    the first gradients are the largest, and DDP rearranges its buckets after the first step.
    """

    def __init__(self, group, rank=1, start=10):
        self.group, self.rank, self.start, self.steps = group, rank, start, 0
        self.errors, self.qs = {}, {}  # by index of the bucket

    def compress(self, bucket):
        """Replace the gradients of a bucket by the average of their approximations."""
        index, gradients = bucket.index(), bucket.gradients()
        low = [gradient for gradient in gradients if self._is_worth_it(gradient)]
        rest = [gradient for gradient in gradients if not self._is_worth_it(gradient)]
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
        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            torch.distributed.all_reduce(flat, group=self.group)
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
