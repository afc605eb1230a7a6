"""Figures of single runs: the time of each step, where the wall time went, and the loss."""

from math import isfinite
from statistics import fmean

from ..records import read
from . import style
from .drawing import LINES, key, name_ends
from .style import number

PARTS = {  # of the wall time, in the order of the run: colour and hatch
    "start": (style.GREY, ""), "data": (style.YELLOW, ".."), "warm-up": (style.ORANGE, "//"),
    "steps": (style.SKY, ""), "evaluation": (style.PURPLE, "\\\\"), "checkpoint": (style.GREEN, "xx"),
    "rest": ("white", ""),
}  # fmt: skip
POINTS = 120  # of a loss curve; more would only draw the noise of single batches


def steps(records) -> tuple:
    """The time of each step after the warm-up with median and middle half; a panel a record.

    Args:
        records: a record or a list of records; those without timed steps are left out.

    Raises:
        ValueError: no record has timed steps.
    """
    records = _those_with("step_time_s", records)
    alt = ["Time of each step after the warm-up."]
    high = 1080 * max(record["measured"]["step_time_s"]["max"] for record in records)  # ms and some air
    last = max(record["measured"]["steps"] for record in records)
    with style.look():
        figure = style.canvas(0.3 + 1.8 * len(records))
        for place, record in enumerate(records):
            top, run = 0.4 + 1.8 * place, style.name(row(record))
            style.write_at(figure, 0.7, top - 0.27, style.clean(run, 90), weight="bold", size=10)
            axes = style.panel(figure, 0.7, top, style.WIDTH - 3.0, 1.2)
            axes.set(xlim=(0, last + 1), ylim=(0, high), ylabel="ms a step")
            axes.grid(axis="y")
            said = _samples(axes, record)
            style.beside(axes, 0.5 * high, "\n".join(said), size=9)
            alt.append(f"{run}: {', '.join(said)}.")
        axes.set_xlabel("step")
    return figure, " ".join(alt)


def _samples(axes, record):
    """Draw the timed steps of one run; returns what can be said of them."""
    measured = record["measured"]
    low, middle, upper = (1000 * measured["step_time_s"][key] for key in ("q1", "median", "q3"))
    samples = [1000 * seconds for seconds in measured["samples"]["step_time_s"]]
    end, timed = measured["steps"], len(samples)
    first = end - timed + 1
    span = [first - 0.5, end + 0.5]
    axes.fill_between(span, low, upper, color=style.SKY, alpha=0.35, linewidth=0)
    axes.plot(span, [middle, middle], color=style.BLUE, linewidth=1.8)
    axes.plot(range(first, end + 1), samples, "o", color=style.INK, markersize=3 if timed < 200 else 1.5)
    said = [f"median {number(middle)} ms", f"middle half {number(low)} to {number(upper)} ms"]
    said.append(f"{timed} steps timed")
    warm = first - 1 - measured["first_step"]
    if warm:
        began = measured["first_step"]
        axes.axvspan(began, first - 0.5, facecolor="white", edgecolor=style.GREY, hatch="//", linewidth=0)
        said.append(f"{warm} of warm-up (hatched)")
    return said


def parts(records) -> tuple:
    """The wall time of each run by part; "rest" is what no part accounts for.

    Raises:
        ValueError: no record has been measured.
    """
    records = _those_with("parts_s", records)
    spent = [wall_time(record) for record in records]
    longest = max(record["total_s"] for record in records)
    known = dict.fromkeys((*PARTS, *(part for times in spent for part in times)))
    used = [part for part in known if any(times.get(part) for times in spent)]
    alt = ["Wall time of the whole run by part, in seconds."]
    with style.look():
        figure = style.canvas(0.5 + 0.68 * len(records) + 0.5)
        left = style.names(figure, [row(record) for record in records], 0.5 - 0.13 * 0.68, 0.68)
        axes = style.panel(figure, left, 0.5, style.WIDTH - left - 0.8, 0.68 * len(records))
        axes.set(xlim=(0, longest), ylim=(len(records) - 0.5, -0.5), yticks=[], xlabel="seconds")
        key(figure, left, 0.19, [(part, *PARTS.get(part, ("white", "ooo"))) for part in used])
        for y, (record, times) in enumerate(zip(records, spent, strict=True)):
            begin = 0
            for part in used:
                colour, hatch = PARTS.get(part, ("white", "ooo"))
                axes.barh(
                    y - 0.13, times.get(part, 0), left=begin, height=0.4, color=colour, hatch=hatch,
                    edgecolor=style.INK, linewidth=0.6, clip_on=False,
                )  # fmt: skip
                begin += times.get(part, 0)
            said = [f"{part} {number(times[part], 2)}" for part in used if times.get(part)]
            axes.text(0, y + 0.23, " · ".join(said) + " s", va="center", size=9, color=style.SOFT)
            total = f"{number(record['total_s'])} s"
            axes.annotate(total, (begin, y - 0.13), (5, 0), textcoords="offset points", va="center", weight="bold")
            alt.append(f"{style.name(row(record))}: {total} in all; {', '.join(said)}.")
    return figure, " ".join(alt)


def wall_time(record) -> dict:
    """Seconds by part of a measured record, in the order of PARTS, with what is left as "rest"."""
    known = record["measured"]["parts_s"]
    times = {part: known[part] for part in dict.fromkeys((*PARTS, *known)) if part in known}
    return times | {"rest": max(0.0, record["total_s"] - sum(known.values()))}


def loss(records) -> tuple:
    """The training loss over the samples seen, a line a run, named at its end.

    Raises:
        ValueError: no record has losses.
    """
    records = _those_with("final_loss", records)
    alt = ["Training loss over samples seen."]
    block = max(1, -(-max(len(record["measured"]["samples"]["loss"]) for record in records) // POINTS))
    with style.look():
        figure = style.canvas(3.6)
        ends, looks = [], []
        axes = style.panel(figure, 0.75, 0.3, style.WIDTH - 3.6, 2.75)
        for place, record in enumerate(records):
            run, (seen, losses) = style.name(row(record)), _curve(record, block)
            colour, dashes, width = LINES[place % len(LINES)]
            looks.append({"color": colour, "linestyle": dashes})
            axes.plot(seen, losses, **looks[-1], linewidth=width)
            end = next((value for value in reversed(losses) if isfinite(value)), 0.0)  # it may have diverged
            ends.append((seen[-1], end, number(losses[-1]), style.clean(run, 30)))
            alt.append(f"{run}: from {number(losses[0])} to {number(losses[-1])}.")
        mean = f" (mean of {block} steps)" if block > 1 else ""
        axes.set(xlabel="samples seen", ylabel=f"training loss{mean}", xlim=(0, None), ylim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y")
        name_ends(axes, ends, 0.22, looks)
    return figure, " ".join(alt)


def _curve(record, block):
    """Samples seen and losses, each the mean of `block` steps."""
    losses, batch = record["measured"]["samples"]["loss"], record["config"]["global_batch"]
    starts = range(0, len(losses), block)
    seen = [batch * (record["measured"]["first_step"] + min(start + block, len(losses))) for start in starts]
    return seen, [fmean(losses[start : start + block]) for start in starts]


def row(record) -> dict:
    """`read.row` with the note that a run's name depends on."""
    return {**read.row(record), "note": (record.get("measured") or {}).get("note")}


def _those_with(key, records):
    records = [records] if isinstance(records, dict) else list(records)
    found = [record for record in records if (record.get("measured") or {}).get(key) is not None]
    if not found:
        raise ValueError(
            f"none of the {len(records)} record(s) has {key}: the runs failed, or had too few steps after "
            "the warm-up. Look at their status and error, or train for more steps"
        )
    return found
