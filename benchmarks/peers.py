"""From a real kernel, beside what people use today: how quick launches are, and what failures look like.

Two ranks on the CPU, gloo, one all-reduce; the same function and the same failures for all. See peers_contenders
for how each is used, peers_visit for what is done in a visit, peers_envs for where the others are installed.
"""

import signal
import sys
import tempfile
import time
from contextlib import contextmanager

from . import peers_envs, peers_table
from .peers_contenders import OURS, PEERS
from .peers_visit import CAP, FIRST, LATER, SECONDS, SHOWN, VALUES, visit

UNIT = "s"
ENOUGH = 900.0  # s after which no further round is begun, once each kind of visit was made
VISITS = ("failures", "training", "failures", "failures")
FRESH = ("notebook_launcher", "torchrunx", "spawn", "torchrun")  # start new processes for each launch
TARGETS = {
    **{peers_table.ratio(row): ("<=", 1.1) for row in (*SECONDS, f"{LATER} in fresh processes")},
    peers_table.BAD_OURS.format(ours=OURS.name): ("<=", 0),
    peers_table.GOOD_PEERS: ("<=", 0),
}


def run(contenders=(OURS, *PEERS), visits=VISITS, cap=CAP, install=None):
    """Rows and ratios; `install` stands for peers_envs.command in tests. The first contender is ours."""
    pythons, left_out = environments(contenders, install)
    here = [contender for contender in contenders if contender.name in pythons]
    findings = {contender.name: [] for contender in here}
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, ending_in_order():
        start = time.perf_counter()
        for number, kind in enumerate(visits):
            if kind in visits[:number] and time.perf_counter() - start > ENOUGH:
                print(f"  visit {number + 1} of {len(visits)} and those after it are left out: time is up", flush=True)
                break
            turn = number % len(here)
            for contender in (*here[turn:], *here[:turn]):
                began = time.perf_counter()
                of_it = findings[contender.name]
                known = frozenset(finding["row"] for finding in of_it if "bad" in finding)
                of_it += visit(contender, pythons[contender.name], folder, kind, cap, known)
                took = time.perf_counter() - began
                print(f"  visit {number + 1} of {len(visits)}, {kind}: {contender.name:<18} {took:5.1f} s", flush=True)
    rows = peers_table.rows(findings)
    for contender in here:
        version = peers_envs.version(pythons[contender.name], contender.package)
        rows[peers_table.name(FIRST, contender.name)]["version"] = f"{contender.package} {version}"
    for who, why in left_out.items():
        rows[peers_table.name(FIRST, who)] = {"median": None, "n": 0, "left_out": why, "bad": f"not measured: {why}"}
    print("\n".join(f"  {line}" for line in peers_table.as_text(rows)), flush=True)
    return rows, peers_table.ratios(rows, contenders[0].name, FRESH)


@contextmanager
def ending_in_order():
    """Who ends this program ends its kernels, too: SIGTERM would leave them, and peers' ranks, behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def environments(contenders, install=None):
    """({contender: its interpreter}, {contender: why it could not be installed})"""
    pythons, left_out = {}, {}
    for contender in contenders:
        try:
            pythons[contender.name] = peers_envs.python(contender.name, contender.pins, install)
        except peers_envs.NoEnvironment as error:
            print(f"  {contender.name} is left out: {error}", flush=True)
            left_out[contender.name] = str(error)
    return pythons, left_out


def reasons(rows, ratios):
    later = {contender.name: contender.later for contender in (OURS, *PEERS)}
    return peers_table.reasons(rows, ratios, TARGETS, OURS.name, later, FRESH)


def notes(rows, ratios):
    who = peers_table.contenders(rows)
    versions = [rows[peers_table.name(FIRST, each)].get("version", "") for each in who]
    told = [f"Versions: {', '.join(dict.fromkeys(filter(None, versions)))}."]
    later = [f"{each.name}: {each.later}" for each in (OURS, *PEERS) if each.name in who]
    told.append(f"A later launch is: {'; '.join(later)}.")
    told.append(
        f"The first launch counts from the first import in a new kernel. A failure ({', '.join(SHOWN.values())}) is "
        "shown when the cell has ended and names it; what a rank prints in a cell that goes on does not count. After "
        f"{CAP:g} s it counts as not shown. A peer is bad where it fails even once, and a failure that "
        "it did not show is not planted again."
    )
    made, wanted = rows[peers_table.name(VALUES, OURS.name)]["n"], VISITS.count("failures")
    if made < wanted:
        told.append(f"Failures were planted in {made} of {wanted} rounds: {ENOUGH:g} s had passed.")
    for each in who:
        found = peers_table.bad(rows, each)
        if found:
            told.append(f"{each}: " + "; ".join(f"{row}: {words}" for row, words in found.items()) + ".")
    for what, row in rows.items():
        if "left_out" in row:
            told.append(f"{what.partition(': ')[2]} was left out: {row['left_out']}.")
    told.append(
        "nbdistributed is given the time its ranks need to start: cells sent before are lost. A pkill that does "
        "nothing stands before the system's in each peer's environment, since one peer stops its ranks by name."
    )
    return told
