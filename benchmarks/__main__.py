"""Run all benchmarks, or those named: a table in the terminal, a JSON record each in results/bench.

python -m benchmarks                   all
python -m benchmarks growth --keep     one, and also into recorded/bench, which docs/project/benchmarks.md shows
"""

import argparse
import ast
import importlib
import signal
import sys
import time
import traceback
from pathlib import Path

from helpers.paths import results_root

from . import records, table


def available(folder=None) -> list:
    """Names of the modules in `folder` that define UNIT and run; none of them is imported for it."""
    names = []
    for path in sorted(Path(folder or Path(__file__).parent).glob("*.py")):
        defined = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign):
                defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.FunctionDef):
                defined.add(node.name)
        if {"UNIT", "run"} <= defined:
            names.append(path.stem)
    return names


def measure(name, package="benchmarks") -> dict:
    """Run one benchmark, say what it found, and return its record."""
    module = importlib.import_module(f"{package}.{name}")
    print(f"\n{name}: {module.__doc__.splitlines()[0]}", flush=True)
    began = time.perf_counter()
    rows, ratios = module.run()
    record = records.new(name, module, rows, ratios, time.perf_counter() - began)
    print("\n".join(said(record)), flush=True)
    return record


def said(record):
    """Lines with the rows and ratios of a record, its targets and its notes."""
    for what, row in [*record["rows"].items(), *record["ratios"].items()]:
        row = row if isinstance(row, dict) else {"median": row}
        unit = row.get("unit", record["unit"] if what in record["rows"] else "")
        number = f"{row['median']:>10.4g}" if row.get("median") is not None else f"{'–':>10}"
        spread = f"  ({row['min']:.4g} to {row['max']:.4g}, n={row['n']})" if "min" in row else ""
        yield f"  {what:<50} {number} {unit}{spread}  {row.get('bad', '')}".rstrip()
    for verdict in records.verdicts(record):
        _, what, found, goal, told = table.row(verdict)
        yield f"  target: {what}: {found}, {goal}: {told}"
    yield from (f"  {note}" for note in record["notes"])


def main(arguments=None) -> int:
    names = available()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"those to run: {', '.join(names)}")
    parser.add_argument(
        "--keep", action="store_true", help="also write recorded/bench, which docs/project/benchmarks.md shows"
    )
    parser.add_argument("--label", default="", help="for --keep: names a second record, such as that of a GPU")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"no benchmark called {', '.join(unknown)}; there are {', '.join(names)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # in order: kernels and ranks end with the program
    failed = []
    for name in options.names or names:
        try:
            record = measure(name)
        except Exception:  # the others are worth running, and what went wrong is shown
            traceback.print_exc()
            failed.append(name)
            continue
        written = [records.keep(record, results_root() / "bench", time.strftime("%Y%m%d-%H%M%S"))]
        if options.keep:
            written.append(records.keep(record, records.kept_folder(), options.label))
        print("\n".join(f"  record: {path}" for path in written))
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
