"""The cost model: predicted and measured steps of two ranks, here and as two hosts at the ends of a slow cable.

The model is fitted to steps of each rank alone and to an all-reduce sweep; the steps with DDP that it is held
against are taken in the same rounds. `python -m benchmarks.costmodel --record` keeps the run in recorded/costmodel.
"""

import json
import sys
from datetime import date

import torch

from helpers import device, measure, paths
from helpers.cluster import twohosts
from helpers.costmodel import links

UNIT = "s a step"
HERE, LINKS = "DDP on this machine: error", "DDP over slow links: largest error"
TARGETS = {HERE: ("<=", 0.1), LINKS: ("<=", 0.2)}


def run(record=False):
    own = links.here(rounds=20, env={"HELPERS_DEVICE": "cpu"}, threads=1)
    rows = []
    reason = twohosts.why_not(delay=1)
    if reason:
        print(f"  no two hosts here: {reason}")
    else:
        rows = links.measure()
    measured, ratios = {}, {HERE: abs(own["ways"]["DDP"]["error"])}
    if rows:
        ratios[LINKS] = max(abs(row["ways"]["DDP"]["error"]) for row in rows)
    print(f"  {'where':<22} {'way':<16} {'predicted':>10} {'measured':>10} {'error':>7}")
    for name, row in [("this machine", own), *((label(row), row) for row in rows)]:
        for way, of in row["ways"].items():
            print(f"  {name:<22} {way:<16} {of['predicted']:>8.3f} s {of['measured']:>8.3f} s {of['error']:>+7.1%}")
            measured[f"{name}, {way}"] = measure.summary(of["steps"])
            ratios[f"{name}, {way}: predicted / measured"] = of["predicted"] / of["measured"]
    if record and rows:
        keep(own, rows)
    return measured, ratios


def keep(own, rows):
    """Write what was measured, with its conditions and date, for machines that cannot."""
    conditions = (
        f"2 ranks with one thread each and gloo on {device.machine('cpu').name}, {device.usable_cores()} cores; as two "
        f"hosts: network namespaces, packets carried by a process that limits and delays them; medians of steps "
        f"taken in turn; torch {torch.__version__}"
    )
    for of in (own, *rows):
        for way in of["ways"].values():
            way["steps"] = [round(s, 5) for s in way["steps"]]
    kept = {"date": date.today().isoformat(), "conditions": conditions, "here": own, "links": rows}
    file = paths.project_root() / links.FOLDER / "links.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    paths.replace_file(file, json.dumps(kept, indent=1) + "\n")


def reasons(rows, ratios):
    """Which steps the model is furthest off, and how much they vary themselves."""
    if LINKS not in ratios:
        return {LINKS: f"no two hosts here: {twohosts.why_not(delay=1)}"}
    found = {}
    for target, is_here in ((HERE, True), (LINKS, False)):
        ways = [name for name in rows if name.endswith(", DDP") and name.startswith("this machine") == is_here]
        worst = max(ways, key=lambda name: abs(ratios[f"{name}: predicted / measured"] - 1))
        off, row = ratios[f"{worst}: predicted / measured"] - 1, rows[worst]
        spread = f"the middle half of its steps took {row['q1']:.3f} to {row['q3']:.3f} s"
        found[target] = f"{worst} was predicted {off:+.0%} off; {spread}"
    return found


def label(row):
    """A cable in words, such as "100 Mbit/s, 10 ms"."""
    rate = f"{row['rate']} Mbit/s" if row["rate"] else "no limit"
    return f"{rate}, {row['delay'] or 0} ms"


if __name__ == "__main__":
    run(record="--record" in sys.argv[1:])
