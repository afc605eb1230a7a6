"""Prepare data sets: what `data/prepare.sh` runs.

    <root>/<set>/*.npy          images and labels, or tokens, of each split
    <root>/<set>/MANIFEST.json  how the set was made, and what a reader needs to know about it

A set is made in a temporary folder and gets its name when all of it is written, so it is whole or absent, also when the
command is interrupted or started twice at once.
"""

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from ..paths import data_root
from .recipes import RECIPES, PrepareError

MANIFEST = "MANIFEST.json"


def trouble(name: str, root: Path) -> str | None:
    """Why a set cannot be used, in words; None when it is there. Raises ValueError for an unknown set."""
    if name not in RECIPES:
        raise ValueError(f"there is no data set {name!r}; the sets are {', '.join(RECIPES)}")
    try:
        version = json.loads((root / name / MANIFEST).read_bytes())["recipe"]["version"]
    except (OSError, ValueError, LookupError, TypeError):
        return "is not there" if not (root / name / MANIFEST).exists() else f"has a damaged {MANIFEST}"
    wanted = RECIPES[name].version
    return None if version == wanted else f"was made with version {version} of its recipe, not {wanted}"


def prepare(name: str, root=None, say=print) -> Path:
    """Make the set unless it is there; returns its folder. `say` gets lines of text.

    Raises ValueError for an unknown set, PrepareError or OSError when it cannot be made.
    """
    root = Path(root or data_root()).absolute()
    final = root / name
    if trouble(name, root) is None:
        say(f"{name}: already there, in {final}")
        return final
    if final.exists() and not (final / MANIFEST).exists():
        raise PrepareError(f"{final} was not made by this program: move it away, or choose another folder with --root")
    say(f"{name}: making {RECIPES[name].summary}")
    try:
        splits, classes = RECIPES[name].maker()
    except ImportError as error:
        raise PrepareError(f"{sys.executable} has no {error.name}: run 'make data', which installs it") from error
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=root) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        for split, arrays in splits.items():
            for kind, array in arrays.items():
                np.save(new / f"{split}_{kind}.npy", np.ascontiguousarray(array))
        manifest = {"recipe": {"set": name, "version": RECIPES[name].version}, "about": about(classes, splits["train"])}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        if trouble(name, root):  # else another process was faster
            with contextlib.suppress(OSError):  # there is none, as a rule; a folder cannot be renamed onto another
                final.rename(Path(temporary, "old"))
            with contextlib.suppress(OSError):  # another process was faster after all
                new.rename(final)
    if wrong := trouble(name, root):
        raise PrepareError(f"the data set in {final} {wrong}")
    say(f"{name}: ready, in {final}")
    return final


def about(classes: list, train: dict) -> dict:
    """What a reader needs to know: the classes, and the length of a text or the mean and std of images in [0, 1]."""
    if "tokens" in train:
        return {"classes": classes, "length": train["tokens"].shape[1] - 1}
    images, counts = train["images"], np.zeros((3, 256), np.int64)  # of each value: exact, and quick
    for start in range(0, len(images), 1000):
        for channel in range(3):
            counts[channel] += np.bincount(images[start : start + 1000, channel].ravel(), minlength=256)
    values, share = np.arange(256) / 255, counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0))
    return {"classes": classes, "mean": mean.tolist(), "std": std.tolist()}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    sets = "\n".join(f"  {name:14} {each.summary}; {each.images:,} for training" for name, each in RECIPES.items())
    parser = argparse.ArgumentParser(
        prog="prepare.sh",
        description="Make or download data sets. A set that is there is left as it is.",
        epilog=f"sets:\n{sets}\n\nHELPERS_DATA is the default folder; PYTHON is used if the project has no .venv.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help="sets to prepare (default: digits)")
    parser.add_argument("--root", default=data_root(), metavar="DIR", help="folder of the sets (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        for name in options.sets or ["digits"]:
            prepare(name, options.root)
    except ValueError as error:
        parser.error(str(error))
    except (PrepareError, OSError) as error:
        print(f"error: the data set cannot be prepared: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    for stop in (signal.SIGINT, signal.SIGTERM):  # as an exception, so that the temporary folder is removed
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
