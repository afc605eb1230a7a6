"""`import helpers.hvd.ddp as dist`: torch.distributed with a DistributedDataParallel that can compress.

Every name of `torch.distributed` is here, and two are changed or added:

    init_process_group          needs no MASTER_ADDR and MASTER_PORT under launch, torchrun and mpirun
    DistributedDataParallel     torch's own, bit for bit; `compression=` makes its gradients smaller on the way

    import helpers.hvd.ddp as dist

    dist.init_process_group("gloo")
    model = dist.DistributedDataParallel(model, compression="fp16")
"""

import os

import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ..launcher import rendezvous
from ..launcher.group import place
from . import powersgd

HALVES = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
METHODS = (None, *HALVES, "powersgd")


def __getattr__(name):
    try:
        return getattr(torch.distributed, name)
    except AttributeError:
        raise AttributeError(f"neither torch.distributed nor helpers.hvd.ddp has a {name!r}") from None


def __dir__():
    return sorted({*globals(), *dir(torch.distributed)})


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, **options):
    """`torch.distributed.init_process_group`, whose place in the world may come from mpirun too.

    Under mpirun it sets RANK, WORLD_SIZE and LOCAL_RANK for the scripts that read them. Without a launcher it is
    a world of one. Arguments as in torch; a `store`, an `init_method` other than "env://", or a given `rank` and
    `world_size` are passed on as they are.

    Raises:
        ValueError: only some of the launcher's variables are there, or ranks of mpirun are on several hosts and
            the first is not where mpirun runs (then MASTER_ADDR and MASTER_PORT are needed).
    """
    if init_method in (None, "env://") and store is None and (rank, world_size) == (-1, -1):
        rank, world_size, local_rank = place()
        if "OMPI_COMM_WORLD_RANK" in os.environ:
            for name, value in (("RANK", rank), ("WORLD_SIZE", world_size), ("LOCAL_RANK", local_rank)):
                os.environ.setdefault(name, str(value))
        if "MASTER_ADDR" not in os.environ:
            init_method, store = None, rendezvous.store(rank, world_size)
    torch.distributed.init_process_group(backend, init_method, timeout, world_size, rank, store, **options)


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel, with gradients that can be compressed between the ranks.

    Args:
        module, *args, **kwargs: as in torch. With nothing else, all results equal torch's bit for bit.
        compression: None; "fp16" or "bf16", halves the bytes (bf16 has the range of fp32, but only two or
            three digits); "powersgd", sends matrices of low rank (see `helpers.hvd.powersgd`).
        powersgd_rank: rank of these matrices (1 if None), 1 to 4 is usual.
        powersgd_start: steps with full gradients before it begins (10 if None), a tenth of all steps is usual.

    Raises:
        ValueError, TypeError: an unknown compression, or options that do not go with it. No rank has
            communicated then.
    """

    def __init__(self, module, *args, compression=None, powersgd_rank=None, powersgd_start=None, **kwargs):
        given = {"powersgd_rank": (powersgd_rank, 1), "powersgd_start": (powersgd_start, 2)}
        _check(compression, given)
        super().__init__(module, *args, **kwargs)
        if compression in HALVES:
            self.register_comm_hook(self.process_group, HALVES[compression])
        elif compression == "powersgd":
            rank, start = powersgd_rank or 1, powersgd_start or 10
            self.register_comm_hook(powersgd.PowerSGD(self.process_group, rank, start), powersgd.reduce)


def _check(compression, options):
    if compression not in METHODS:
        raise ValueError(f"compression is {compression!r}; give one of {', '.join(map(repr, METHODS))}")
    for name, (value, least) in options.items():
        if value is None:
            continue
        if compression != "powersgd":
            raise ValueError(f"{name} is given, but compression is {compression!r}; it goes with 'powersgd' only")
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}; give a whole number")
        if value < least:
            raise ValueError(f"{name} is {value}; give {least} or more")
