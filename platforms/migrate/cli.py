"""`python -m platforms.migrate`: scripts, a diff, a report, and care with what is written."""

import argparse
import os
import sys
from pathlib import Path

from helpers.paths import replace_file
from helpers.settings import hyphens, run_command

from .engine import STYLES, migrate


def main(arguments=None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args([hyphens(argument) for argument in given])
    return run_command(parser.prog, lambda: run(options))


def _parser():
    about = "Move training scripts from CUDA to Ascend NPUs. Without --out nothing is written."
    sub = argparse.ArgumentParser(prog="python -m platforms.migrate", description=about, allow_abbrev=False)
    sub.add_argument("paths", nargs="+", metavar="PATH", help="a script")
    sub.add_argument("--style", default="article", choices=STYLES, help="apex; or torch.amp, torchrun")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="write the results into this folder")
    where.add_argument("--diff", action="store_true", help="print the diff alone, for patch -p0 or git apply -p0")
    sub.add_argument("--force", action="store_true", help="with --out: replace files that differ")
    return sub


def run(options):
    """Migrate everything, then write or print everything; an error on the way writes nothing."""
    made = {}  # path: its migration
    for path in map(Path, options.paths):
        name = os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path)
        made[path] = migrate(path, style=options.style, name=name)
    if options.out is not None:
        _write(_targets(made, Path(options.out), options.force))
        return
    for migration in made.values():  # as bytes: the line ends of a script are its own
        sys.stdout.flush()
        sys.stdout.buffer.write(migration.diff().encode())
        sys.stdout.buffer.flush()
    if not options.diff:
        print("\n".join(migration.report() for migration in made.values()), end="")


def _targets(made, folder, force):
    """{path: (file, bytes to write)}; ValueError where that would replace something that differs."""
    targets = {}
    for source, migration in made.items():
        target, raw = folder / source.name, migration.result.encode()
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
        mode = (target if target.exists() else source).stat().st_mode
        replace_file(target, raw)
        target.chmod(mode)
        print(f"wrote {target}", file=sys.stderr)
