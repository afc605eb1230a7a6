"""Steps of two ranks predicted and measured: on this machine, and as two hosts at the ends of a slow, long link.

rows = links.measure(SETTINGS)          # or .recorded() where two hosts cannot be made
"""

import json
import statistics
from dataclasses import asdict

from .. import paths
from ..cluster import twohosts
from ..launcher.launch import launch
from ..training import models
from . import fit
from .model import Step, step

FOLDER = "recorded/costmodel"
BATCHES = (8, 32)  # of the steps alone that the model is fitted to
WAYS = {  # name -> how the two ranks train; none of their batches is one of BATCHES
    "DDP": {"batch": 16},
    "small buckets": {"batch": 16, "bucket_mb": 1},
    "fp16": {"batch": 16, "compression": "fp16"},
    "accumulation 4": {"batch": 16, "accumulation": 4},
}
# Megabits a second, milliseconds one way. With more than 400 Mbit/s the process that carries the packets is in the way.
SETTINGS = ((None, None), (400, 1), (400, 10), (200, 2), (200, 20), (100, 1), (100, 10), (50, 5))
SIZES = (2**12, 2**18, 2**20, 2**22)  # bytes: enough for a slow link


def here(ways=WAYS, rounds=12, batches=BATCHES, env=None, threads=None) -> dict:
    """Fit, predict and measure on two ranks of this machine; a row as `row` makes it."""
    options = {"rounds": rounds, "threads": threads, "env": env, "timeout": 300}
    answers = launch(fit.measure, 2, models.plain_convnet, batches, ways, **options)
    return row(answers, batches, ways)


def measure(settings=SETTINGS, ways=WAYS, rounds=5, batches=BATCHES, sizes=SIZES) -> list:
    """The same between two hosts, for each (megabits a second, milliseconds one way) of `settings`, 10 s each.

    Each setting has a fit of its own. All links are emulated by one means, the process that delays packets, so that
    they compare.

    Raises:
        RuntimeError: two hosts cannot be made here, see `twohosts.why_not`.
    """
    found = []
    with twohosts.two_hosts(delay=1) as hosts:
        for rate, delay in settings:
            hosts.shape(rate, delay)
            answers = hosts.run(fit.measure, models.plain_convnet, batches, ways, sizes, rounds, timeout=300)
            found.append({"rate": rate, "delay": delay, **row(answers, batches, ways)})
    return found


def row(answers, batches, ways) -> dict:
    """What was fitted, and for each way the predicted and the measured step (medians, in seconds)."""
    fitted, found = fit.fit(answers, batches), {}
    for name, options in ways.items():
        steps = [max(turn) for turn in zip(*(of["ddp"][name] for of in answers), strict=True)]
        expected, measured = predict(fitted, options), statistics.median(steps)
        found[name] = {
            "predicted": expected.seconds,
            "measured": measured,
            "steps": steps,
            "error": expected.seconds / measured - 1,
            "alone": expected.compute,
            "efficiency": expected.compute / measured,
            "loss": answers[0]["loss"][name],
        }
    return {"fit": asdict(fitted), "ways": found}


def predict(fitted, options) -> Step:
    """The step of `fitted`'s ranks with options of `fit.measure`."""
    how = {"algorithm": "ring", "accumulation": options.get("accumulation", 1)}
    if "compression" in options:
        how["factor"] = 0.5  # bytes sent for a byte of gradient in fp16
    if "bucket_mb" in options:
        how["limits"] = [options["bucket_mb"] * 2**20] * 2
    return step(fitted.compute, fitted.link, fitted.devices, options["batch"], **how)


def recorded(name="links") -> dict:
    """A recorded run with its date and conditions: "links" has here (a row) and links (rows), "two_hosts" answers."""
    return json.loads((paths.project_root() / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
