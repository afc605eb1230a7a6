"""The cost model: predicted and measured steps of two ranks, here and as two hosts at the ends of a slow cable.

The model is fitted to steps of each rank alone and to an all-reduce sweep; the steps with DDP that it is held
against are taken in the same rounds. `python -m benchmarks.costmodel --record` keeps the run in docs/costmodel.
"""

import sys

from helpers import costmodel_links, measure, twohosts

UNIT = "s a step"


def run(record=False):
    own = costmodel_links.here(rounds=20, env={"HELPERS_DEVICE": "cpu"}, threads=1)
    rows = []
    reason = twohosts.why_not(delay=1)
    if reason:
        print(f"  no two hosts here: {reason}")
    else:
        rows = costmodel_links.measure()
    measured, ratios = {}, {}
    print(f"  {'where':<22} {'way':<16} {'predicted':>10} {'measured':>10} {'error':>7}  regime")
    for name, row in [("this machine", own), *((label(row), row) for row in rows)]:
        for way, of in row["ways"].items():
            print(f"  {name:<22} {way:<16} {of['predicted']:>8.3f} s {of['measured']:>8.3f} s {of['error']:>+7.1%}"
                  f"  {of['regime']}")  # fmt: skip
            measured[f"{name}, {way}"] = measure.summary(of["steps"])
            ratios[f"{name}, {way}: predicted / measured"] = of["predicted"] / of["measured"]
    if record and rows:
        costmodel_links.keep(own, rows)
    return measured, ratios


def label(row):
    """A cable in words, such as "100 Mbit/s, 10 ms"."""
    rate = f"{row['rate']} Mbit/s" if row["rate"] else "no limit"
    return f"{rate}, {row['delay'] or 0} ms"


if __name__ == "__main__":
    run(record="--record" in sys.argv[1:])
