"""Whether what came of a launch is what had to come of it, and whether memory stays flat."""

import re
import statistics

SOON = 10.0  # s from a stop or an interrupt until nothing of the run is left, on a machine that is busy
EARLIER = 0.5  # s before the end, or the timeout, at which an event must have been sent to say something about it
FLAT = 0.05  # share by which memory may grow between the first and the last readings
READINGS = 5  # whose median counts


def answers(plan):
    """What each rank of a healthy launch returns, as `inside.checked` gives it."""
    total = float(sum(range(1, plan.ranks + 1))) if plan.group else None
    return [[rank, total, plan.number, True] for rank in range(plan.ranks)]


def problems(plan, outcome, interrupted=None) -> list:
    """What is wrong with an outcome (of `inside.perform`), in words; nothing if it had to be so.

    `interrupted`: the moment of the interrupt on the clock of time.monotonic().
    """
    found = list(_PROBLEMS.get(plan.kind, _failure)(plan, outcome, interrupted))
    if outcome.get("stop_s", 0) > SOON:
        found.append(f"stop() took {outcome['stop_s']:.1f} s")
    for behind, values in enumerate(outcome.get("queued") or []):
        want = [[rank, words[1], plan.number, True] for rank, words in enumerate(_behind(plan, behind))]
        if values != want:
            found.append(f"the run behind it returned {values} instead of {want}")
    return found


def _behind(plan, number):
    """The answers of the healthy run that waits as number `number` behind this one; it has one rank more each time."""
    return [[rank, float(sum(range(1, number + 2))) if plan.group else None] for rank in range(number + 1)]


def _healthy(plan, outcome, _):
    if outcome["error"]:
        yield f"{outcome['error']} in a healthy launch: {outcome['message']}"
    elif outcome["value"] != answers(plan):
        yield f"it returned {outcome['value']} instead of {answers(plan)}"


def _failure(plan, outcome, _):
    """A rank that raised, was killed or left."""
    how = plan.how if plan.kind == "collective" else plan.kind
    message, code = outcome.get("message", ""), {"sigkill": -9, "exit": plan.code}.get(how)
    says = {
        "sigkill": f"rank {plan.rank} was killed by signal SIGKILL",
        "exit": f"rank {plan.rank} left with exit code {plan.code}",
        "exception": f"rank {plan.rank} failed",
    }[how]
    if outcome["error"] != "RankError":
        yield f"RankError expected, got {outcome['error']}: {message or outcome['value']}"
    elif outcome["rank"] != plan.rank:
        yield f"the error blames rank {outcome['rank']} instead of {plan.rank}: {message}"
    elif not message.startswith(says):
        yield f"the message does not start with {says!r}: {message}"
    elif outcome["exitcode"] != code:
        yield f"exit code {outcome['exitcode']} instead of {code}"
    elif how == "exception" and f"planted in launch {plan.number}" not in message:
        yield f"the message does not show the exception: {message}"


def _hang(plan, outcome, _):
    """A timeout that names the rank which hung, and no rank that had long returned."""
    if outcome["error"] != "RankTimeout":
        yield f"RankTimeout expected, got {outcome['error']}: {outcome.get('message') or outcome['value']}"
        return
    named = re.search(r"rank ([\d, ]+) of (\d+) had not returned", outcome["message"])
    waiting = {int(rank) for rank in named[1].split(", ")} if named else set()
    gone = {rank for name, rank, ago in outcome["events"] if name == "leaving" and ago > EARLIER}
    hanging = {rank for name, rank, ago in outcome["events"] if name == "hanging" and ago > EARLIER}
    if plan.rank not in waiting:
        yield f"the timeout does not name rank {plan.rank}: {outcome['message']}"
    if waiting & gone:
        yield f"the timeout names ranks that had returned ({sorted(waiting & gone)}): {outcome['message']}"
    for rank in hanging:
        if "planted_hang" not in (outcome["stacks"] or {}).get(str(rank), ""):
            yield f"the timeout does not show where rank {rank} hung: {outcome['stacks']}"


def _interrupt(plan, outcome, interrupted):
    if outcome["error"] != "KeyboardInterrupt":
        yield f"KeyboardInterrupt expected, got {outcome['error']}: {outcome.get('message') or 'it went unnoticed'}"
    elif interrupted and not outcome.get("late") and outcome["ended"] - interrupted > SOON:
        yield f"it took {outcome['ended'] - interrupted:.1f} s to stop after the interrupt"
    if outcome["value"] is not None and outcome["value"] != answers(plan):
        yield f"it returned {outcome['value']} instead of {answers(plan)}"


def _stop(plan, outcome, _):
    if (outcome["error"], outcome.get("status")) != ("RunStopped", "stopped"):
        yield f"RunStopped expected, got {outcome['error']}, {outcome.get('status')}: {outcome.get('message')}"


CAUGHT = {"exception": "RankError", "hang": "RankTimeout", "sigkill": "Ended", "interrupt": "KeyboardInterrupt"}


def _persistent(plan, outcome, interrupted):
    """A call of persistent ranks that failed as planned; they survive all but the end of one of them."""
    if outcome.get("caught") != CAUGHT[plan.how]:
        yield f"{CAUGHT[plan.how]} expected, got {outcome.get('caught') or outcome['error']}: {outcome.get('said')}"
    elif plan.how in ("exception", "sigkill") and outcome["blamed"] != plan.rank:
        yield f"the error blames rank {outcome['blamed']} instead of {plan.rank}: {outcome['said']}"
    elif interrupted and not outcome.get("late") and outcome["caught_at"] - interrupted > SOON:
        yield f"it took {outcome['caught_at'] - interrupted:.1f} s to stop after the interrupt"
    elif plan.how == "sigkill":
        if outcome["error"] != "RuntimeError" or "have ended" not in outcome["message"]:
            yield f"ranks that have ended were called: {outcome['error']}, {outcome.get('message')}"
    elif outcome["error"]:
        yield f"{outcome['error']} in the call after it: {outcome['message']}"
    elif outcome["value"] != answers(plan) or not outcome["same"]:
        yield f"afterwards they returned {outcome['value']} instead of {answers(plan)}"


_PROBLEMS = {"healthy": _healthy, "hang": _hang, "interrupt": _interrupt, "stop": _stop, "persistent": _persistent}


def medians(readings, first) -> dict:
    """{(role, kind of memory): (bytes then, bytes at the end)}, each the median of READINGS readings.

    `readings` are pairs (number of the launch, `held.memory`); those from launch `first` on count.
    """
    counted = [values for number, values in readings if number >= first]
    table = {}
    for role, kinds in (counted[0] if counted else {}).items():
        for kind in kinds:
            row = [values[role][kind] for values in counted]
            table[role, kind] = statistics.median(row[:READINGS]), statistics.median(row[-READINGS:])
    return table


def growth(readings, first) -> list:
    """Which memory is not flat, in words."""
    return [
        f"{kind} memory of the {role} grew from {before / 2**20:.1f} to {after / 2**20:.1f} MiB "
        f"({after / before - 1:+.1%}; at most {FLAT:+.0%} is allowed)"
        for (role, kind), (before, after) in medians(readings, first).items()
        if after > before * (1 + FLAT)
    ]
