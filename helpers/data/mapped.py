"""A large set as arrays on disk that are mapped into memory: pages come when they are used, and all ranks share them.

They lie in the cache folder. They are made of files that were compared with their checksums, once; from then on they
are taken as long as sizes and times of these files, and their own, are what they were. Else they are made again, and
the checksums compared again.
"""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from ..paths import cache_root, replace_file
from .store import MANIFEST, locked

FROM = 64_000_000  # bytes of images, from which on a split is mapped and not read into memory
FILES, STATE = ("images.npy", "labels.npy"), "STATE.json"
VERSION = 1  # of what is in them


def arrays(folder: Path, split: str, manifest: dict, read) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 3, H, W], mapped, and labels int64 [N] of a prepared split.

    Writing to the images changes this process's memory only, never the file. Where the cache folder takes no copy, for
    want of room or of the right to write, the split is read into memory as a small one is.

    Args:
        read: function (folder, split, manifest, make), which fills the arrays that make(n, size) gives.

    Raises:
        ValueError: a file is damaged.
        FileNotFoundError: one is missing.
    """
    name = hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:24]
    place = cache_root() / "sets" / f"{name}-{split}"
    state = _state(folder, [MANIFEST, *manifest["files"]])
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.with_suffix(".lock"), lambda: None):
            if _known(place) != [VERSION, state, _own(place)]:
                _make(place, state, lambda make: read(folder, split, manifest, make))
            return np.load(place / FILES[0], mmap_mode="c"), np.load(place / FILES[1])
    except OSError:
        return read(folder, split, manifest)


def _make(place, state, fill):
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        images, _ = fill(lambda n, size: _empty(part, n, size))
        images.flush()
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    replace_file(place / STATE, json.dumps([VERSION, state, _own(place)]))


def _empty(part, n, size):
    """Arrays in new files. What finds the disk full while it writes to a map is killed, so room is made sure of."""
    needed = n * (3 * size * size + 8)
    if shutil.disk_usage(part).free < 1.05 * needed:
        raise OSError(errno.ENOSPC, f"{needed / 1e6:,.0f} MB are needed for a copy of the set in {part.parent}")
    shapes = ((n, 3, size, size), np.uint8), ((n,), np.int64)
    return tuple(
        np.lib.format.open_memmap(part / name, "w+", dtype, shape)
        for name, (shape, dtype) in zip(FILES, shapes, strict=True)
    )


def _known(place):
    try:
        return json.loads((place / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or damaged
        return None


def _own(place):
    return _state(place, FILES)


def _state(folder, names):
    """A hash of sizes and times of the files; a time that no program can set is among them."""
    told = hashlib.sha256()
    for name in names:
        try:
            found = os.stat(folder / name)
            told.update(f"{name} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}\n".encode())
        except FileNotFoundError:
            told.update(f"{name} missing\n".encode())
    return told.hexdigest()
