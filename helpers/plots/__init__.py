"""Tables and figures of runs. Every figure comes with a text that says what it shows.

The functions return (figure, alt); `show` displays both in a notebook.
"""

from ..records.seeds import summary
from . import ladder
from .accuracy import time_to_accuracy
from .learning import accuracy_curves
from .precision import speed_over_batch
from .runs import loss, parts, steps
from .style import clean, html, name, number, percent, show, times

__all__ = [
    "accuracy_curves", "cells", "html", "loss", "parts", "settings", "show", "speed_over_batch", "speed_up", "steps",
    "summary", "table", "time_to_accuracy",
]  # fmt: skip

STEP = ("step_time_q1_s", "step_time_s", "step_time_q3_s")


def table(comparison):
    """The runs of a Comparison as a pandas DataFrame of texts, a row a run; `.attrs["notes"]` explains marked names."""
    import pandas  # takes longer than a figure, and a page needs only `cells`

    head, *rows = cells(comparison)
    frame = pandas.DataFrame(rows, columns=head)
    frame.attrs["notes"] = {name(row): clean(row["note"], 300) for row in comparison.rows() if row["note"]}
    return frame


def cells(comparison) -> list:
    """The same as lists, the first of which names the columns."""
    rows = [_cells(row) for row in comparison.rows()]
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _cells(row):
    cells = {"run": name(row), "devices": str(row["devices"]), "global batch": str(row["global_batch"])}
    low, middle, high = (number(row[key] and 1000 * row[key]) for key in STEP)
    numbers = {
        "step time (ms)": middle if row["step_time_s"] is None else f"{middle} ({low}–{high})",
        "images/s": number(row["images_per_s"]), "speed-up": times(row["speed_up"]),
        "predicted": times(row["predicted"]), "efficiency": percent(row["efficiency"]),
        "accuracy": percent(row["accuracy"]), "final loss": number(row["final_loss"]),
        "peak memory (MB)": number(row["peak_memory_bytes"] and row["peak_memory_bytes"] / 1e6),
        "whole run (s)": number(row["total_s"]),
    }  # fmt: skip
    if row["status"] != "completed":
        predicted = numbers["predicted"]
        numbers = {**dict.fromkeys(numbers, "–"), "step time (ms)": row["status"], "predicted": predicted}
    return cells | numbers


def settings(records) -> tuple:
    """What the runs have in common: ("resnet8 on digits", "global batch 64 · fp32 · …")."""

    def all_of(key):
        values = dict.fromkeys(str(record["config"][key]) for record in records)
        return clean(" / ".join(values))

    machine = records[0]["environment"]["machine"]
    threads = list(dict.fromkeys(record["config"]["threads"] or machine["threads"] for record in records))
    threads = f"{' or '.join(map(str, threads))} thread{'s' * (threads != [1])}"
    device = f"{machine['name']} ({machine['kind']}), {threads} of the CPU a device"
    if machine["kind"] == "cpu":
        device = f"a CPU process of {threads} plays a device ({machine['name']}, {machine['cores']} cores)"
    how = f"global batch {all_of('global_batch')} · {all_of('precision')} · {clean(device)}"
    if "rounds" in records[0]:
        how += f" · {len(records[0]['rounds'])} rounds"
    return f"{all_of('model')} on {all_of('data')}", how


def speed_up(comparison) -> tuple:
    """Measured, ideal and predicted speed-up of each run, beside that of the whole run and its accuracy."""
    what, how = settings(comparison.records)
    rows = comparison.rows()
    alt = f"Bars of the speed-up of a step over {name(rows[0])}: {what}, {how}. " + " ".join(map(_told, rows))
    timed = [row for row in rows[1:] if row["speed_up"]]
    if timed:
        best = max(timed, key=lambda row: row["speed_up"])
        ideal = f", where {best['devices']}× would be ideal" if best["devices"] > 1 and best["efficiency"] else ""
        alt += f" The largest speed-up is {times(best['speed_up'])} ({name(best)}){ideal}."
    return ladder.draw(f"Speed-up over {name(rows[0])}: {what}", how, rows), alt


def _told(row):
    """One run's numbers in words."""
    if row["status"] != "completed":
        return f"{name(row)}: {row['status']}."
    told = [f"{name(row)}: {times(row['speed_up']) if row['speed_up'] else 'too few steps to time'}"]
    if row["speed_up"]:
        told.append(f"middle half {times(row['speed_up_q1'])} to {times(row['speed_up_q3'])}")
    if row["predicted"]:
        told.append(f"predicted {times(row['predicted'])}")
    told.append(f"whole run {times(row['whole_run_speed_up'])}")
    trained = f"final loss {number(row['final_loss'])}"
    told.append(trained if row["accuracy"] is None else f"accuracy {percent(row['accuracy'])}")
    return ", ".join(told) + "."
