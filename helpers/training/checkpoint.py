"""Checkpoints: written whole or not at all, refused when damaged, and how a run resumes from one."""

import hashlib
import io
import re
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from ..config import settings_of
from ..language import Message
from ..paths import replace_file

KEEP = 2  # the newest, and the one before it in case the newest is damaged
NAME = re.compile(r"step-(\d{9})(\.pt)?")  # a file, or the folder of a sharded one
PROGRESS = ("step", "curve", "trained_s")  # of a loop.Run
RUN = "run.pt"  # in the folder: all but the tensors


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or belongs to another run."""


def digest(data) -> bytes:
    """The checksum (32 bytes) that stands at the end of a file with `data`."""
    return hashlib.sha256(data).digest()


def save(folder, step, state) -> Path:
    """Write `state` (tensors and plain values) as the checkpoint of `step`; older ones are removed.

    The file has its name when all of it is on disk: a crash leaves the checkpoints before it as they were. To be
    called by one rank only.
    """
    path = Path(folder, f"step-{step:09d}.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, state)
    keep_newest(path.parent)
    return path


def write(path, state) -> None:
    """Write `state` to a file, with its checksum."""
    torch.save(state, buffer := io.BytesIO())
    replace_file(path, buffer.getvalue() + digest(buffer.getvalue()))


def keep_newest(folder) -> None:
    """Remove all but the KEEP newest checkpoints."""
    for old in found(folder)[KEEP:]:
        if old.is_dir():
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.part")))
        else:
            old.unlink(missing_ok=True)


def load(path, device="cpu"):
    """Read one checkpoint; code inside it is never run (`weights_only`).

    Of a sharded one this is all but the tensors: "folder" says where they are.

    Raises:
        CheckpointError: the file, or one of the folder's, is truncated or altered.
    """
    path, damaged = Path(path), "is damaged: delete this checkpoint, or go on from an older one"
    if path.is_dir():
        state = load(path / RUN, device)
        for name, expected in state["files"].items():
            if not (path / name).is_file() or digest((path / name).read_bytes()).hex() != expected:
                raise CheckpointError(f"{path / name} {damaged}")
        return {**state, "folder": path}
    raw = path.read_bytes() if path.is_file() else b""
    if digest(raw[:-32]) != raw[-32:]:
        raise CheckpointError(f"{path} {damaged}")
    return torch.load(io.BytesIO(raw[:-32]), map_location=device, weights_only=True)


def latest(folder, device="cpu"):
    """The newest sound checkpoint in `folder`, or None if there is none at all; damaged ones are warned of.

    Raises:
        CheckpointError: there are checkpoints, but all of them are damaged.
    """
    paths = found(folder)
    for path in paths:
        try:
            return load(path, device)
        except CheckpointError as error:
            warnings.warn(f"{error}. Trying the one before it", stacklevel=2)
    if paths:
        raise CheckpointError(f"all {len(paths)} checkpoints in {folder} are damaged; delete them to start again")
    return None


def found(folder):
    """Paths of the checkpoints in `folder`, newest first."""
    return sorted((path for path in Path(folder).glob("step-*") if NAME.fullmatch(path.name)), reverse=True)


# -- runs ---------------------------------------------------------------------------------


def save_run(run) -> None:
    """Write a checkpoint of `run`, a loop.Run; to be called by all its ranks at the same step."""
    states = [None] * run.world.size
    dist.all_gather_object(states, random_states(run.world.device))  # every rank has its own dropout
    state = {"run": identity(run), "shapes": _shapes(run), "rng": states}
    state.update({name: getattr(run, name) for name in PROGRESS})
    state.update(scaler=run.precision.scaler.state_dict(), skipped=run.precision.skipped)
    run.strategy.save(run, state)
    dist.barrier()  # nobody trains on before the checkpoint is there


def resume(run) -> None:
    """Bring `run` to its newest sound checkpoint; without any it stays at its beginning, and a note says so.

    Raises:
        CheckpointError: all checkpoints are damaged, or they belong to a different run.
    """
    state = latest(run.config.checkpoint_dir, run.world.device)
    if len(run.world.hosts) > 1:
        state = _newest(run, state)
    if state is None:
        nothing = Message(
            "nothing to resume from in {folder}: trained from the start", folder=run.config.checkpoint_dir
        )
        run.note = "; ".join(filter(None, (run.note, nothing)))
        run.tell("note", text=nothing)
        return
    _check_same_run(run, state)
    run.strategy.load(run, state)
    if run.precision.scaler.is_enabled():
        run.precision.scaler.load_state_dict(state["scaler"])
    run.precision.skipped = state["skipped"]
    vars(run).update({name: state[name] for name in PROGRESS})
    if len(state["rng"]) == run.world.size:
        set_random_states(state["rng"][run.world.rank], run.world.device)


def random_states(device) -> list:
    """The states of the generators that a rank on `device` draws from: the CPU's, and the device's own."""
    return [torch.get_rng_state()] + [module.get_rng_state() for module in _generators(device)]


def set_random_states(states, device) -> None:
    """Bring the generators to states of `random_states`, as far as this kind of device has them."""
    for module, state in zip((torch, *_generators(device)), states, strict=False):
        module.set_rng_state(state.cpu())


def _generators(device):
    return [] if device.type == "cpu" else [torch.get_device_module(device)]


def check_unused(config) -> None:
    """Refuse to start a new run among the checkpoints of another: those of later steps would win.

    Raises:
        ValueError: there are some.
    """
    there = found(config.checkpoint_dir) if config.checkpoint_dir else []
    if there:
        earlier = f"{config.checkpoint_dir} has checkpoints of an earlier run (the newest: {there[0].name})"
        raise ValueError(f"{earlier}; set resume (--resume) to go on, or choose an empty checkpoint_dir")


def _newest(run, mine):
    """The newest of all ranks' states: hosts need not share a folder, and only the first rank's host saves."""
    steps = [None] * run.world.size
    dist.all_gather_object(steps, -1 if mine is None else mine["step"])
    if min(steps) == max(steps):
        return mine
    if mine and "folder" in mine:
        raise CheckpointError(f"{mine['folder']} is not there on all hosts; let them share a checkpoint_dir")
    source = steps.index(max(steps))
    state = [latest(run.config.checkpoint_dir) if run.world.rank == source else None]
    dist.broadcast_object_list(state, source)
    return state[0]


def _check_same_run(run, state):
    mine, theirs, shapes = identity(run), state["run"], _shapes(run)
    other = [f"{k} {theirs.get(k)!r} (this run: {mine[k]!r})" for k in mine if theirs.get(k) != mine[k]]
    wrong = [name for name in shapes if state["shapes"].get(name) != shapes[name]][:1]
    other += [f"{name} has {state['shapes'].get(name)} (this run: {shapes[name]})" for name in wrong]
    if other:
        found = f"the checkpoint in {run.config.checkpoint_dir} is of another run: {', '.join(other)}"
        raise CheckpointError(f"{found}. Choose an empty checkpoint_dir, or the same settings")


def _shapes(run):
    return {name: list(value.shape) for name, value in run.model.state_dict().items()}


def identity(run) -> dict:
    """What must be the same for two runs to follow the same losses."""
    config = run.config
    agreeing = [one for one in settings_of(type(config)).values() if one.in_checkpoint]
    names = [one.name if one.in_checkpoint is True else one.in_checkpoint for one in agreeing]
    ends = {"total steps": run.total_steps} if config.schedule != "constant" else {}  # it bends towards the end
    return {name: config.recorded(name) for name in names} | ends
