"""A prepared set on disk: written whole or not at all, and checked against its manifest.

    <root>/<set>/*.npy          images and labels, or tokens, of each split
    <root>/<set>/MANIFEST.json  recipe, facts about the set, size and SHA-256 of every file
    <root>/.<set>.<...>.part    a set being made, or what a killed run left
    <root>/.<set>.lock          held while a set is made

The manifest is the last file written before the folder gets its final name, so a folder
with a manifest was complete when it got it.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np

from ..launcher.language import marked
from ..paths import replace_file

try:
    import fcntl
except ImportError:  # Windows: there, the user must not start two runs at once
    fcntl = None

MANIFEST = "MANIFEST.json"
LARGE = 64_000_000  # bytes of a file, from which on it is mapped into memory and not read


class PrepareError(RuntimeError):
    """A set cannot be prepared; the text says why and what to do."""


class Store:
    """Takes the arrays of one set into the temporary folder `folder` (created here)."""

    def __init__(self, folder: Path, progress=lambda done, total: None):
        self.folder, self.progress = folder, progress
        self.files, self.counts = {}, {}
        folder.mkdir()

    def save(self, split: str, pieces, labels) -> None:
        """Write a split: images, which come in `pieces` of uint8 [n, 3, H, W], and int64 labels."""
        pieces, labels = iter(pieces), np.asarray(labels, np.int64)
        first = next(pieces)
        self._write(f"{split}_images.npy", chain([first], pieces), np.uint8, (len(labels), *first.shape[1:]))
        self._write(f"{split}_labels.npy", [labels], np.int64, labels.shape)
        self.counts[split] = len(labels)

    def save_tokens(self, split: str, tokens) -> None:
        """Write a split of text: uint8 [n, length + 1]."""
        self._write(f"{split}_tokens.npy", [tokens], np.uint8, tokens.shape)
        self.counts[split] = len(tokens)

    def _write(self, name, pieces, dtype, shape):
        header = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        self.files[name] = write_synced(
            self.folder / name, chain([header.getvalue()], (np.ascontiguousarray(piece).data for piece in pieces))
        )

    def finish(self, final: Path, recipe: dict, about: dict) -> None:
        """Add the manifest and give the folder its final name, replacing what was there."""
        manifest = {"recipe": recipe, "about": about | self.counts, "files": self.files}
        write_synced(self.folder / MANIFEST, [(json.dumps(manifest, indent=1) + "\n").encode()])
        sync_folder(self.folder)
        if final.is_symlink() or final.exists():
            # A folder cannot be renamed onto a full one. If the run is killed between the two
            # steps the next one finds no set and makes it again.
            final.rename(self.folder.with_name(f".{final.name}.old.part"))
        self.folder.rename(final)
        sync_folder(final.parent)
        remove_leftovers(final)


def write_synced(path: Path, pieces) -> dict:
    """Write a new file and wait until the disk has it; returns its size and its SHA-256."""
    size, checksum = 0, hashlib.sha256()
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)
            checksum.update(piece)
            size += memoryview(piece).nbytes
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": checksum.hexdigest()}


def sync_folder(folder) -> None:
    """Wait until the disk has the folder's entries (POSIX only; elsewhere nothing to do)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def leftovers(final: Path) -> list[Path]:
    """What killed runs left of the set `final`; while one is running, its temporary folder."""
    return list(final.parent.glob(f".{final.name}.*.part"))


def remove_leftovers(final: Path) -> None:
    """Remove what earlier runs left of the set `final`. Only for the holder of its lock."""
    for path in leftovers(final):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def locked(path: Path, waiting):
    """Hold the lock file `path`; calls `waiting()` first if another process holds it."""
    with open(path, "a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_manifest(folder: Path) -> dict:
    """The manifest of a set; FileNotFoundError when there is none, ValueError when damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from error
    if not (
        isinstance(manifest, dict) and all(isinstance(manifest.get(key), dict) for key in ("recipe", "about", "files"))
    ):
        raise ValueError(f"{folder / MANIFEST} has no recipe, about or files")
    return manifest


def digest(path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def check(path: Path, expected: dict) -> None:
    """Compare a file with its size and SHA-256; ValueError when they differ."""
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise ValueError(f"{path.name} has {size:,} bytes instead of {expected['bytes']:,}")
    if (found := digest(path)) != expected["sha256"]:
        raise ValueError(f"{path.name} has SHA-256 {found} instead of {expected['sha256']}")


def array(folder: Path, name: str, manifest: dict) -> np.ndarray:
    """An array of a set, compared with its checksum; a large one is mapped into memory.

    Writing to a mapped array changes this process's memory only, never the file. The checksum of a large file is
    compared once; from then on it is trusted as long as its size and time stay the same.
    """
    path, expected = folder / name, manifest["files"][name]
    large = expected["bytes"] >= LARGE
    state = path.stat()
    seen, known = [expected["sha256"], state.st_size, state.st_mtime_ns, state.st_ino], folder / f"{name}.checked"
    if not (large and known.is_file() and known.read_text() == json.dumps(seen)):
        check(path, expected)
        if large:
            with contextlib.suppress(OSError):  # a folder that cannot be written: compared again next time
                replace_file(known, json.dumps(seen))
    return np.load(path, mmap_mode="c" if large else None, allow_pickle=False)


def problem(folder: Path, recipe: dict, checksums: bool = True) -> str | None:
    """What is wrong with the set in `folder`, in words; None when it is whole.

    `recipe` holds what the set must have been made with. Without `checksums` only the files'
    sizes are compared, which takes no time and finds truncated files.
    """
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        return marked("is not there")
    except ValueError:
        return marked(f"has a damaged {MANIFEST}")
    for key, wanted in recipe.items():
        if manifest["recipe"].get(key) != wanted:
            return marked(f"was made with {key!s} {manifest['recipe'].get(key)}, not {wanted}")
    for path, expected in manifest["files"].items():
        try:
            if checksums:
                check(folder / path, expected)
            elif (folder / path).stat().st_size != expected["bytes"]:
                return marked(f"is damaged: {path} has not its full size")
        except FileNotFoundError:
            return marked(f"is damaged: {path} is missing")
        except ValueError as error:
            return marked(f"is damaged: {error}")
    return None


def is_foreign(folder: Path) -> bool:
    """Whether somebody's own files are in the set's place: content, but no manifest."""
    if not folder.is_dir():
        return folder.exists()
    return not (folder / MANIFEST).exists() and any(folder.iterdir())


class Progress:
    """One line that updates, in a terminal only."""

    def __init__(self, name: str):
        self.name, self.shown = name, 0.0

    def __call__(self, done: int, total: int) -> None:
        if sys.stdout.isatty() and time.monotonic() - self.shown > 0.1:
            amount = f"{100 * done // total} %" if total else f"{done / 1e6:.1f} MB"
            print(f"\r{self.name}: {amount}\033[K", end="", flush=True)
            self.shown = time.monotonic()

    def clear(self) -> None:
        """Remove the line, if one was shown."""
        if self.shown:
            print("\r\033[K", end="", flush=True)


def description(folder: Path) -> str:
    """Numbers of samples, files and megabytes of a set, and where it is."""
    manifest = read_manifest(folder)
    about, files = manifest["about"], manifest["files"]
    megabytes = sum(file["bytes"] for file in files.values()) / 1e6
    return (
        f"{about['train']:,} train + {about['test']:,} test {about.get('of', 'images')}, {len(files)} files, "
        f"{megabytes:.1f} MB in {folder}"
    )
