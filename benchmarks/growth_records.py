"""Records as a results folder has them, in any number: comparisons like the one that came with the kit.

Each is made from a real record: its own id, time and comparison, and all times of it longer or shorter by a factor.
They are as large as real ones, and reading them takes as long.
"""

import json
import random
import time
from pathlib import Path

from helpers.paths import project_root

VARIANTS = 16  # of each real record
SECONDS = ("step_time_s", "input_wait_s")
FIRST = 1_700_000_000  # when the first comparison began, seconds since 1970
APART = 600  # s between comparisons


def write(folder, count, seed=0) -> Path:
    """Write `count` records to `folder`/runs, where nothing is yet; returns `folder`."""
    runs = Path(folder) / "runs"
    runs.mkdir(parents=True)
    draw = random.Random(seed)
    real = [
        json.loads(path.read_text("utf-8")) for path in sorted((project_root() / "recorded/ladder/runs").glob("*.json"))
    ]
    made = [[_text(_varied(record, draw)) for record in real] for _ in range(VARIANTS)]
    for number in range(count):
        comparison, place = divmod(number, len(real))
        began = time.gmtime(FIRST + APART * comparison + 30 * place)
        now = time.strftime("%Y%m%d-%H%M%S", began)
        group = time.strftime("%Y%m%d-%H%M%S", time.gmtime(FIRST + APART * comparison)) + "-ladder"
        config = real[place]["config"]
        run_id = f"{now}-{config['strategy']}-{config['nproc_per_node']}-{number:06x}"
        text = draw.choice(made)[place].replace("<run_id>", run_id).replace("<group>", group)
        text = text.replace("<started>", time.strftime("%Y-%m-%dT%H:%M:%S+0000", began))
        (runs / f"{run_id}.json").write_text(text, encoding="utf-8")
    return Path(folder)


def _varied(record, draw):
    """The record, faster or slower."""
    factor = draw.uniform(0.8, 1.25)
    measured = dict(record["measured"])
    samples = {name: [value * factor for value in measured["samples"][name]] for name in SECONDS}
    measured["samples"] = {**measured["samples"], **samples}
    for name, power in (("step_time_s", 1), ("input_wait_s", 1), ("images_per_s", -1)):
        measured[name] = {key: value if key == "n" else value * factor**power for key, value in measured[name].items()}
    return {**record, "measured": measured, "total_s": record["total_s"] * factor}


def _text(record):
    named = {"run_id": "<run_id>", "group": "<group>", "started": "<started>"}
    return json.dumps({**record, **named}, indent=1)
