"""The mean of all ranks' gradients, and a check that XLA knows of all ranks."""

import os

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr


def average(gradients) -> None:
    """Replace `gradients`, tensors on the XLA device, by their means over the ranks of the process group.

    XLA devices that are connected reduce within the compiled step (this branch was never run: it
    needs such devices). XLA:CPU knows of no other process, so there the gradients are fetched, as
    one tensor, and gloo reduces them: what is written before the call and what comes after it
    become two graphs instead of one.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks == 1:
        return
    if xr.device_type() != "CPU":
        xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1 / ranks)
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    torch_xla.sync()  # computes all there is so far; fetching alone would compute `flat`, and the rest again later
    mean = flat.cpu()
    dist.all_reduce(mean)
    mean /= ranks
    parts = mean.to(flat.device).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def check_world(ranks) -> None:
    """Raise RuntimeError unless XLA's collectives connect all of `ranks` processes."""
    connected = xr.world_size()
    if connected != ranks:
        raise RuntimeError(
            f"{ranks} processes were started (WORLD_SIZE), but XLA on {xr.device_type()} connects {connected}: each "
            "would train alone, and an all-reduce would hand its own numbers back unchanged. On a CPU reduce the "
            "gradients with gloo (platforms.xla.gradients.average does it); XLA's own collectives need devices that "
            "it connects, such as TPUs"
        )


def join_xla_group(init_method="xla://") -> None:
    """torch.distributed.init_process_group("xla", …), which on a CPU would go wrong without a word.

    With "xla://" every process would get a group of one; with "env://", as the source has it, a
    group of the right size whose collectives do not reach the others.

    Raises:
        RuntimeError: XLA does not connect all processes of WORLD_SIZE; the group is left again.
    """
    import torch_xla.distributed.xla_backend  # noqa: F401  makes "xla" and "xla://" known

    dist.init_process_group("xla", init_method=init_method)
    try:
        check_world(int(os.environ.get("WORLD_SIZE", 1)))
    except RuntimeError:
        dist.destroy_process_group()
        raise
