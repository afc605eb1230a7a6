"""Steps of two ranks predicted and measured: on this machine, and as two hosts at the ends of a slow, long cable.

rows = links.measure(SETTINGS)          # or .recorded() where two hosts cannot be made
"""

import json
import statistics

from .. import paths
from ..cluster import twohosts
from ..launcher.launch import launch
from ..training import models
from . import fit
from .measure import measure as measure_on_rank
from .model import Step, error, step

FOLDER = "recorded/costmodel"
BATCHES = (8, 32)  # of the steps alone that the model is fitted to
WAYS = {  # name -> how the two ranks train; none of their batches is one of BATCHES
    "DDP": {"batch": 16},
    "small buckets": {"batch": 16, "bucket_mb": 1},
    "fp16": {"batch": 16, "compression": "fp16"},
    "accumulation 4": {"batch": 16, "accumulation": 4},
}
# Megabits a second and milliseconds one way. On 2 cores the process that carries the packets gets in the way of those
# that train when it has much more than 400 Mbit/s to carry.
SETTINGS = ((None, None), (400, 1), (400, 10), (200, 2), (200, 20), (100, 1), (100, 10), (50, 5))
SIZES = (2**12, 2**18, 2**20, 2**22)  # bytes: enough for a slow cable


def here(ways=None, rounds=12, batches=BATCHES, env=None, threads=None, solo=None) -> dict:
    """Fit, predict and measure on two ranks of this machine; a row as `row` makes it.

    With `solo`, a batch, it has also "solo": seconds of a step of one rank for which the others leave the machine.
    """
    answers = launch(
        measure_on_rank,
        2,
        models.plain_convnet,
        batches,
        ways or WAYS,
        rounds=rounds,
        solo=solo,
        threads=threads,
        env=env,
        timeout=300,
    )
    return {**row(answers, batches, ways or WAYS), "solo": answers[0]["solo"]}


def measure(settings=SETTINGS, ways=None, rounds=5, make=models.plain_convnet, batches=BATCHES, sizes=SIZES) -> list:
    """The same between two hosts, for each (megabits a second, milliseconds one way) of `settings`.

    Each setting has a fit of its own: steps alone and an all-reduce sweep on that cable. All are made slow by one
    means, the process that carries packets, so that they compare. About 10 s each.

    Raises:
        RuntimeError: two hosts cannot be made here, see `twohosts.why_not`.
    """
    found = []
    with twohosts.two_hosts(delay=1, by="process") as hosts:
        for rate, delay in settings:
            hosts.shape(rate, delay)
            answers = hosts.run(measure_on_rank, make, batches, ways or WAYS, sizes, rounds, timeout=300)
            found.append({"rate": rate, "delay": delay, **row(answers, batches, ways or WAYS)})
    return found


def row(answers, batches, ways) -> dict:
    """What was fitted, and for each way the predicted and the measured step (medians, in seconds)."""
    fitted = fit.fit(answers, batches)
    found = {}
    for name, options in ways.items():
        steps = [max(turn) for turn in zip(*(of["ddp"][name] for of in answers), strict=True)]
        expected = predict(fitted, options)
        found[name] = {
            "predicted": expected.seconds,
            "measured": statistics.median(steps),
            "steps": steps,
            "error": error(expected.seconds, steps),
            "alone": expected.compute,
            "efficiency": expected.compute / statistics.median(steps),
            "regime": expected.regime,
            "exposed": expected.exposed,
            "loss": answers[0]["loss"][name],
        }
    return {"fit": fitted.as_dict(), "ways": found}


def predict(fitted, options) -> Step:
    """The step of `fitted`'s ranks with options of `measure_on_rank`."""
    cap = options.get("bucket_mb")
    return step(
        fitted.compute,
        fitted.link,
        fitted.devices,
        options["batch"],
        algorithm="ring",
        accumulation=options.get("accumulation", 1),
        factor=0.5 if options.get("compression") == "fp16" else 1.0,
        **({} if cap is None else {"first": cap * 2**20, "rest": cap * 2**20}),
    )


def recorded(name="links") -> dict:
    """A recorded run with its date and conditions: "links" has here (a row) and links (rows), "two_hosts" answers."""
    return json.loads((paths.project_root() / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
