"""Figures of single runs: the time of each step, where the wall time went, and the loss."""

from math import isfinite
from statistics import fmean

from ..launcher.language import listed, marked
from ..records import read
from ..records.words import clean, name, number
from . import style
from .layout import bar, line_names, line_style, name_ends, name_rows, sheet, ticks

PARTS = {  # of the wall time, in the order of the run: colour and hatch
    marked("start"): (style.GREY, ""), marked("data"): (style.YELLOW, ".."), marked("warm-up"): (style.ORANGE, "//"),
    marked("steps"): (style.SKY, ""), marked("evaluation"): (style.PURPLE, "\\\\"),
    marked("checkpoint"): (style.GREEN, "xx"), marked("rest"): ("none", ""),
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
    alt = [marked("Time of each step after the warm-up.")]
    high = 1080 * max(record["measured"]["step_time_s"]["max"] for record in records)  # ms and some air
    last = max(record["measured"]["steps"] for record in records)
    with sheet(high=1.2, panels=len(records), stacked=True) as (figure, panels):
        for axes, record in zip(panels, records, strict=True):
            axes.set(xlim=(0, last + 1), ylim=(0, high), ylabel=marked("ms a step"))
            axes.set_title(clean(name(row(record)), 90))
            axes.grid(axis="y")
            words = _samples(axes, record)
            style.beside(axes, 0.5 * high, "\n".join(words), size=9)
            alt.append(listed(words, about=name(row(record))))
        panels[-1].set_xlabel(marked("step"))
    return figure, " ".join(alt)


def _samples(axes, record):
    """Draw the timed steps of one run; returns them in words."""
    measured = record["measured"]
    low, middle, upper = (1000 * measured["step_time_s"][key] for key in ("q1", "median", "q3"))
    samples = [1000 * seconds for seconds in measured["samples"]["step_time_s"]]
    end, timed = measured["steps"], len(samples)
    first = end - timed + 1
    span = [first - 0.5, end + 0.5]
    axes.fill_between(span, low, upper, color=style.SKY, alpha=0.35, linewidth=0)
    axes.plot(span, [middle, middle], color=style.BLUE, linewidth=1.8)
    axes.plot(range(first, end + 1), samples, "o", color=style.INK, markersize=3 if timed < 200 else 1.5)
    words = [f"median {number(middle)} ms", f"middle half {number(low)} to {number(upper)} ms", f"{timed} steps timed"]
    warm = first - 1 - measured["first_step"]
    if warm:
        began = measured["first_step"]
        axes.axvspan(began, first - 0.5, facecolor="none", edgecolor=style.GREY, hatch="//", linewidth=0)
        words.append(f"{warm} of warm-up (hatched)")
    return words


def parts(records) -> tuple:
    """The wall time of each run by part; "rest" is what no part accounts for.

    Raises:
        ValueError: no record has been measured.
    """
    records = _those_with("parts_s", records)
    spent = [wall_time(record) for record in records]
    known = dict.fromkeys((*PARTS, *(part for of in spent for part in of)))
    looks = {part: PARTS.get(part, ("none", "ooo")) for part in known if any(of.get(part) for of in spent)}
    alt = [marked("Wall time of the whole run by part, in seconds.")]
    key = [(part, *look) for part, look in looks.items()]
    with sheet(marked("Where the wall time went"), 0.68 * len(records), key=key) as (figure, [axes]):
        name_rows(axes, [name(row(record)) for record in records], 2.1, 3)
        axes.set(xlim=(0, max(record["total_s"] for record in records)), xlabel=marked("seconds"))
        for y, (record, of) in enumerate(zip(records, spent, strict=True)):
            begin = 0
            for part, look in looks.items():
                bar(axes, y - 0.13, of.get(part, 0), look, begin, 0.4, clip_on=False)
                begin += of.get(part, 0)
            words = [f"{style.said(part)} {number(of[part], 2)}" for part in looks if of.get(part)]
            axes.text(0, y + 0.23, f"{style.said(', ').join(words)} s", va="center", size=9, color=style.SOFT)
            style.beside(axes, y - 0.13, f"{number(record['total_s'])} s", weight="bold")
            alt.append(listed([f"{number(record['total_s'])} s in all", listed(words)], "; ", name(row(record))))
    return figure, " ".join(alt)


def wall_time(record) -> dict:
    """Seconds by part of a measured record, in the order of PARTS, with what is left as "rest"."""
    known = record["measured"]["parts_s"]
    spent = {part: known[part] for part in dict.fromkeys((*PARTS, *known)) if part in known}
    return spent | {"rest": max(0.0, record["total_s"] - sum(known.values()))}


def loss(records) -> tuple:
    """The training loss over the samples seen, a line a run, named at its end.

    Raises:
        ValueError: no record has losses.
    """
    records = _those_with("final_loss", records)
    block = max(1, -(-max(len(record["measured"]["samples"]["loss"]) for record in records) // POINTS))
    labels = [name(row(record)) for record in records]
    names, high = line_names(labels)
    ends, alt = [], [marked("Training loss over samples seen.")]
    with sheet(marked("Training loss"), high) as (figure, [axes]):
        for place, (record, label) in enumerate(zip(records, labels, strict=True)):
            seen, losses = _curve(record, block)
            axes.plot(seen, losses, **line_style(place))
            end = next((value for value in reversed(losses) if isfinite(value)), 0.0)  # it may have diverged
            ends.append((seen[-1], end, number(losses[-1])))
            alt.append(listed([f"from {number(losses[0])} to {number(losses[-1])}"], about=label))
        mean = marked(f"training loss (mean of {block} steps)") if block > 1 else marked("training loss")
        axes.set(xlabel=marked("samples seen"), ylabel=mean, xlim=(0, None), ylim=(0, None))
        ticks(axes.xaxis)
        axes.grid(axis="y")
        name_ends(axes, ends, names, high)
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
