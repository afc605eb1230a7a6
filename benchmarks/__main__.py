"""Run all benchmarks, or those named: a table in the terminal, a JSON record in results/bench/."""

import json
import sys
import time

from helpers import device, paths, results
from helpers.paths import results_root

from . import compiler, costmodel, hvd, input_paths, launch_latency, precision

ALL = {
    "launch_latency": launch_latency, "input_paths": input_paths, "precision": precision, "compiler": compiler,
    "hvd": hvd, "costmodel": costmodel,
}  # fmt: skip


def main(names):
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"no benchmark called {', '.join(unknown)}; there are {', '.join(ALL)}")
    record = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "environment": {"machine": device.machine().as_dict(), **results.surroundings()},
        "measured": {},
    }
    for name in names or ALL:
        benchmark = ALL[name]
        print(f"\n{name}: {benchmark.__doc__.splitlines()[0]}", flush=True)
        rows, ratios = benchmark.run()
        for what, summary in rows.items():
            print(f"  {what:<50} {summary['median']:>10.4g} {benchmark.UNIT}"
                  f"  ({summary['min']:.4g} to {summary['max']:.4g}, n={summary['n']})")  # fmt: skip
        for what, ratio in ratios.items():
            print(f"  {what:<50} {ratio:>10.3g} ×")
        record["measured"][name] = {"unit": benchmark.UNIT, "rows": rows, "ratios": ratios}
    folder = results_root() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    paths.replace_file(path, json.dumps(record, indent=1))
    print(f"\nrecord: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
