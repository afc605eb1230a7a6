"""Sharded checkpoints by torch.distributed.checkpoint: every rank writes its shards and reads those that it needs.

Tensors have names that do not depend on the ranks ("model.blocks.0.mlp.up.weight", "optimizer.….exp_avg"), so a run
goes on with another number of ranks, and with another strategy.
"""

import hashlib
import io
import os
import pickle
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path, PurePath

import torch
import torch.distributed as dist

from ..launcher.language import marked
from .sharding import like, own_optimizer

MODEL, OPTIMIZER, METADATA = "model.", "optimizer.", ".metadata"
MADE_OF = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")  # what is in METADATA
STEP = "step"  # a number that AdamW keeps on the CPU
PLAIN = (torch.Size, torch.serialization._get_layout)


def digest(path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def sync_folder(folder) -> None:
    """Wait until the disk has the folder's entries (POSIX only; elsewhere nothing to do)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or belongs to another run."""


def hidden(path) -> Path:
    """Where the folder `path` is while it is made or removed: nobody takes it for a checkpoint there."""
    return path.with_name(f".{path.name}.part")


# -- writing ------------------------------------------------------------------------------


def write(folder, run, weights) -> dict:
    """Write the tensors of `run`, a loop.Run, to `folder`; all its ranks call it. {file: SHA-256}, on every rank."""
    import torch.distributed.checkpoint as dcp  # slow, and only sharded runs need it

    tensors = {MODEL + name: value for name, value in weights.items()}
    if not run.world.is_main:  # BatchNorm's statistics differ by rank: those of rank 0 are the model's
        for name, _ in run.model.named_buffers(remove_duplicate=False):
            tensors.pop(MODEL + name, None)
    for name, parameter in _named(run):
        state = own_optimizer(run.optimizer).state.get(parameter, {})
        tensors |= {f"{OPTIMIZER}{name}.{key}": value for key, value in state.items() if torch.is_tensor(value)}
    dist.barrier()  # what another run left is removed
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder))
    mine = {path.name: digest(path) for path in Path(folder).glob(f"__{run.world.rank}_*")}
    if run.world.is_main:
        mine[METADATA] = digest(Path(folder, METADATA))
    all_files = [None] * run.world.size
    dist.all_gather_object(all_files, mine)
    return {name: value for files in all_files for name, value in files.items()}


def publish(folder, path, files) -> None:
    """Give the finished `folder` the name `path`; what had that name, a damaged checkpoint, is replaced.

    Raises:
        CheckpointError: some of `files` were written elsewhere.
    """
    if missing := [name for name in files if not Path(folder, name).is_file()]:
        raise CheckpointError(
            f"{missing[0]} of {path} was written on another host, into a folder of its own; a sharded checkpoint needs "
            "a checkpoint_dir that all hosts share"
        )
    if path.is_dir():
        path.rename(path.with_name(f".{path.name}.old.part"))
    sync_folder(folder)
    folder.rename(path)
    sync_folder(path.parent)


# -- reading ------------------------------------------------------------------------------


def check(folder, files) -> None:
    """Compare the files of a checkpoint with their checksums.

    Raises:
        CheckpointError: one is missing or altered.
    """
    for name, expected in files.items():
        path = Path(folder, name)
        if not path.is_file() or digest(path) != expected:
            what = marked("altered") if path.is_file() else marked("missing")
            raise CheckpointError(
                f"{folder} is damaged: {name} is {what}. Delete the folder, or go on from an older one"
            )


def fill(run, folder) -> dict:
    """Read what this rank of `run` holds of a sharded checkpoint: into its optimizer, and the weights returned.

    Raises:
        CheckpointError: the weights are not those of this run's model.
    """
    import torch.distributed.checkpoint as dcp

    check_metadata(folder)
    reader = dcp.FileSystemReader(folder)
    there = reader.read_metadata().state_dict_metadata
    weights = run.precision.state_dict(run.model)["model"]
    tensors, states = {MODEL + name: value for name, value in weights.items()}, {}
    _same_model(folder, tensors, there)
    own = dict(_named(run))
    for name in there:
        if name.startswith(OPTIMIZER):
            parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
            if parameter in own:
                size, dtype = there[name].size, there[name].properties.dtype
                same = size == own[parameter].shape and key != STEP
                empty = torch.zeros_like(own[parameter], dtype=dtype) if same else torch.zeros(size, dtype=dtype)
                tensors[name] = states.setdefault(parameter, {})[key] = empty.detach()
    dcp.load(tensors, storage_reader=reader)
    _put(run, states)
    return weights


def spread(run, state) -> dict:
    """What this rank of a sharded `run` holds of a whole checkpoint: into its optimizer, and the weights returned."""
    mine = run.precision.state_dict(run.model)["model"]
    _same_model(run.config.checkpoint_dir, mine, state["model"])
    names = [name for name, _ in run.model.named_parameters()]
    own = dict(_named(run))
    states = {
        names[i]: {
            key: value.cpu() if key == STEP else like(value, own[names[i]])
            for key, value in of_one.items()
            if torch.is_tensor(value)
        }
        for i, of_one in state["optimizer"]["state"].items()
        if names[i] in own
    }
    _put(run, states)
    return {name: like(value, mine[name]) for name, value in state["model"].items()}


def _same_model(folder, mine, there):
    shapes = {
        name: tuple(getattr(there[name], "shape", getattr(there[name], "size", ()))) if name in there else None
        for name in mine
    }
    wrong = next((name for name in mine if shapes[name] != tuple(mine[name].shape)), None)
    if wrong:
        has = "has none" if shapes[wrong] is None else f"has {list(shapes[wrong])}"
        raise CheckpointError(
            f"the checkpoint in {folder} is of another model: {wrong.removeprefix(MODEL)} has "
            f"{list(mine[wrong].shape)} here, and the checkpoint {has}. Choose an empty checkpoint_dir, or that model"
        )


def _named(run):
    """(name, parameter) of all that this rank's optimizer updates."""
    own = {id(p) for group in own_optimizer(run.optimizer).param_groups for p in group["params"]}
    names = (name for name, _ in run.model.named_parameters())
    return [(name, p) for name, p in zip(names, run.precision.parameters, strict=True) if id(p) in own]


def _put(run, states):
    optimizer = own_optimizer(run.optimizer)
    for name, parameter in _named(run):
        if name in states:
            optimizer.state[parameter] = states[name]


def check_metadata(folder) -> None:
    """Refuse a pickle that holds more than the description of tensors: reading it could run code.

    Raises:
        CheckpointError: it names something else.
    """
    _Described(io.BytesIO(Path(folder, METADATA).read_bytes())).load()


class _Described(pickle.Unpickler):
    def find_class(self, module, name):
        known = module in (*MADE_OF, "torch", "torch.serialization") or module.partition(".")[0] == "pathlib"
        made = super().find_class(module, name) if known and "." not in name else None
        described = is_dataclass(made) or isinstance(made, (torch.dtype, torch.layout)) or made in PLAIN
        if described or (isinstance(made, type) and issubclass(made, (PurePath, Enum))):
            return made
        raise CheckpointError(f"{METADATA} of the checkpoint names {module}.{name}, which is no tensor's; delete it")
