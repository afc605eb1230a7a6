"""Why a run was faster or not, as far as its records hold it: communication, precision, compiling."""

import math

from ..config import SETTINGS
from ..language import _
from ..plots.style import clean, number, percent, times
from ..records import speedup
from ..settings import differing
from .ladders import ids, timed

CLOSE = 0.03  # a smaller gain is not called one


def causes(record, records) -> list:
    """(text, ids of the records that back it) about a completed record; `records` are those of its machine.

    Each cause is a function that returns None, or a sentence and the other records that back it.
    """
    found = (communication(record), half_precision(record, records), compiling(record, records))
    return [(text, ids(record, *others)) for text, *others in filter(None, found)]


def partner(record, records, **changed):
    """The last of `records` with timed steps and the settings `changed` that is else timed alike; None without one."""
    for other in reversed(records):
        right = all(other["config"].get(key) == value for key, value in changed.items())
        if right and other["run_id"] not in ids(record) and timed(other):
            differ = differing(other["config"], record["config"], SETTINGS)
            if all(setting.name in changed for setting in differ if setting.changes_timing):
                return other
    return None


def _called(record):
    return clean(record["label"], 60)


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
    return [words.format(waited=waited, record=_called(record), hidden=hidden, steps=known["steps"])]


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
    about = _("95% interval {low} to {high}").format(low=times(speed.low), high=times(speed.high))
    told = _("{speed} the speed of {plain} ({about})")
    told = told.format(speed=times(speed.ratio), plain=_called(plain), about=about)
    words = words.format(level=level, record=_called(record), told=told)
    if isinstance(advice, dict):
        slow = _("The format itself is slow here: a convolution in {dtype} ran at {share} times the speed of fp32.")
        words += " " + slow.format(dtype=advice["dtype"], share=f"{advice['conv_ratio']:.2g}")
    return words, plain


def compiling(record, records):
    """What compiling cost, and after how many steps it is won back."""
    found = break_even(record, records)
    if not found:
        return None
    words = _("{record} spent {compile_s} s compiling (plan: {plan})")
    if found["steps"]:
        words = _(
            "{record} spent {compile_s} s compiling (plan: {plan}); a step is {gain} as fast, so it pays after {steps}"
        )
    elif found["gain"]:
        words = _("{record} spent {compile_s} s compiling (plan: {plan}); a step is {gain} as fast, so it never pays")
    seconds, gain, steps = number(found["compile_s"]), times(found["gain"]), f"{found['steps'] or 0:,}"
    words = words.format(record=_called(record), compile_s=seconds, gain=gain, steps=steps, plan=found["plan"])
    return _("{text}.").format(text=words), *found["backed"]


def break_even(record, records) -> dict | None:
    """What a run that compiled has spent and gained: "compile_s", "plan", "gain", "steps" until it pays, "backed".

    "gain" is None without an eager run to compare with, "steps" also where nothing was gained.
    """
    found = (record.get("measured") or {}).get("compiler") or {}
    if found.get("compile_s") is None:
        return None
    tried = {row["plan"]: row for row in found.get("rows") or []}
    chosen, eager = (tried.get(plan) or {} for plan in (found.get("plan"), "eager"))
    before, gain, backed = eager.get("step_s"), chosen.get("speed_up") or 1.0, ()
    if not before or not chosen.get("step_s"):  # not tried in this run: beside another
        other = partner(record, records, compiler="none") if timed(record) else None
        backed = (other,) if other else ()
        before = other and other["measured"]["step_time_s"]["median"]
        gain = before and before / record["measured"]["step_time_s"]["median"]
    saved = before * (1 - 1 / gain) if gain and gain > 1 + CLOSE else None
    steps = saved and math.ceil(found["compile_s"] / saved)
    plan = clean(found.get("plan") or _("none yet"), 60)
    return {"compile_s": found["compile_s"], "plan": plan, "gain": gain, "steps": steps, "backed": backed}
