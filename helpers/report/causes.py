"""Why a run was faster or not, as far as its records hold it: communication, waiting, precision, compiling."""

import math

from ..language import _
from ..plots.style import clean, number, percent, times
from ..records import speedup
from .compare_runs import CLOSE, Said, called, ids, partner, timed

WAITS = 0.05  # a smaller share of a step that waits for data is not mentioned


def causes(record, records) -> list:
    """Said about one completed record; `records` are those of its machine.

    Each cause is a function that returns None, or a sentence and the other records that back it.
    """
    found = (communication(record), waiting(record), half_precision(record, records), compiling(record, records))
    return [Said(text, ids(record, *others)) for text, *others in filter(None, found)]


def communication(record):
    """What part of a step the exchange of gradients took, by DDP's own clocks."""
    rate, known = record["measured"]["step_time_s"], record["measured"].get("communication")
    if not rate or not known:
        return None
    words = _(
        "{waited} of a step of {record} was communication that nothing hid, waiting for the slower rank included; "
        "another {hidden} ran behind the backward pass (DDP's own clocks, mean of {steps} steps)."
    )
    waited, hidden = (percent(known[key] / rate["median"]) for key in ("exposed_s", "hidden_s"))
    return [words.format(waited=waited, record=called(record), hidden=hidden, steps=known["steps"])]


def waiting(record):
    """How much of a step was spent waiting for data."""
    rate, wait = record["measured"]["step_time_s"], record["measured"]["input_wait_s"]
    share = wait["median"] / rate["median"] if rate and wait else 0
    if share < WAITS:
        return None
    words = _("{share} of a step of {record} was spent waiting for data.")
    return [words.format(share=percent(share), record=called(record))]


def half_precision(record, records):
    """Whether half precision was faster than the same run in fp32, and how fast one convolution in it was."""
    level, advice = record["config"]["precision"], record.get("advice")
    plain = partner(record, records, precision="fp32")
    if level in ("fp32", "O0") or not plain or not timed(record):
        return None
    speed = speedup.of_records(record, plain)
    words = _("{level} did not pay in {record}: {told}.")
    if not speed.shown:
        words = _("{level} showed no difference in {record}: {told}.")
    elif speed.ratio > 1:
        words = _("{level} paid in {record}: {told}.")
    told = _("{speed} the speed of {plain} ({about})").format(
        speed=times(speed.ratio),
        plain=called(plain),
        about=_("95% interval {low} to {high}").format(low=times(speed.low), high=times(speed.high)),
    )
    words = words.format(level=level, record=called(record), told=told)
    if isinstance(advice, dict):
        slow = _("The format itself is slow here: a convolution in {dtype} ran at {share} times the speed of fp32.")
        words += " " + slow.format(dtype=advice["dtype"], share=f"{advice['conv_ratio']:.2g}")
    return words, plain


def compiling(record, records):
    """What compiling cost, and after how many steps it is won back."""
    found = break_even(record, records)
    if not found:
        return None
    told = _("{record} spent {compile_s} s compiling (plan: {plan})")
    told = told.format(record=called(record), compile_s=number(found["compile_s"]), plan=found["plan"])
    if found["gain"] is None:
        words = _("{told}; no eager run of the same settings is there to say what that gained.")
    elif found["steps"] is None:
        words = _("{told} and is not faster than eager for it ({gain}): it never pays off.")
    else:
        words = _(
            "{told}; a step is {gain} as fast as eager's, so it pays off after {steps} steps: the run made {made}."
        )
    made, steps = record["measured"]["steps"], found["steps"] or 0
    words = words.format(told=told, gain=times(found["gain"]), steps=f"{steps:,}", made=f"{made:,}")
    return words, *found["backed"]


def break_even(record, records) -> dict | None:
    """What a run that compiled has spent and gained: "compile_s", "plan", "gain", "steps" until it pays, "backed".

    "gain" is None without an eager run to compare with, "steps" also where nothing was gained.
    """
    found = (record.get("measured") or {}).get("compiler") or {}
    cost = found.get("compile_s")
    if cost is None:
        return None
    eager, gain, backed = _beside_eager(record, records)
    steps = math.ceil(cost / (eager - eager / gain)) if gain and gain > 1 + CLOSE else None
    plan = clean(found.get("plan") or _("none yet"), 60)
    return {"compile_s": cost, "plan": plan, "gain": gain, "steps": steps, "backed": backed}


def _beside_eager(record, records):
    """(seconds of eager's step, the gain over it, other records that say so)."""
    compiler = record["measured"]["compiler"]
    tried = {row["plan"]: row for row in compiler.get("rows") or []}
    chosen, eager = tried.get(compiler.get("plan")), tried.get("eager")
    if chosen and eager and chosen["step_s"] and eager["step_s"]:
        return eager["step_s"], chosen["speed_up"] or 1.0, ()
    eager = partner(record, records, compiler="none")
    if not eager or not timed(record):
        return None, None, ()
    before, after = (one["measured"]["step_time_s"]["median"] for one in (eager, record))
    return before, before / after, (eager,)
