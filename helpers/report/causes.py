"""Why a run was faster or not, as far as records can back it: communication, precision, compiler, batch, memory."""

import math

from ..launcher.language import marked
from ..plots.style import clean, number, percent, times
from ..records import read
from .pairs import CLOSE, Said, accuracies, alike, called, ids, partner, spread, timed

WAITS = 0.05  # a smaller share of a step that waits for data is not mentioned
DIFFERS = 0.1  # a smaller difference in memory, likewise
NOT_SLOW = marked(
    "The format itself is not slow here: a convolution in it was no slower than in fp32 when it was tried."
)
LEFT = marked("Casts, operations too small to gain and other work of the machine are left as causes.")


def causes(record, base, records) -> list:
    """Said about one completed record; `base` is what it is compared with, or None, `records` those of its machine.

    Each cause is a function that returns None, or a sentence and the other records that back it.
    """
    found = (
        communication(record, base, records),
        waiting(record),
        half_precision(record, records),
        compiling(record, records),
        batch(record, base),
        memory(record, base),
        hosts(record),
    )
    return [Said(text, ids(record, *others)) for text, *others in filter(None, found)]


# -- communication ------------------------------------------------------------------------


def communication(record, base, records):
    """What part of a step the exchange of gradients took: measured, or bounded by another record."""
    config, rate = record["config"], record["measured"]["step_time_s"]
    devices = read.row(record)["devices"]
    if config["strategy"] != "ddp" or devices == 1 or not rate:
        return None
    known = record["measured"].get("communication")
    if known:
        waited, hidden = known["exposed_s"] / rate["median"], known["hidden_s"] / rate["median"]
        return [
            f"{percent(waited)} of a step of {called(record)} was communication that nothing hid, waiting for the "
            f"slower rank included; another {percent(hidden)} ran behind the backward pass (DDP's own clocks, mean of "
            f"{known['steps']} steps)."
        ]
    alone = partner(
        record, records, nproc_per_node=1, nnodes=1, strategy="baseline", global_batch=config["local_batch"]
    )
    if alone:
        spent = alone["measured"]["step_time_s"]
        share = 1 - spent["median"] / rate["median"]
        if share <= 0 or spent["q3"] >= rate["q1"]:
            told = (
                f"Communication cannot be told from noise: a step of {called(record)} took {_ms(rate)}, and its "
                f"share of the batch on one device alone {_ms(spent)}."
            )
            return told, alone
        told = (
            f"At most {percent(share)} of a step of {called(record)} was communication and waiting: it took "
            f"{_ms(rate)}, and its share of the batch, {config['local_batch']} samples, took one device alone "
            f"{_ms(spent)}."
        )
        if "take turns" in str(record["measured"].get("note")):
            told += " " + marked("Its ranks had to take turns on fewer cores, which counts as waiting.")
        return told, alone
    if not base or base["config"]["nproc_per_node"] != 1 or not timed(base) or not alike(record, base):
        return None
    lost = 1 - spread(record, base)[0] / devices
    if lost <= CLOSE:
        return None
    told = (
        f"{percent(lost)} of the time of {called(record)} is what separates it from ideal scaling: communication, "
        f"waiting and smaller pieces of work together. A run of one device with a batch of {config['local_batch']} "
        "would tell them apart."
    )
    return told, base


def waiting(record):
    """How much of a step was spent waiting for data."""
    rate, wait = record["measured"]["step_time_s"], record["measured"]["input_wait_s"]
    share = wait["median"] / rate["median"] if rate and wait else 0
    if share < WAITS:
        return None
    return [f"{percent(share)} of a step of {called(record)} was spent waiting for data."]


# -- precision ----------------------------------------------------------------------------


def half_precision(record, records):
    """Whether a half format paid beside the same run in fp32, and what its record knows of why not."""
    level = record["config"]["precision"]
    if level == "fp32":
        return None
    plain = partner(record, records, precision="fp32")
    if not plain or not record["measured"]["images_per_s"]:
        return None
    speed, low, high = spread(record, plain)
    about = f"middle half {times(low)} to {times(high)}" + accuracies(record, plain)
    told = f"{times(speed)} the speed of {called(plain)} ({about})"
    own_low, own_high = spread(plain, plain)[1:]
    if low > own_high and speed > 1 + CLOSE:
        return f"{level} paid in {called(record)}: {told}.", plain
    if speed > 1 - CLOSE or high >= own_low:
        return f"{level} made no difference beyond the noise in {called(record)}: {told}.", plain
    why, backed = _why_not(record, records)
    return f"{level} did not pay in {called(record)}: {told}." + why, plain, *backed


def _why_not(record, records):
    """(what the records know of why a half format brought nothing, the other records that back it)."""
    if advice := record.get("advice"):
        share, dtype = advice["conv_ratio"], advice["dtype"]
        why = f"The format itself is slow here: a convolution in {dtype} ran at {share:g} times the speed of fp32."
        if share < 0.5:
            why += " " + marked("A device that is so far below 1 usually emulates it, for want of instructions.")
        return f" {why}", ()
    why = f" {NOT_SLOW} {LEFT}" if "advice" in record else ""
    devices = read.row(record)["devices"]
    for other in records:  # the same model on as many devices, with more work in a step
        more = other["config"]["local_batch"] > record["config"]["local_batch"]
        if more and read.row(other)["devices"] == devices and timed(other) and alike(other, record):
            plain = partner(other, records, precision="fp32")
            if plain and spread(other, plain)[0] > 1 + CLOSE:
                gain, batch = times(spread(other, plain)[0]), other["config"]["local_batch"]
                return f"{why} " + f"With {batch} samples a step on a device it paid: {gain}.", (other, plain)
    return why, ()


# -- compiler -----------------------------------------------------------------------------


def compiling(record, records):
    """What compiling cost, and after how many steps it is won back."""
    found = break_even(record, records)
    if not found:
        return None
    told = f"{called(record)} spent {number(found['compile_s'])} s compiling (plan: {found['plan']})"
    gain, steps, made = times(found["gain"]), found["steps"], record["measured"]["steps"]
    if found["plan"] == "eager":
        told = f"{told} and stayed with eager, since no plan was faster: it never pays off."
    elif found["gain"] is None:
        told = f"{told}; no eager run of the same settings is there to say what that gained."
    elif steps is None:
        told = f"{told} and is not faster than eager for it ({gain}): it never pays off."
    else:
        told = (
            f"{told}; a step is {gain} as fast as eager's, so it pays off after {steps:,} steps: the run made {made:,}"
        )
        told = f"{told}, so it paid." if made >= steps else f"{told}, so it did not pay yet."
    return told, *found["backed"]


def break_even(record, records) -> dict | None:
    """What a run that compiled has spent and gained: "compile_s", "plan", "gain", "steps" until it pays, "backed".

    "gain" is None without an eager run to compare with, "steps" also where nothing was gained.
    """
    found = (record.get("measured") or {}).get("compiler") or {}
    cost = found.get("compile_s")
    if cost is None:
        return None
    eager, faster, gain, backed = _beside_eager(record, records)
    steps = None
    if gain is not None and gain > 1 + CLOSE:
        steps = math.ceil(cost / (eager - faster))
    plan = clean(found.get("plan") or "none yet", 60)
    return {"compile_s": cost, "plan": plan, "gain": gain, "steps": steps, "backed": backed}


def _beside_eager(record, records):
    """(seconds of eager's step, of the compiled step, the gain, other records that say so)."""
    rows = {row["plan"]: row for row in record["measured"]["compiler"].get("rows") or []}
    chosen = rows.get(record["measured"]["compiler"].get("plan"))
    if chosen and rows.get("eager") and chosen["step_s"] and rows["eager"]["step_s"]:
        gain = chosen["speed_up"] or 1.0
        return rows["eager"]["step_s"], rows["eager"]["step_s"] / gain, gain, ()
    eager = partner(record, records, compiler="none")
    if not eager or not record["measured"]["step_time_s"]:
        return None, None, None, ()
    before, after = (one["measured"]["step_time_s"]["median"] for one in (eager, record))
    return before, after, before / after, (eager,)


# -- batch, memory, hosts -----------------------------------------------------------------


def batch(record, base):
    """What a larger batch, or one in several parts, means for the updates of the weights."""
    config, parts = record["config"], record["config"]["accumulation"] or 1
    told, others = [], [base] if base else []
    if base and config["global_batch"] != base["config"]["global_batch"]:
        of, updates = [one["config"]["global_batch"] for one in (record, base)], record["measured"]["steps"]
        told.append(f"{called(record)} uses a global batch of {of[0]} instead of {of[1]}")
        if config["epochs"] and config["epochs"] == base["config"]["epochs"]:
            before = base["measured"]["steps"]
            told[0] = f"{told[0]}: {updates:,} updates of the weights instead of {before:,} in as many epochs"
        told[0] += accuracies(record, base) + "."
    if parts > 1:
        local_batch = config["local_batch"]
        text = f"An update of {called(record)} adds up the gradients of {parts} micro-batches of {local_batch}"
        once = config["strategy"] == "ddp" and read.row(record)["devices"] > 1
        told.append(f"{text}, and exchanges them once." if once else f"{text}.")
    return (" ".join(told), *others) if told else None


def memory(record, base):
    """Peak memory of the process that needed most beside that of the base."""
    peaks = [read.row(one)["peak_memory_bytes"] for one in (record, base) if one]
    if len(peaks) < 2 or not all(peaks) or abs(peaks[0] / peaks[1] - 1) < DIFFERS:
        return None
    mine, of_base = (number(peak / 1e6) for peak in peaks)
    processes = record["measured"]["world_size"]
    each = f"{mine} MB in each of its {processes} processes at most" if processes > 1 else f"{mine} MB at its peak"
    told = f"{called(record)} needed less memory: {each}, {called(base)} {of_base} MB"
    if peaks[0] > peaks[1]:
        told = f"{called(record)} needed more memory: {each}, {called(base)} {of_base} MB"
    kind = record["environment"]["machine"]["kind"]
    return (f"{told}, the libraries included." if kind == "cpu" else f"{told}."), base


def hosts(record):
    """On which hosts a run of several took place."""
    found = record["measured"].get("hosts") or []
    if len(found) < 2:
        return None
    counts = [(clean(host["name"], 40), len(host["ranks"])) for host in found]
    told = ", ".join(f"{name} ({count} rank{'s' * (count != 1)})" for name, count in counts)
    return [f"{called(record)} ran on {len(found)} hosts: {told}."]


def _ms(summary):
    return f"{number(1000 * summary['median'])} ms"
