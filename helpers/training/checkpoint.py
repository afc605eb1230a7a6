"""Checkpoints that can be trusted: written whole or not at all, refused when damaged."""

import hashlib
import io
import os
import re
import warnings
from pathlib import Path

import torch

KEEP = 2  # the newest, and the one before it in case the newest is damaged
NAME = re.compile(r"step-(\d{9})\.pt")
DIGEST = 32  # bytes of SHA-256 at the end of the file


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or belongs to another run."""


def save(folder, step, state) -> Path:
    """Write `state` (tensors and plain values) as the checkpoint of `step`; older ones are removed.

    The file appears under its name only when all of it is on disk, so a crash at any moment leaves
    the checkpoints before it as they were. To be called by one rank only.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    path = folder / f"step-{step:09d}.pt"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    for old in found(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def load(path, device="cpu"):
    """Read one checkpoint; code inside it is never run (`weights_only`).

    Raises:
        CheckpointError: the file is truncated or altered.
    """
    raw = Path(path).read_bytes()
    data, digest = raw[:-DIGEST], raw[-DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        raise CheckpointError(
            f"{path} is damaged ({len(raw)} bytes that do not match their own checksum): it was truncated or altered. "
            "Delete it, or go on from an older one"
        )
    return torch.load(io.BytesIO(data), map_location=device, weights_only=True)


def latest(folder, device="cpu"):
    """The newest sound checkpoint in `folder`, or None if there is none at all.

    A damaged one is named in a warning and the one before it is used.

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
        raise CheckpointError(f"all {len(paths)} checkpoints in {folder} are damaged; delete them to start anew")
    return None


def found(folder):
    """Paths of the checkpoints in `folder`, newest first."""
    paths = [path for path in Path(folder).glob("step-*.pt") if NAME.fullmatch(path.name)]
    return sorted(paths, reverse=True)
