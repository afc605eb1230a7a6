"""`python -m helpers migrate`: files and folders, a diff, a report, and care with what is written."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .source import MigrationError


def add_to(commands):
    """Add the command to the subparsers of a command line."""
    about = "Move training scripts from CUDA to Ascend NPUs. Without --out or --in-place nothing is written."
    sub = commands.add_parser("migrate", help=about.partition(".")[0], description=about, allow_abbrev=False)
    sub.set_defaults(command=run)
    sub.add_argument("paths", nargs="+", metavar="PATH", help="a script, a folder (its .py files), or - for stdin")
    sub.add_argument("--to", default="npu", help="the device to move to (only npu)")
    sub.add_argument("--style", default="article", choices=("article", "modern"), help="apex; or torch.amp, torchrun")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="write the results into this folder; - prints the one script")
    where.add_argument("--in-place", action="store_true", help="replace the files themselves")
    where.add_argument("--diff", action="store_true", help="print the diff alone, for patch -p0 or git apply -p0")
    sub.add_argument("--report", action="store_true", help="print what was changed, what was not, and what to choose")
    sub.add_argument("--force", action="store_true", help="with --out: replace files that differ")
    return sub


@dataclass(frozen=True)
class Job:
    """One script: where it comes from (None: stdin), its name relative to what was given, its migration."""

    source: Path | None
    inside: Path
    migration: object

    @property
    def raw(self):
        """The bytes of the result."""
        try:
            return self.migration.result.encode(self.migration.encoding)
        except UnicodeEncodeError as error:
            name = self.migration.encoding
            raise MigrationError(self.migration.name, None, f"{error.object[error.start]!r} is not in {name}") from None


def run(options):
    """Migrate everything, then write everything; an error on the way writes nothing. Returns the exit status.

    Of a folder, what is no Python 3 is named and left out, and the status is 1.
    """
    jobs, failed = [], []
    for source, inside, named in _inputs(options.paths):
        try:
            jobs.append(_job(source, inside, options))
        except MigrationError as error:
            if named:
                raise
            failed.append(error)
    if options.out == "-":
        if len(jobs) != 1:
            raise ValueError(f"--out - prints one script, and these are {len(jobs)}; give a folder")
        _print_bytes(jobs[0].raw)
    elif options.out is not None:
        folder = Path(options.out)
        _write(_targets(jobs, folder, options.force), {folder / job.inside: job.source for job in jobs})
    elif options.in_place:
        _write({job.source.resolve(): job.raw for job in _with_files(jobs) if job.migration.changed})
    else:
        for job in jobs:
            _print_bytes(job.migration.diff().encode(job.migration.encoding))
    if options.report or not (options.diff or options.out or options.in_place):
        print("\n".join(job.migration.report() for job in jobs), end="")
    for error in failed:
        print(f"left out: {error}", file=sys.stderr)
    return 1 if failed else 0


def _inputs(paths):
    """(file, its name inside what was given, whether it was named itself) of every script; None for stdin."""
    found = []
    for path in paths:
        if path == "-":
            found.append((None, Path("stdin.py"), True))
        elif os.path.isdir(path):
            inside = list(_scripts(Path(path)))
            if not inside:
                raise ValueError(f"there is no .py file in {path}")
            found += [(file, file.relative_to(path), False) for file in inside]
        else:
            found.append((Path(path), Path(Path(path).name), True))
    return found


def _scripts(folder):
    """The .py files below a folder, without hidden folders and virtual environments."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        folders[:] = [name for name in folders if not os.path.exists(os.path.join(here, name, "pyvenv.cfg"))]
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))


def _job(source, inside, options):
    from .engine import migrate

    if source is None:
        return Job(None, inside, migrate(sys.stdin.buffer.read(), to=options.to, style=options.style, name="stdin.py"))
    name = os.path.relpath(source) if source.absolute().is_relative_to(Path.cwd()) else str(source)
    return Job(source, inside, migrate(source, to=options.to, style=options.style, name=name))


def _with_files(jobs):
    if any(job.source is None for job in jobs):
        raise ValueError("--in-place needs files; for stdin use --out -")
    return jobs


def _targets(jobs, folder, force):
    """{path: bytes} to write; ValueError where that would replace something that differs."""
    targets = {}
    for job in jobs:
        target = folder / job.inside
        if target in targets:
            raise ValueError(f"two of the scripts would become {target}; migrate them one by one")
        if target.exists() and target.read_bytes() != job.raw and not force:
            raise ValueError(f"{target} exists and differs; --force replaces it, or choose another folder")
        targets[target] = job.raw
    return targets


def _write(targets, sources=None):
    """Write files whole or not at all, each with the permissions that it, or its source, had."""
    for target, raw in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(raw)
            model = target if target.exists() else (sources or {}).get(target)
            if model:
                shutil.copymode(model, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        print(f"wrote {target}", file=sys.stderr)


def _print_bytes(raw):
    """As they are: the line ends and the encoding of a script are its own."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()
