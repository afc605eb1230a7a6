"""Resuming: what a run saves, and how another goes on from there."""

import torch
import torch.distributed as dist

from ..config import settings_of
from . import checkpoint


def save(run) -> None:
    """Write a checkpoint of `run`, a train.Run; to be called by all its ranks at the same step."""
    states = [None] * run.world.size
    dist.all_gather_object(states, torch.get_rng_state())  # each rank goes on with its own dropout
    if run.world.is_main:
        state = {
            "run": identity(run), "step": run.step, **run.precision.state_dict(run.model),
            "optimizer": run.optimizer.state_dict(), "rng": states, "curve": run.curve, "trained_s": run.trained_s,
        }  # fmt: skip
        checkpoint.save(run.config.checkpoint_dir, run.step, state)
    dist.barrier()  # no rank trains on before the checkpoint is complete


def load(run) -> None:
    """Bring `run` to its newest sound checkpoint; without any it stays at its beginning.

    Raises:
        CheckpointError: all checkpoints are damaged, or they belong to a different run.
    """
    folder = run.config.checkpoint_dir
    state = checkpoint.latest(folder, run.world.device)
    if len(run.world.hosts) > 1:
        state = _newest(run, state)
    if state is None:
        return
    mine, theirs = identity(run), state["run"]
    other = [f"{k} {theirs.get(k)!r} (this run: {mine[k]!r})" for k in mine if theirs.get(k) != mine[k]]
    if other:
        raise checkpoint.CheckpointError(
            f"the checkpoint in {folder} is of another run: {', '.join(other)}. "
            "Choose an empty checkpoint_dir, or the same settings"
        )
    run.precision.load_state_dict(run.model, state)
    run.optimizer.load_state_dict(state["optimizer"])
    run.step, run.curve, run.trained_s = state["step"], state["curve"], state["trained_s"]
    if len(state["rng"]) == run.world.size:
        torch.set_rng_state(state["rng"][run.world.rank].cpu())


def check_unused(config) -> None:
    """A run from the beginning must not save among the checkpoints of another: those of later steps would win.

    Raises:
        ValueError: there are some.
    """
    there = checkpoint.found(config.checkpoint_dir) if config.checkpoint_every else []
    if there:
        raise ValueError(
            f"{config.checkpoint_dir} has checkpoints of a run before (the newest: {there[0].name}); set resume "
            "(--resume) to go on from there, or choose an empty checkpoint_dir"
        )


def _newest(run, mine):
    """The newest of all ranks' states: hosts need not share a folder, and only the first rank's host saves."""
    steps = [None] * run.world.size
    dist.all_gather_object(steps, -1 if mine is None else mine["step"])
    if min(steps) == max(steps):
        return mine
    source = steps.index(max(steps))
    state = [checkpoint.latest(run.config.checkpoint_dir) if run.world.rank == source else None]
    dist.broadcast_object_list(state, source)
    return state[0]


def identity(run) -> dict:
    """What must be the same for two runs to follow the same losses."""
    config = run.config
    agreeing = [one for one in settings_of(type(config)).values() if one.in_checkpoint]
    names = [one.name if one.in_checkpoint is True else one.in_checkpoint for one in agreeing]
    known = {name: config.recorded(name) for name in names}
    if config.schedule != "constant":  # it bends towards the end of the run
        known["total steps"] = run.total_steps
    return known
