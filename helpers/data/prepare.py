"""Prepare data sets: what `data/prepare.sh` runs.

Safe to repeat (a whole set is only verified), to interrupt, and to start twice at once.
"""

import argparse
import errno
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from ..paths import data_root
from .recipes import RECIPES, Recipe, check_request, wanted
from .store import PrepareError, Progress, Store, description, is_foreign, leftovers, locked, problem, remove_leftovers


def prepare(name: str, root=None, images: int | None = None, force: bool = False, say=print) -> Path:
    """Make the set unless it is there and whole; returns its folder.

    `say` gets the lines of text. Raises ValueError for a bad name or number, PrepareError or
    OSError when the set cannot be made; then nothing half-made is left.
    """
    recipe, target = check_request(name, images), wanted(name, images)
    root = Path(root or data_root()).absolute()
    final = root / name

    def whole() -> bool:
        return not force and problem(final, target) is None

    # First without the lock: a whole set in a folder that cannot be written is fine.
    if whole() and not leftovers(final):
        say(f"{name}: already there, {description(final)}, verified")
        return final
    root.mkdir(parents=True, exist_ok=True)
    waiting = f"{name}: another run is preparing it; waiting"
    with locked(root / f".{name}.lock", lambda: say(waiting)):
        remove_leftovers(final)
        if whole():
            say(f"{name}: already there, {description(final)}, verified")
            return final
        if is_foreign(final) and not force:
            raise PrepareError(
                f"{final} holds files that were not made by this program: move them away, choose "
                "another folder with --root, or give them up with --force"
            )
        if final.exists():
            say(f"{name}: the set in {final} {problem(final, target) or 'is whole'}; making it again")
        make(recipe, target, final, say)
        say(f"{name}: ready, {description(final)}")
    return final


def make(recipe: Recipe, target: dict, final: Path, say) -> None:
    """Make the set in a temporary folder and move it to `final`."""
    missing = [module for module in recipe.needs if find_spec(module) is None]
    if missing:
        raise PrepareError(
            f"{sys.executable} has no {', '.join(missing)}: run 'make data', which installs what is needed"
        )
    name = target["set"]
    say(f"{name}: making {recipe.summary.partition(';')[0]}")
    progress = Progress(name)
    try:
        store = Store(final.with_name(f".{name}.{os.getpid()}.part"), progress)
        about = {"of": recipe.of, **recipe.maker(store, target["images"])}
        progress.clear()
        store.finish(final, target, about)
    except BaseException:  # Ctrl-C and SIGTERM too
        progress.clear()
        remove_leftovers(final)
        raise


def explain(error: OSError) -> str:
    """What the system refused, where, and what to do, in one line."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "make room there or choose another folder with --root DIR"
    else:
        advice = "choose a folder that can be written with --root DIR"
    return f"{error.strerror or error}{where}; {advice}. Nothing half-made was left"


def verify(name: str, root: Path, images: int | None) -> bool:
    """Say whether a set is there and whole, and return it; changes nothing."""
    target = wanted(name, images)
    if images is None:
        del target["images"]  # any size will do
    trouble = problem(root / name, target)
    print(f"{name}: the set in {root / name} {trouble}" if trouble else f"{name}: verified, {description(root / name)}")
    return trouble is None


def folder(text: str) -> Path:
    """A folder's path; refuses the empty one, which would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is needed")
    return Path(text)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, checked; exits with code 2 when something in it is wrong."""
    parser = argparse.ArgumentParser(
        prog="prepare.sh",
        description="Make or download data sets. A set that is there and whole is only verified.",
        epilog="sets:\n"
        + "\n".join(f"  {n:14} {r.summary}" for n, r in RECIPES.items())
        + """

environment:
  HELPERS_DATA         default folder of the sets
  HELPERS_CIFAR10_URL  where to get CIFAR-10's archive (http://, https:// or file://)
  PYTHON               the Python to use when the project has no .venv""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help="sets to prepare (default: digits)")
    parser.add_argument(
        "--root", type=folder, default=data_root(), metavar="DIR", help="folder of the sets (default: %(default)s)"
    )
    parser.add_argument("--images", type=int, metavar="N", help="number of training images of mock or imagenet-mock")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--force", action="store_true", help="make the sets again")
    mode.add_argument("--verify", action="store_true", help="only check the sets that are there")
    options = parser.parse_intermixed_args(arguments)
    options.sets = list(dict.fromkeys(options.sets)) or ["digits"]
    try:
        for name in options.sets:
            check_request(name, options.images)
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse(arguments)
    root = options.root.absolute()
    try:
        if options.verify:
            whole = [verify(name, root, options.images) for name in options.sets]
            return 0 if all(whole) else 1
        for name in options.sets:
            prepare(name, root, options.images, options.force)
    except KeyboardInterrupt:
        print("interrupted; nothing half-made was left", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: the data set cannot be prepared: {explain(error)}", file=sys.stderr)
        return 1
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # As an exception, so that the clean-up runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
