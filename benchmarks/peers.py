"""From a real kernel, beside what people use today: how quick launches are, and what failures look like.

Two ranks on the CPU, gloo, one all-reduce; the same function and the same failures for all (launchers.py). A launcher
that starts new processes each time is compared with such, and persistent ranks with others that live on.
"""

import itertools
import re
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from . import environments
from .kernel import kernel
from .launchers import OURS, PEERS, RANKS

UNIT = "s"
GRID = True  # its rows make a table in docs/project/benchmarks.md
ROUNDS, ENOUGH = 2, 1600.0  # rounds, and seconds that they may take: what would take longer is left out of later rounds
VISIT = 150.0  # s of cells in one kernel, after which nothing more is waited for there
HOPELESS = 2  # visits without a single launch, after which a contender is not visited again
CAP = 10.0  # s after which a failure counts as not shown, or a launch as hanging
START = 120.0  # s that setting up or a launch may take when nothing is wrong
SETTLE, GONE = 1.0, 3.0  # s that processes may take to end after a failed cell, and after their kernel
LATER_LAUNCHES, LATER_SECONDS = 10, 1.0  # at most, in one kernel: slow ones launch once more, quick ones ten times

FIRST, LATER = "first launch", "later launch"
SHOWN = {"exception": "exception shown", "lost": "killed rank shown", "hang": "interrupt shown"}
PLANTED = {"exception": "an exception", "lost": "a killed rank", "hang": "an interrupt"}
NAMED, FAILED = "message names the rank", "failed cell fails"
AGAIN, TRAINED, VALUES = "works after a failure", "works after training", "returns values"
LEFT_RUN, LEFT_KERNEL, LEFT_KILLED = "left after a failure", "left after a shutdown", "left by a killed kernel"
SECONDS = (FIRST, LATER, *SHOWN.values())
COUNTS = (LEFT_RUN, LEFT_KERNEL, LEFT_KILLED)
CAN = (AGAIN, TRAINED, VALUES, NAMED, FAILED)
RANK = r"(?i)\b(?:rank|process|worker|engine)[\s:_=\[(]*1\b|local_rank *: *1\b|'gpus': 1\b|\[1:\w+\]|\[\w*default1\]"
WORDS = {
    "exception": (r"planted mistake",),
    "lost": (r"SIGKILL", r"(?i)signal 9\b", r"(?i)exit ?code:? *-9\b", r"(?i)\b(?:was killed|died|lost|terminated)\b"),
    "hang": (r"KeyboardInterrupt", r"(?i)\binterrupted\b"),
}
RATIO, BAD = "{}, {} / best peer".format, "bad rows of {}".format
GOOD_PEERS = "peers without a bad row"
TARGETS = {
    **{RATIO(row, one.name): ("<=", 1.1) for one in OURS for row in SECONDS},
    **{BAD(one.name): ("<=", 0) for one in OURS},
    GOOD_PEERS: ("<=", 0),
}


class Stuck(RuntimeError):
    """The kernel can no longer be used: a cell in it does not end, or its launcher starts nothing."""


def visit(contender, python, what, cap=CAP):
    """Findings (row, number, "" or why it is bad) of one new kernel in which `what` happens after some launches.

    `what`: a failure of SHOWN, "training" (in the kernel, before a launch), or "kernel killed".
    """
    found = []
    try:
        _visit(contender, python, what, cap, found)
    except Exception as error:  # a kernel that dies or never starts is its contender's fault, and ends no benchmark
        launched = any(row == FIRST for row, _, _ in found)
        why = str(error) if isinstance(error, Stuck) else f"{type(error).__name__}: {error}"
        found.append((AGAIN, 0, why) if launched and what in SHOWN else (FIRST, START, why))
    return found


def _folder():
    return tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)  # leftovers may still write there


def _visit(contender, python, what, cap, found):
    with _folder() as folder, kernel(python, folder, contender.served) as here:
        here.deadline = time.monotonic() + VISIT
        usual = _launches(contender, here, found)
        if what == "training":
            here.run(f"{RANKS}\ntrain()", START)
            patience = 3 * cap + 2 * usual  # ranks that have not trained yet import more of torch
            works = _works(here, contender.cell("train"), patience)[0] is not None
            found.append((TRAINED, works, "" if works else f"hangs, for over {patience:.0f} s"))
            return
        there = here.processes()
        outcome, when = _until_marked(here, contender, what, Path(folder, "mark"), cap + 2 * usual)
        if what == "kernel killed":
            there = here.processes()  # a server starts a new kernel, with ranks of its own
            here.shut_down(politely=False)
            _count(found, LEFT_KILLED, lambda: here.processes() & there, GONE)
            return
        _failure(here, what, outcome, when, cap, found)
        _count(found, LEFT_RUN, lambda: here.processes() - there, SETTLE)
        patience = cap + 2 * usual
        if what == "lost" and not contender.fresh:
            _set_up(contender, here)  # one of the persistent ranks is gone
            patience = START
        works = _works(here, contender.cell("work"), patience)[0] is not None
        found.append((AGAIN, works, "" if works else f"no launch after {PLANTED[what]}"))
        here.shut_down()
        _count(found, LEFT_KERNEL, here.processes, GONE)


def _launches(contender, here, found):
    """The first launch, later ones, and their values; the seconds of the slowest later one."""
    began = time.monotonic()
    _set_up(contender, here)
    took = []
    while len(took) <= LATER_LAUNCHES and sum(took[1:]) < LATER_SECONDS:
        seconds, text = _works(here, contender.cell("work"), START)
        if seconds is None:
            raise Stuck(f"the {'later' if took else 'first'} launch did not work: {text or 'no answer'}")
        found.append((LATER, seconds, "") if took else (FIRST, time.monotonic() - began, ""))
        took.append(seconds)
    values = "[2.0, 2.0]" in here.run(contender.values, START).text
    found.append((VALUES, values, "" if values else "gives no values"))
    return max(took[1:])


def _set_up(contender, here):
    if contender.served:
        here.new_ranks(2)
    for code in contender.setup:
        outcome = here.run(code, START)
        if outcome.error or outcome.seconds is None:
            raise Stuck(f"the set-up did not work: {(outcome.text + outcome.error).strip()[-300:]}")


def _works(here, code, cap):
    """(seconds of a launch or None if it did not work, the end of what it showed).

    What ranks print may come a moment after the cell's end.
    """
    outcome, end = here.run(code, cap), time.monotonic() + 2
    while outcome.seconds is not None and not outcome.error:
        if "sum 2.0" in outcome.text:
            return outcome.seconds, ""
        if time.monotonic() > end:
            break
        here.finish(outcome, 0.2)
    return None, (outcome.text + outcome.error).strip()[-300:]


def _until_marked(here, contender, what, mark, patience):
    """Start ranks that fail; (outcome so far, when rank 1 came to it)."""
    outcome, end = here.send(contender.cell("hang" if what == "kernel killed" else what, mark)), time.monotonic()
    while not mark.exists():
        if outcome.seconds is not None or time.monotonic() > min(end + patience, here.deadline):
            raise Stuck("no launch that could fail")
        here.finish(outcome, 0.02, WORDS.get(what, ()))
    return outcome, float(mark.read_text())


def _failure(here, what, outcome, when, cap, found):
    """When and how the cell shows the planted failure."""
    if what == "hang":
        time.sleep(0.3)
        when = time.monotonic()
        here.interrupt()
    if outcome.seconds is None:
        here.finish(outcome, when + cap - time.monotonic(), WORDS[what])
    if outcome.seconds is not None:
        here.finish(outcome, 0.2, WORDS[what])  # what children of the kernel print comes late
    late = outcome.shown is None
    took = cap if late else outcome.started + outcome.shown - when
    words = ", though the words are there" * any(re.search(word, outcome.text) for word in WORDS[what])
    found.append((SHOWN[what], took, f"not within {cap:g} s{words}" if late else ""))
    if what != "hang":
        named = bool(re.search(RANK, outcome.text + outcome.error))
        found.append((NAMED, named, "" if named else f"not that of {PLANTED[what]}"))
        found.append((FAILED, bool(outcome.error), "" if outcome.error else f"passes with {PLANTED[what]}"))
    if outcome.seconds is None:
        raise Stuck(f"the cell goes on after {PLANTED[what]}")


def _count(found, row, processes, patience):
    """How many processes there still are after `patience` seconds, or as soon as there is none."""
    end = time.monotonic() + patience
    while (left := processes()) and time.monotonic() < end:
        time.sleep(0.05)
    found.append((row, len(left), f"{len(left)} left" if left else ""))


def run(ours=OURS, peers=PEERS, kinds=(*SHOWN, "training", "kernel killed"), rounds=ROUNDS, cap=CAP, install=None):
    """Rows and ratios; `install` stands for environments.command in tests."""
    pythons, left_out = {}, {}
    for one in (*ours, *peers):
        try:
            pythons[one.name] = environments.python(one.name, one.pins, install)
        except environments.NoEnvironment as error:
            left_out[one.name] = str(error)
            print(f"  {one.name} is left out: {error}", flush=True)
    here, began = [one for one in (*ours, *peers) if one.name in pythons], time.perf_counter()
    found, lasted, failed = {one.name: [] for one in here}, {}, Counter()
    for number, kind in itertools.product(range(rounds), kinds):
        start = time.perf_counter()
        if start - began + lasted.get(kind, 0) > ENOUGH and number:
            print(f"  round {number + 1}, {kind} is left out: time is up", flush=True)
            continue
        for one in (*here[number % len(here) :], *here[: number % len(here)]):
            if failed[one.name] < HOPELESS:
                print(f"  round {number + 1} of {rounds}, {kind}: {one.name}", flush=True)
                seen = visit(one, pythons[one.name], kind, cap)
                failed[one.name] += all(row == FIRST for row, _, _ in seen)
                found[one.name] += seen
        lasted[kind] = time.perf_counter() - start
    rows = {f"{row}: {who}": _row(row, of) for row in (*SECONDS, *COUNTS, *CAN) for who, of in found.items()}
    for one in here:
        package, _, _ = (one.pins or ("torch",))[0].partition("==")
        rows[f"{FIRST}: {one.name}"]["version"] = f"{package} {_version(pythons[one.name], package)}"
    for who, why in left_out.items():
        rows[f"{FIRST}: {who}"] = {"median": None, "n": 0, "left_out": why, "bad": f"not measured: {why}"}
    return rows, _ratios(rows, ours, [one for one in peers if one.name in pythons])


def _row(row, findings):
    """Summary of one row of one contender; where a reader is let down, "bad" has the words why."""
    found = [(number, why) for name, number, why in findings if name == row]
    if not found:
        return {"median": None, "n": 0, "bad": "never came that far"}
    values = sorted(float(number) for number, _ in found)
    if row in CAN:  # not the median: what works most of the time is not what one wants
        made = {"median": statistics.mean(values), "n": len(values), "unit": "of 1"}
    else:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if values[1:] else values * 3
        made = {"median": middle, "q1": low, "q3": high, "min": values[0], "max": values[-1], "n": len(values)}
        made |= {"unit": "processes"} if row in COUNTS else {}
    bad = [why for _, why in found if why]
    return {**made, "bad": f"{'; '.join(dict.fromkeys(bad))} ({len(bad)} of {len(found)})"} if bad else made


def bad_rows(rows, who):
    """{row: why it is bad} of one contender."""
    found = {row: rows[f"{row}: {who}"].get("bad") for row in (*SECONDS, *COUNTS, *CAN)}
    return {row: why for row, why in found.items() if why}


def quickest(rows, row, mine, peers):
    """(seconds, name) of the quickest of `peers` that is not bad in this row; None without any.

    A later launch in new processes is compared with such, and a call of persistent ranks with other calls.
    """
    names = [one.name for one in peers if row != LATER or one.fresh == mine.fresh]
    good = [(rows[f"{row}: {name}"]["median"], name) for name in names if "bad" not in rows[f"{row}: {name}"]]
    return min(good, default=None)


def _ratios(rows, ours, peers):
    made = {}
    for mine in ours:
        for row in SECONDS:
            best, own = quickest(rows, row, mine, peers), rows[f"{row}: {mine.name}"]["median"]
            if best is not None and own is not None:
                made[RATIO(row, mine.name)] = own / best[0]
        made[BAD(mine.name)] = len(bad_rows(rows, mine.name))
    return {**made, GOOD_PEERS: sum(not bad_rows(rows, one.name) for one in peers)}


def _version(interpreter, package):
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()


def reasons(rows, ratios):
    """Why targets are missed."""
    peers = [one for one in PEERS if "left_out" not in rows.get(f"{FIRST}: {one.name}", {"left_out": ""})]
    why = {}
    for mine in OURS:
        for row in SECONDS:
            what = RATIO(row, mine.name)
            if ratios.get(what, 0) <= TARGETS[what][1]:
                continue
            seconds, who = quickest(rows, row, mine, peers)
            why[what] = f"{who} takes {seconds:.2g} s, {mine.name} {rows[f'{row}: {mine.name}']['median']:.2g} s"
            if others := bad_rows(rows, who):
                why[what] += f"; {who} is bad in {len(others)} other rows"
        if found := bad_rows(rows, mine.name):
            why[BAD(mine.name)] = "; ".join(f"{row}: {words}" for row, words in found.items())
    if ratios[GOOD_PEERS]:
        why[GOOD_PEERS] = ", ".join(one.name for one in peers if not bad_rows(rows, one.name))
    return why


def notes(rows, ratios):
    who = [what.partition(": ")[2] for what, row in rows.items() if "version" in row]
    kept = [one.name for one in (*OURS, *PEERS) if not one.fresh and one.name in who]
    said = [
        f"Versions: {', '.join(dict.fromkeys(rows[f'{FIRST}: {each}']['version'] for each in who))}.",
        "The first launch counts from the first cell of a new kernel. A failure is shown when the cell has ended and "
        f"names it; after {CAP:g} s it counts as not shown. A launcher is bad where it fails even once.",
        f"{', '.join(kept)} keep their ranks: a later launch is a call in the same processes and process group, and "
        "after a killed rank they are set up again before the next call. All others start new processes.",
        "nbdistributed is given the time that its ranks need to start. jupyter-distributed runs in a Jupyter server "
        "of its own. Monarch's cell imports torch, since its actors cannot. Peers find a pkill that does nothing.",
    ]
    for each in who:
        if found := bad_rows(rows, each):
            said.append(f"{each}: " + "; ".join(f"{row}: {why}" for row, why in found.items()) + ".")
    said += [
        f"{what.partition(': ')[2]} was left out: {row['left_out']}." for what, row in rows.items() if "left_out" in row
    ]
    return said
