"""Sharded checkpoints by torch.distributed.checkpoint: every rank writes its shards and reads those that it needs.

Tensors have names that do not depend on the ranks, so a run goes on with another number of ranks, and with another
strategy. Read only those that you trust: torch unpickles their METADATA. What is imported in functions is slow.
"""

import io
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

from .checkpoint import CheckpointError, digest, keep_newest, write

METADATA = ".metadata"  # of torch.distributed.checkpoint: which tensor is where


def save(run, state) -> None:
    """Write `state` and the shards of `run`, a loop.Run, into a folder; all ranks call it.

    The folder gets its name when all of it is on disk.

    Raises:
        CheckpointError: hosts do not share checkpoint_dir.
    """
    import torch.distributed.checkpoint as dcp

    path = Path(run.config.checkpoint_dir, f"step-{run.step:09d}")
    making = path.with_name(f".{path.name}.part")
    tensors = _tensors(run)
    if run.world.is_main:
        for left in path.parent.glob(".step-*.part"):  # by a run that was killed
            shutil.rmtree(left)
        path.parent.mkdir(parents=True, exist_ok=True)
    else:  # BatchNorm's statistics differ by rank: those of rank 0 are the model's
        for name, _ in run.model.named_buffers(remove_duplicate=False):
            tensors["model"].pop(name, None)
    dist.barrier()
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(making))
    mine = [*making.glob(f"__{run.world.rank}_*"), *([making / METADATA] if run.world.is_main else [])]
    digests = [None] * run.world.size
    dist.all_gather_object(digests, {file.name: digest(file.read_bytes()).hex() for file in mine})
    if not run.world.is_main:
        return
    files = {name: value for of_rank in digests for name, value in of_rank.items()}
    if missing := [name for name in files if not (making / name).is_file()]:
        raise CheckpointError(
            f"{missing[0]} of {path} was written on another host; a sharded checkpoint needs a checkpoint_dir that "
            "all hosts share"
        )
    write(making, {"files": files, **state})
    if path.is_dir():  # a damaged one
        path.rename(path.with_name(f".{path.name}.old.part"))
    making.rename(path)
    keep_newest(path.parent)


def load_sharded(run, folder) -> None:
    """Read what this rank of a sharded `run` holds of a sharded checkpoint into its model and optimizer."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    found = _tensors(run)
    dcp.load(found, storage_reader=dcp.FileSystemReader(folder))
    set_state_dict(run.model, run.optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])


def load_full(run, state) -> None:
    """Cut `state`, a whole checkpoint, into what this rank of a sharded `run` holds."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    names = dict(enumerate(name for name, _ in run.model.named_parameters()))
    set_state_dict(
        run.model,
        run.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=_renamed(state["optimizer"], names),
        options=StateDictOptions(full_state_dict=True),
    )


def whole(run, folder) -> dict:
    """A sharded checkpoint as a run that is not sharded saves it: {"model": weights, "optimizer": its state_dict}."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(folder, buffer := io.BytesIO())
    buffer.seek(0)
    state = torch.load(buffer, map_location=run.world.device, weights_only=True)
    numbers = {name: number for number, (name, _) in enumerate(run.model.named_parameters())}
    return {"model": state["model"], "optimizer": _renamed(state["optimizer"], numbers)}


def _tensors(run):
    """What this rank holds: {"model": …, "optimizer": …}, by the names of parameters."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    return dict(zip(("model", "optimizer"), get_state_dict(run.model, run.optimizer), strict=True))


def _renamed(optimizer, names):
    """An optimizer's state_dict whose parameters have other names, or numbers."""
    groups = [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer["param_groups"]]
    return {"state": {names[p]: state for p, state in optimizer["state"].items()}, "param_groups": groups}
