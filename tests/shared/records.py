"""Records of runs that never took place, with the numbers a test wants."""

from helpers import measure
from helpers.comparison.ladder import Comparison
from helpers.config import RunConfig
from helpers.device import Machine
from helpers.records import store
from helpers.training.strategies import EMULATED_DATA_PARALLEL

MACHINE = Machine(kind="cpu", count=2, name="Some CPU", backend="gloo", cores=2, threads=1)
JITTER = (0.97, 1.02, 1.0, 0.96, 1.05, 1.01, 0.99, 1.3, 1.0, 1.03)  # of the times of steps
STEP = 0.1  # s, of the baseline


def planted(strategy="ddp", devices=2, speed=1.0, *, accuracy=0.9, prediction=None, start=0.1, label="", **settings):
    """A completed record whose steps are `speed` times as fast as the baseline's; `start` in seconds."""
    config = RunConfig(strategy=strategy, nproc_per_node=devices, threads=1, label=label, **settings)
    record = store.new_record(config, MACHINE, "group")
    record.update(
        run_id=f"id-{config.label}", started="2026-01-02T03:04:05+0000", prediction=prediction, status="completed"
    )
    record["environment"].update(system="some system", versions={"python": "3"}, code={"commit": "c0ffee"})
    times = [STEP / speed * jitter for jitter in JITTER * 2]
    losses = [2.3 - 0.04 * step for step in range(len(times) + 3)]
    parts = {"start": start, "data": 0.2, "warm-up": 3 * STEP / speed, "steps": sum(times), "evaluation": 0.3}
    record["measured"] = {
        "note": EMULATED_DATA_PARALLEL if strategy == "data_parallel" else "",
        "first_step": 0,
        "steps": len(losses),
        "world_size": config.processes,
        "step_time_s": measure.summary(times),
        "images_per_s": measure.summary([config.global_batch / seconds for seconds in times]),
        "input_wait_s": measure.summary([0.001] * len(times)),
        "samples": {"step_time_s": times, "input_wait_s": [0.001] * len(times), "loss": losses},
        "final_loss": losses[-1],
        "epochs": [],
        "evaluation": {
            "count": 1000,
            "loss": 0.5,
            "accuracy": accuracy,
            "correct": accuracy and round(1000 * accuracy),
        },
        "peak_memory_bytes": [600_000_000, 620_000_000][: config.processes],
        "parts_s": parts,
        "input_path": "fast",
        "parameters": 1,
    }
    record["total_s"] = sum(parts.values()) + 0.05
    return record


def failed(error="RankError: rank 1 failed.", **settings):
    """The record of a run that failed before anything was measured."""
    record = planted(**settings)
    del record["measured"]
    record.update(status="failed", error=error)
    return record


def curve(*accuracies, epoch_s=1.0):
    """What a run that was evaluated after each epoch of 10 updates records of its accuracy."""
    return [
        {"epoch": n, "step": 10 * n, "train_s": epoch_s * n, "accuracy": accuracy, "loss": 1.0, "count": 360}
        for n, accuracy in enumerate(accuracies, start=1)
    ]


def on(machine, *records):
    """The records as if made on a machine that differs in these keys; None takes a key away, as in old records."""
    for record in records:
        changed = {**record["environment"]["machine"], **machine}
        record["environment"]["machine"] = {key: value for key, value in changed.items() if value is not None}
        record["run_id"] += str(machine)
    return list(records)


def baseline(**settings):
    return planted("baseline", 1, **settings)


def ladder(**settings):
    """A baseline, DataParallel and DDP, the latter with a prediction."""
    return Comparison(
        [
            baseline(**settings),
            planted("data_parallel", 2, 0.55, **settings),
            planted("ddp", 2, 1.82, prediction=1.9, **settings),
        ]
    )
