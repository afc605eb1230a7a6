#!/usr/bin/env python3
"""Write the measured table of README.md from a recorded ladder; no number there is typed by hand.

    .venv/bin/python tools/render_readme.py --from results   take the newest complete ladder, then render
    .venv/bin/python tools/render_readme.py                  render docs/ladder as it is
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from helpers import plots, results, style
from helpers.comparison import Comparison

ROOT = Path(__file__).resolve().parent.parent
LADDER = ROOT / "docs" / "ladder"
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- measured: .* -->\n).*(<!-- end -->)", re.DOTALL)
COLUMNS = ["run", "step time (ms)", "images/s", "speed-up", "efficiency", "accuracy", "whole run (s)"]


def take(root):
    """Copy the records of the newest completed ladder below `root` to docs/ladder."""
    ladders = {}
    for record in results.read_all(root):
        if record["group"].endswith("-ladder"):
            ladders.setdefault(record["group"], []).append(record)
    done = [group for group, records in ladders.items() if all(r["status"] == "completed" for r in records)]
    if not done:
        sys.exit(f"there is no completed ladder in {root}: run `make run` first")
    shutil.rmtree(LADDER, ignore_errors=True)
    for record in ladders[max(done)]:
        results.write(record, LADDER)


def block(comparison):
    """The text between the markers: machine, table, plot with alt text."""
    machine = comparison.baseline["environment"]["machine"]
    config = comparison.baseline["config"]
    table = plots.table(comparison)[COLUMNS]
    _, alt = plots.speed_up(comparison)
    rows = [COLUMNS, ["---"] * len(COLUMNS), *table.values.tolist()]
    lines = ["| " + " | ".join(str(cell).replace("\n", " ") for cell in row) + " |" for row in rows]
    versions = comparison.baseline["environment"]["versions"]
    about = (
        f"Recorded {comparison.baseline['started'][:10]} on {machine['name']}, {machine['cores']} cores, "
        f"{machine['kind']} devices with {config['threads']} thread(s) each, torch {versions['torch']}: "
        f"{config['model']} on {config['data']}, global batch {config['global_batch']}, {config['epochs']} epochs."
    )
    return "\n".join([about, "", *lines, "", f"![{alt}](docs/ladder/speedup.svg)", ""])


def render():
    """README.md as it has to be, and the plot as SVG text."""
    comparison = Comparison(results.read_all(LADDER))
    figure, alt = plots.speed_up(comparison)
    text = README.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: found[1] + block(comparison) + found[2], text), style.svg(figure, alt)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="root", type=Path, help="results folder to take the newest ladder from")
    options = parser.parse_args()
    if options.root:
        take(options.root)
    readme, svg = render()
    results.replace_file(README, readme)
    results.replace_file(LADDER / "speedup.svg", svg)
