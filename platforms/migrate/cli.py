"""`python -m platforms.migrate`: files and folders, a diff, a report, and care with what is written."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from helpers.settings import hyphens, run_command

from .engine import migrate
from .source import MigrationError


def main(arguments=None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args([hyphens(argument) for argument in given])
    return run_command(parser.prog, lambda: run(options))


def _parser():
    about = "Move training scripts from CUDA to Ascend NPUs. Without --out nothing is written."
    sub = argparse.ArgumentParser(prog="python -m platforms.migrate", description=about, allow_abbrev=False)
    sub.add_argument("paths", nargs="+", metavar="PATH", help="a script, or a folder (its .py files)")
    sub.add_argument("--style", default="article", choices=("article", "modern"), help="apex; or torch.amp, torchrun")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="write the results into this folder")
    where.add_argument("--diff", action="store_true", help="print the diff alone, for patch -p0 or git apply -p0")
    sub.add_argument("--force", action="store_true", help="with --out: replace files that differ")
    return sub


def run(options):
    """Migrate everything, then write everything; an error on the way writes nothing. Returns the exit status.

    Of a folder, what is no Python 3 is named and left out, and the status is 1.
    """
    jobs, failed = [], []  # jobs: (file, its name inside what was given, its migration)
    for source, inside in _inputs(options.paths):
        name = os.path.relpath(source) if source.absolute().is_relative_to(Path.cwd()) else str(source)
        try:
            jobs.append((source, inside, migrate(source, style=options.style, name=name)))
        except MigrationError as error:
            if source in map(Path, options.paths):
                raise
            failed.append(error)
    if options.out is not None:
        _write(_targets(jobs, Path(options.out), options.force))
    else:
        for *_, migration in jobs:
            _print_bytes(migration.diff().encode(migration.encoding))
        if not options.diff:
            print("\n".join(migration.report() for *_, migration in jobs), end="")
    for error in failed:
        print(f"left out: {error}", file=sys.stderr)
    return 1 if failed else 0


def _inputs(paths):
    """(file, its name inside what was given) of every script."""
    found = []
    for path in map(Path, paths):
        inside = list(_scripts(path)) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"there is no .py file in {path}")
        found += [(file, file.relative_to(path if path.is_dir() else path.parent)) for file in inside]
    return found


def _scripts(folder):
    """The .py files below a folder, without hidden folders and virtual environments."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        folders[:] = [name for name in folders if not os.path.exists(os.path.join(here, name, "pyvenv.cfg"))]
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))


def _targets(jobs, folder, force):
    """{path: (file, bytes to write)}; ValueError where that would replace something that differs."""
    targets = {}
    for source, inside, migration in jobs:
        target, raw = folder / inside, migration.result.encode(migration.encoding)
        if target in targets:
            raise ValueError(f"two of the scripts would become {target}; migrate them one by one")
        if target.exists() and target.read_bytes() != raw and not force:
            raise ValueError(f"{target} exists and differs; --force replaces it, or choose another folder")
        targets[target] = source, raw
    return targets


def _write(targets):
    """Write files whole or not at all, each with the permissions that it, or its source, had."""
    for target, (source, raw) in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(raw)
            shutil.copymode(target if target.exists() else source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        print(f"wrote {target}", file=sys.stderr)


def _print_bytes(raw):
    """As they are: the line ends and the encoding of a script are its own."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()
