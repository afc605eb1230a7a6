"""How a model is spread over devices. The training loop calls the result like any model."""

from torch import nn

from .data_parallel import CPUDataParallel

EMULATED_DATA_PARALLEL = (
    "nn.DataParallel needs CUDA; this is the same algorithm with CPU replicas in threads (helpers/training/data_parallel.py)"
)


def wrap(model, strategy, device, devices):
    """`model` (on `device`) made ready to be trained by `strategy` on `devices` devices.

    Under "ddp" the process group must be initialised, one process a device.
    Returns (wrapped model, note for the record or "").
    """
    if strategy == "ddp":
        index = None if device.index is None else [device.index]
        return nn.parallel.DistributedDataParallel(model, device_ids=index), ""
    if strategy == "data_parallel":
        if device.type == "cuda":
            return nn.DataParallel(model, device_ids=list(range(devices))), ""
        return CPUDataParallel(model, devices), EMULATED_DATA_PARALLEL
    return model, ""


def unwrapped(model):
    """The reader's own model inside a wrapper; its state_dict has the keys everybody expects."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel, CPUDataParallel)
    return model.module if isinstance(model, wrappers) else model
