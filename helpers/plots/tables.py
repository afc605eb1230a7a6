"""The numbers of a comparison as a table, and its settings in words."""

from ..launcher.language import local, marked
from ..records.words import clean, interval, name, number, percent, samples_of, times
from .style import said

STEP = ("step_time_q1_s", "step_time_s", "step_time_q3_s")


def table(comparison):
    """The runs of a Comparison as a pandas DataFrame of texts, a row a run; `.attrs["notes"]` explains marked names."""
    import pandas  # takes longer than a figure, and a page needs only `cells`

    head, *rows = cells(comparison)
    frame = pandas.DataFrame(rows, columns=head)
    frame.attrs["notes"] = {name(row): clean(row["note"], 300) for row in comparison.rows() if row["note"]}
    return frame


def shown(comparison):
    """The same in the reader's language."""
    return table(comparison).rename(columns=local).map(local)


def cells(comparison) -> list:
    """The same as lists, the first of which names the columns."""
    rows = comparison.rows()
    rows = [_cells(row, samples_of(rows)) for row in rows]
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _cells(row, samples):
    cells = {marked("run"): name(row), "devices": str(row["devices"]), "global batch": str(row["global_batch"])}
    low, middle, high = (number(row[key] and 1000 * row[key]) for key in STEP)
    numbers = {
        marked("step time (ms)"): middle if row["step_time_s"] is None else f"{middle} ({low}–{high})",
        f"{samples}/s": number(row["images_per_s"]),
        marked("speed-up"): _with_interval(row),
        marked("predicted"): times(row["predicted"]),
        marked("efficiency"): percent(row["efficiency"]),
        marked("accuracy"): percent(row["accuracy"]),
        marked("final loss"): number(row["final_loss"]),
        marked("peak memory (MB)"): number(row["peak_memory_bytes"] and row["peak_memory_bytes"] / 1e6),
        marked("whole run (s)"): number(row["total_s"]),
    }
    if row["status"] != "completed":
        predicted = numbers["predicted"]
        numbers = {**dict.fromkeys(numbers, "–"), "step time (ms)": row["status"], "predicted": predicted}
    return cells | numbers


def _with_interval(row):
    ends = interval(row["speed_up_low"], row["speed_up_high"])
    return (
        f"{times(row['speed_up'])} ({ends})"
        if ends and row["speed_up_low"] < row["speed_up_high"]
        else times(row["speed_up"])
    )


def settings(records) -> tuple:
    """What the runs have in common: ("resnet8 on digits", "global batch 64 · fp32 · …")."""

    def all_of(key):
        return clean(" / ".join(dict.fromkeys(str(record["config"][key]) for record in records)))

    machine = records[0]["environment"]["machine"]
    threads = list(dict.fromkeys(record["config"]["threads"] or machine["threads"] for record in records))
    many = said(" or ").join(map(str, threads))
    threads = said("1 thread") if threads == [1] else said("{threads} threads", threads=many)
    on = machine | {"threads": threads}
    device = said("{name} ({kind}), {threads} of the CPU a device", **on)
    if machine["kind"] == "cpu":
        device = said("each device is a CPU process of {threads} ({name}, {cores} cores)", **on)
    how = [said("global batch {batch}", batch=all_of("global_batch")), all_of("precision"), clean(device)]
    if "rounds" in records[0]:
        how.append(said("{rounds} rounds", rounds=len(records[0]["rounds"])))
    return said("{model} on {data}", model=all_of("model"), data=all_of("data")), " · ".join(how)
