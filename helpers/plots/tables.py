"""The numbers of a comparison as a table, and its settings in words."""

from ..language import N_, _
from ..records.speedup import SPEED_UP
from ..records.words import clean, name, number, percent, samples_of, times

STEP = ("step_time_q1_s", "step_time_s", "step_time_q3_s")


def table(comparison):
    """The runs of a Comparison as a pandas DataFrame of texts, a row a run."""
    import pandas  # takes longer than a figure, and a page needs only `cells`

    head, *rows = cells(comparison)
    return pandas.DataFrame(rows, columns=head)


def cells(comparison) -> list:
    """The same as lists, the first of which names the columns."""
    rows = comparison.rows()
    rows = [_cells(row, samples_of(rows)) for row in rows]
    return [[_(column) for column in rows[0]], *(list(row.values()) for row in rows)]


def _cells(row, samples):
    cells = {N_("run"): name(row), N_("devices"): str(row["devices"]), N_("global batch"): str(row["global_batch"])}
    low, middle, high = (number(row[key] and 1000 * row[key]) for key in STEP)
    low_high = [row[key] for key in SPEED_UP[1:]]
    ends = "" if None in low_high or len({*low_high}) == 1 else f" ({'–'.join(map(times, low_high))})".replace("×", "")
    numbers = {
        N_("step time (ms)"): middle if row["step_time_s"] is None else f"{middle} ({low}–{high})",
        f"{samples}/s": number(row["images_per_s"]),
        N_("speed-up"): times(row["speed_up"]) + ends,
        N_("predicted"): times(row["predicted"]),
        N_("efficiency"): percent(row["efficiency"]),
        N_("accuracy"): percent(row["accuracy"]),
        N_("final loss"): number(row["final_loss"]),
        N_("peak memory (MB)"): number(row["peak_memory_bytes"] and row["peak_memory_bytes"] / 1e6),
        N_("whole run (s)"): number(row["total_s"]),
    }
    if row["status"] != "completed":
        status = {"step time (ms)": _(row["status"]), "predicted": numbers["predicted"]}
        numbers = dict.fromkeys(numbers, "–") | status
    return cells | numbers


def settings(records) -> tuple:
    """What the runs have in common: ("resnet8 on digits", "global batch 64 · fp32 · …")."""

    def all_of(key):
        return clean(" / ".join(dict.fromkeys(str(record["config"][key]) for record in records)))

    machine = records[0]["environment"]["machine"]
    threads = list(dict.fromkeys(record["config"]["threads"] or machine["threads"] for record in records))
    many = _("{threads} threads").format(threads=_(" or ").join(map(str, threads)))
    on = machine | {"threads": _("1 thread") if threads == [1] else many}
    device = _("{name} ({kind}), {threads} of the CPU a device")
    if machine["kind"] == "cpu":
        device = _("each device is a CPU process of {threads} ({name}, {cores} cores)")
    batch = _("global batch {batch}").format(batch=all_of("global_batch"))
    how = [batch, all_of("precision"), clean(device.format(**on))]
    if "rounds" in records[0]:
        how.append(_("{rounds} rounds").format(rounds=len(records[0]["rounds"])))
    return _("{model} on {data}").format(model=all_of("model"), data=all_of("data")), " · ".join(how)
