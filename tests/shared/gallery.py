"""Every kind of figure, made of made-up numbers, for any number of labels that are hard to place."""

from records import baseline, curve, failed, on, planted

from helpers import costmodel, paths, plots
from helpers.comparison.ladder import Comparison
from helpers.compiler import operators
from helpers.compiler.operators import Profile
from helpers.costmodel import figures as cost
from helpers.costmodel import fit
from helpers.plots import style
from helpers.plots.panels import panels
from helpers.profile import timeline
from helpers.profile.kinds import MEMORY
from helpers.profile.memory import Memory
from helpers.records import read
from helpers.report import figures as of_report
from helpers.report import published as beside
from helpers.report.report import Report
from notebooks.scripts.accuracy_curves import accuracy_curves
from notebooks.scripts.precision_by_batch import speed_over_batch
from platforms.horovod import figures as hvd
from platforms.npu import figures as npu

LONG = "an_unbroken_name_that_goes_on_and_on_and_on_and_on_and_on_and_on $x^2$ <b> & W"
LABELS = ("DDP ×4 · linear scaling · warm-up · 20 epochs", "short", "W" * 60, LONG)
SHARED = "4 processes share 2 cores, so their steps take longer than on devices of their own"
RISE = (0.5, 0.8, 0.9, 0.96)
LINK = costmodel.Link(1e-3, 1e-8)
EVEN = tuple((1e6, (k + 1) / 100) for k in range(100))  # gradients that are ready one after the other
MODEL = costmodel.Compute((0.0, 1e-3), (0.0, 2e-3), gradients=EVEN)


def names(count):
    return [f"{LABELS[k % len(LABELS)]} {k}" for k in range(count)]


def comparison(count):
    """1 to 8 runs, with everything that makes a figure difficult."""
    others = [
        planted("data_parallel", 2, 0.9, prediction=20, label="DataParallel"),
        planted("ddp", 2, 1.98, prediction=2, label="a run whose reader gave it a name that goes on and on and on"),
        failed(devices=4, prediction=0.2),
        planted("ddp", 2, 0.05, prediction=0.2, label="slow"),
        planted("ddp", 4, 3.9, accuracy=None, label="DDP ×4, no accuracy"),
        planted("ddp", 8, 7.6, prediction=7.5, accuracy=1.0),
        planted("ddp", 8, 1.02, label="$x^2$ <b> & more"),
    ]
    return Comparison([baseline(), *others[: count - 1]])


def trained(accuracies, *, devices=1, speed=1.0, epoch_s=2.0, note="", **settings):
    """A record whose test accuracy went through `accuracies`, an epoch each of 10 updates."""
    record = planted("ddp" if devices > 1 else "baseline", devices, speed, accuracy=accuracies[-1], **settings)
    record["measured"]["note"] = note
    record["measured"]["curve"] = curve(*accuracies, epoch_s=epoch_s)
    return record


def groups(count):
    """Seeds of `count` labels, of which the third has no run that worked."""
    found = {"baseline": [trained(RISE)]}
    for k, name in enumerate(names(count)[1:], start=1):
        note = SHARED if k % 4 == 0 else "another note" if k % 3 == 0 else ""
        ends = [(0.94 + 0.005 * k) % 1 - 0.01 * seed for seed in range(k % 6 + 1)]
        found[name] = (
            [failed(), failed()]
            if k == 2
            else [trained((*RISE[:3], end), devices=2, speed=0.3 * k, epoch_s=3 / k, note=note) for end in ends]
        )
    return found


def series(labels):
    return {
        label: [
            {"batch": 2**e, "ratio": 0.4 + 0.1 * k + 0.2 * e, "low": 0.3 + 0.2 * e, "high": 0.5 + 0.1 * k + 0.2 * e}
            for e in range(9)
        ]
        for k, label in enumerate(labels)
    }


def shares(*percents):
    """The profile of a step of 100 ms with these percents of operators.KINDS, the rest bookkeeping."""
    seconds = dict(zip(operators.KINDS, (each / 1000 for each in percents), strict=False))
    return Profile({**seconds, "bookkeeping": 0.1 - sum(seconds.values())}, 0.1, 50)


def plan(name, status, speed_up=None, *, compile_s=None, break_even=None, why=""):
    """A row of a tuner's table."""
    return {
        "plan": name,
        "status": status,
        "why": why,
        "compile_s": compile_s,
        "break_even": break_even,
        "output_error": None,
        "gradient_error": None,
        "step_s": speed_up and 0.1 / speed_up,
        "speed_up": speed_up,
        "speed_up_low": speed_up and 0.95 * speed_up,
        "speed_up_high": speed_up and 1.1 * speed_up,
    }


def cost_series(*plans):
    """Series for break_even from (name, seconds to compile, seconds a step)."""
    return [dict(zip(("name", "compile_s", "step_s"), each, strict=True)) for each in plans]


def _curves(count):
    links = (LINK, costmodel.Link(1e-6, 1e-11))
    return {
        name: costmodel.curve(MODEL, links[k % 2], [2**n for n in range(11)], batch=32)
        for k, name in enumerate(names(count))
    }


def _fit(count):
    rounds = {4**k: [(1e-4 + 1e-8 * 4**k) * (1 + off / 10) for off in range(5)] for k in range(4, 4 + min(count, 8))}
    return fit.Fit(MODEL, LINK, 2, rounds)


def _panels(count):
    rows = [
        {"name": name, "kind": ("ours", "theirs")[k % 2], "a": (k + 1, k, k + 3), "b": None if k % 3 else k / 7}
        for k, name in enumerate(names(count))
    ]
    columns = [("a", "speed-up", style.times, 1), ("b", "accuracy", style.percent, None)]
    return panels(LONG, LONG, rows, columns, [LONG * 2])


STEP = [("split", 0, 2), ("compute", 2, 30), ("intervene", 30, 34), ("update", 34, 35)]
FIGURES = {  # name: function of the number of labels
    "speed_up": lambda n: plots.speed_up(comparison(min(n, 8))),
    "parts": lambda n: plots.parts(comparison(min(n, 8)).records),
    "curves over epochs": lambda n: accuracy_curves(groups(n), "epoch"),
    "one evaluation": lambda n: accuracy_curves({name: [trained((0.9,))] for name in names(n)}),
    "time to accuracy": lambda n: plots.time_to_accuracy(groups(n), 0.95),
    "speed over batch": lambda n: speed_over_batch(series(names(n)), "W" * 90),
    "panels": _panels,
    "cost predicted": lambda n: cost.predicted(
        {name: {"predicted": 0.1 * (k + 1), "measured": 0.11 * (k + 1)} for k, name in enumerate(names(n))},
        LONG * 2,
        {names(1)[0]: 0.5},
    ),
    "cost sweep": lambda n: cost.sweep(_fit(n), LONG),
    "cost scaling": lambda n: cost.scaling(_curves(n), LONG, LONG),
    "cost parts": lambda n: cost.parts({name: of[-1] for name, of in _curves(n).items()}, LONG),
    "hvd stages": lambda n: hvd.stages({name: STEP for name in names(n)}, LONG * 2),
    "hvd departures": lambda n: hvd.departures(
        {name: (k - 1, k + 1, 3 * k + 1) for k, name in enumerate(names(4 * n))}, (0, 5), LONG
    ),
    "hvd drift": lambda n: hvd.drift({name: [k, 0.5, 1e-3 * k] for k, name in enumerate(names(n))}, LONG),
    "hvd over rate": lambda n: hvd.over_rate(
        {"SGD": {name: {0.01: [0.5, 0.6, 0.7] * 2, 0.1: [0.9] * 6} for name in ("batch 16", "batch 128")}}, LONG
    ),
    "npu cards": lambda n: npu.cards(
        {name: [{k: 100, 0: 3}, {0: 10 * k}] for k, name in enumerate(names(min(n, 6)))}, {names(1)[0]: 0}
    ),
    "npu accuracy": lambda n: npu.accuracy(
        {name: [[10.0, 50.0 + k], [20.0, 60.0 + k]] for k, name in enumerate(names(n))}, 1
    ),
    "npu scales": lambda n: npu.scales(
        {name: [(2.0 ** (16 - k), k < 2), (2.0**15, False)] for k, name in enumerate(names(n))}
    ),
}


def report():
    """Two machines; one run was compiled."""
    compiled = planted("baseline", 1, 1.3, compiler="inductor", label="compiled")
    compiled["measured"]["compiler"] = {"plan": "inductor", "compile_s": 20.0}
    records = [baseline(), planted(speed=1.8), compiled, *on({"name": "Other CPU"}, baseline(), planted(speed=0.6))]
    for record in records[:2]:
        record["measured"]["curve"] = curve(0.4, 0.95)
    return Report(read.Found([{**read.checked(record), "file": "run.json"} for record in records]), 0.9)


def memory():
    """A step whose memory grows in forward and shrinks in backward."""
    full = [min(k, 19 - k) for k in range(20)]
    steps = [(1e-3 * k, {kind: 1e5 * (1 + of * at) for at, kind in enumerate(MEMORY)}) for k, of in enumerate(full)]
    phases = [("forward", 0, 0.0102), ("backward", 0.0102, 0.017), ("optimizer", 0.017, 0.019)]
    return Memory(steps, {}, phases, conditions="torch 2.10.0, Some CPU")


OTHERS = {  # without labels that are hard to place
    "timeline": lambda: timeline.load(paths.project_root() / "recorded" / "ddp" / "naive.json").figure(),
    "memory": lambda: memory().figure(),
    "compile cost": lambda: of_report.compile_cost(report().machines[0].ladders)[0],
    "machines": lambda: of_report.machines(report().machines)[0],
    "published": lambda: beside.figure(report().machines),
}
