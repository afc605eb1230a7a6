"""From a real kernel, beside what people use today: how quick launches are, and what failures look like.

Two ranks on the CPU, gloo, one all-reduce; the same function and the same failures for all. Each peer is used as its
own documentation says, in the version pinned below.
"""

import re
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import environments
from .kernel import kernel

UNIT = "s"
ROUNDS, ENOUGH = 2, 900.0  # rounds, and seconds after which no further one is begun
CAP = 10.0  # s after which a failure counts as not shown, or a launch as hanging
START = 120.0  # s that setting up or a launch may take when nothing is wrong
SETTLE, GONE = 1.0, 3.0  # s that processes may take to end after a failed cell, and after their kernel
LATER_LAUNCHES, LATER_SECONDS = 3, 1.0  # at most, in one kernel: slow ones launch once more, quick ones three times

# What the ranks run, pasted into a cell or written to a file. `group` is "env" where the function makes the process
# group, "there" where the launcher has made it, "kept" where the ranks live on and have one: then a new group is the
# same work. Rank 1 is the one that fails; it writes the time to the file `mark` at that moment.
RANKS = '''
import os, signal, sys, time
import torch
import torch.distributed as dist

def train():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        model(torch.randn(64, 3, 32, 32)).square().mean().backward()
        optimizer.step()

def work(group, what, mark=""):
    if what == "train":
        train()
    if group == "env":
        dist.init_process_group("gloo")
    of_run = dist.new_group([0, 1], backend="gloo") if group == "kept" else None
    value = torch.ones(1)
    dist.all_reduce(value, group=of_run)
    if mark:
        if os.environ["RANK"] == "1":
            with open(mark + ".new", "w") as file:
                file.write(str(time.monotonic()))
            os.rename(mark + ".new", mark)
            if what == "exception":
                raise RuntimeError("planted mistake")
            if what == "lost":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        dist.all_reduce(torch.ones(1), group=of_run)  # rank 0 waits, as in training
    if group != "there":
        dist.destroy_process_group(of_run)
    if os.environ["RANK"] == "0":
        print(f"sum {value.item()}", flush=True)
    return value.item()

def placed(rank, port, *arguments):  # for launchers that leave the rendezvous to their users
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return work(*arguments)
'''
FILE = f"%%writefile ranks.py\n{RANKS}\nif __name__ == '__main__':\n    work(*sys.argv[1:])\n"
FREE_PORT = """
import socket

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""
# What is sent to a rank of nbdistributed that is still starting is lost.
UNTIL_STARTED = """
manager = get_ipython().magics_manager.registry["DistributedMagic"]._comm_manager
for _ in range(240):
    try:
        manager.send_to_all("get_status", {}, timeout=0.5)
        break
    except TimeoutError:
        pass
"""


@dataclass(frozen=True)
class Contender:
    """One launcher.

    Attributes:
        setup: the cells before the first launch.
        call: the cell that runs `work` on two ranks; `{args}` are its arguments as Python, `{words}` for a shell.
        values: the cell that shows what the ranks returned.
        fresh: whether each launch starts new processes.
        group: where the process group comes from, see RANKS.
        pins: requirements of its environment; () for the running one. The first is the package whose version counts.
    """

    name: str
    setup: tuple
    call: str
    values: str = "print(answer)"
    fresh: bool = True
    group: str = "env"
    pins: tuple = ()

    def cell(self, *args):
        args = (self.group, *map(str, args))
        return self.call.format(args=", ".join(map(repr, args)), words=" ".join(args))


OURS = Contender("launch", ("import helpers\n" + RANKS,), "answer = helpers.launch(work, 2, {args})")
PEERS = (
    Contender(
        "notebook_launcher", ("from accelerate import notebook_launcher\n" + RANKS,),
        "answer = notebook_launcher(work, args=({args},), num_processes=2)", pins=("accelerate==1.15.0",),
    ),
    Contender(
        "torchrunx", ("import torchrunx\n" + RANKS,),
        "answer = torchrunx.Launcher(workers_per_host=2, backend='gloo').run(work, {args})\n"
        "print('sum', answer.rank(0))",
        "print([answer.rank(k) for k in range(2)])", group="there", pins=("torchrunx==0.4.0",),
    ),
    Contender(
        "ipyparallel",
        (
            "import ipyparallel\n" + FREE_PORT + "ranks = ipyparallel.Cluster(n=2).start_and_connect_sync()[:]\n"
            f"ranks.execute({RANKS!r}, block=True)\nranks.scatter('rank', range(2), flatten=True, block=True)\n"
            "def run(port, *arguments):\n    return placed(rank, port, *arguments)\n",
        ),
        "answer = ranks.apply_sync(run, free_port(), {args})\nprint('sum', answer[0])",
        fresh=False, pins=("ipyparallel==9.2.0",),
    ),
    Contender(
        "nbdistributed",
        ("%load_ext nbdistributed", "%dist_init -n 2", "%dist_mode -d", UNTIL_STARTED, "%%distributed\n" + RANKS),
        "%%distributed\nanswer = work({args})", fresh=False, group="kept", pins=("nbdistributed==0.1.0",),
    ),
    Contender(
        "spawn", (FILE, "import ranks, torch.multiprocessing\n" + FREE_PORT),
        "answer = torch.multiprocessing.spawn(ranks.placed, (free_port(), {args}), nprocs=2)",
    ),
    Contender("torchrun", (FILE,), "!torchrun --standalone --nproc-per-node 2 ranks.py {words}"),
)  # fmt: skip

FIRST, LATER = "first launch", "later launch"
SHOWN = {"exception": "exception shown", "lost": "killed rank shown", "hang": "interrupt shown"}
PLANTED = {"exception": "an exception", "lost": "a killed rank", "hang": "an interrupt"}
NAMED, FAILED = "message names the rank", "failed cell fails"
AGAIN, TRAINED, VALUES = "works after a failure", "works after training", "returns values"
LEFT_RUN, LEFT_KERNEL, LEFT_KILLED = "left after a failure", "left after a shutdown", "left by a killed kernel"
SECONDS = (FIRST, LATER, *SHOWN.values())
COUNTS = (LEFT_RUN, LEFT_KERNEL, LEFT_KILLED)
CAN = (AGAIN, TRAINED, VALUES, NAMED, FAILED)
RANK = r"(?i)\b(?:rank|process|worker|engine)[\s:_=\[(]*1\b|local_rank *: *1\b|\[1:\w+\]|\[\w*default1\]"
WORDS = {
    "exception": (r"planted mistake",),
    "lost": (r"SIGKILL", r"(?i)signal 9\b", r"(?i)exit ?code:? *-9\b", r"(?i)\b(?:was killed|died|lost|terminated)\b"),
    "hang": (r"KeyboardInterrupt", r"(?i)\binterrupted\b"),
}
LATER_FRESH = f"{LATER} in fresh processes"
BAD_OURS, GOOD_PEERS = "bad rows of launch", "peers without a bad row"
TARGETS = {
    **{f"{row}, ours / best peer": ("<=", 1.1) for row in (*SECONDS, LATER_FRESH)},
    BAD_OURS: ("<=", 0), GOOD_PEERS: ("<=", 0),
}  # fmt: skip


class Stuck(RuntimeError):
    """The kernel can no longer be used: a cell in it does not end, or its launcher starts nothing."""


def visit(contender, python, what, cap=CAP):
    """Findings (row, number, "" or why it is bad) of one new kernel in which `what` happens after some launches.

    `what`: a failure of SHOWN, "training" (in the kernel, before a launch), or "kernel killed".
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, kernel(python, folder) as here:
        try:
            usual = _launches(contender, here, found)
            if what == "training":
                here.run(f"{RANKS}\ntrain()", START)
                works = _works(here, contender.cell("train"), cap + 2 * usual)[0] is not None
                found.append((TRAINED, works, "" if works else f"hangs, for over {cap:g} s"))
                return found
            there = here.processes()
            outcome, when = _until_marked(here, contender, what, Path(folder, "mark"), cap + 2 * usual)
            if what == "kernel killed":
                here.shut_down(politely=False)
                _count(found, LEFT_KILLED, here.processes, GONE)
                return found
            _failure(here, what, outcome, when, cap, found)
            _count(found, LEFT_RUN, lambda: here.processes() - there, SETTLE)
            works = _works(here, contender.cell("work"), cap + 2 * usual)[0] is not None
            found.append((AGAIN, works, "" if works else f"no launch after {PLANTED[what]}"))
            here.shut_down()
            _count(found, LEFT_KERNEL, here.processes, GONE)
        except Stuck as stuck:
            launched = any(row == FIRST for row, _, _ in found)
            found.append((AGAIN, 0, str(stuck)) if launched and what in SHOWN else (FIRST, START, str(stuck)))
    return found


def _launches(contender, here, found):
    """The first launch, later ones, and their values; the seconds of the slowest later one."""
    began = time.monotonic()
    for code in contender.setup:
        outcome = here.run(code, START)
        if outcome.error or outcome.seconds is None:
            raise Stuck(f"the set-up did not work: {(outcome.text + outcome.error).strip()[-300:]}")
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
        if outcome.seconds is not None or time.monotonic() > end + patience:
            raise Stuck("no launch that could fail")
        here.finish(outcome, 0.02, WORDS.get(what, ()))
    return outcome, float(mark.read_text())


def _failure(here, what, outcome, when, cap, found):
    """When and how the cell shows the planted failure."""
    if what == "hang":
        time.sleep(0.3)
        when = time.monotonic()
        here.manager.interrupt_kernel()
    if outcome.seconds is None:
        here.finish(outcome, when + cap - time.monotonic(), WORDS[what])
    if outcome.seconds is not None:
        here.finish(outcome, 0.2, WORDS[what])  # what children of the kernel print comes late
    late = outcome.shown is None
    took = cap if late else outcome.started + outcome.shown - when
    found.append((SHOWN[what], took, f"not within {cap:g} s" if late else ""))
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


def run(contenders=(OURS, *PEERS), kinds=(*SHOWN, "training", "kernel killed"), rounds=ROUNDS, cap=CAP, install=None):
    """Rows and ratios; `install` stands for environments.command in tests. The first contender is ours."""
    pythons, left_out = {}, {}
    for one in contenders:
        try:
            pythons[one.name] = environments.python(one.name, one.pins, install)
        except environments.NoEnvironment as error:
            left_out[one.name] = str(error)
            print(f"  {one.name} is left out: {error}", flush=True)
    here, began = [one for one in contenders if one.name in pythons], time.perf_counter()
    found = {one.name: [] for one in here}
    for number in range(rounds):
        if number and time.perf_counter() - began > ENOUGH:
            print(f"  round {number + 1} is left out: time is up", flush=True)
            break
        for kind in kinds:
            for one in (*here[number % len(here) :], *here[: number % len(here)]):
                print(f"  round {number + 1} of {rounds}, {kind}: {one.name}", flush=True)
                found[one.name] += visit(one, pythons[one.name], kind, cap)
    rows = {f"{row}: {who}": _row(row, of) for row in (*SECONDS, *COUNTS, *CAN) for who, of in found.items()}
    for one in here:
        package, _, _ = (one.pins or ("torch",))[0].partition("==")
        rows[f"{FIRST}: {one.name}"]["version"] = f"{package} {_version(pythons[one.name], package)}"
    for who, why in left_out.items():
        rows[f"{FIRST}: {who}"] = {"median": None, "n": 0, "left_out": why, "bad": f"not measured: {why}"}
    return rows, _ratios(rows, [one.name for one in here], {one.name for one in here if one.fresh})


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


def quickest(rows, row, among):
    """(seconds, contender) of the quickest of `among` that is not bad in this row; None without any."""
    good = [(rows[f"{row}: {who}"]["median"], who) for who in among if "bad" not in rows[f"{row}: {who}"]]
    return min(good, default=None)


def _ratios(rows, names, fresh):
    ours, *peers = names
    made = {}
    for row, shown, among in (*((row, row, peers) for row in SECONDS), (LATER, LATER_FRESH, fresh - {ours})):
        best, own = quickest(rows, row, among), rows[f"{row}: {ours}"]["median"]
        if best is not None and own is not None:
            made[f"{shown}, ours / best peer"] = own / best[0]
    return {**made, BAD_OURS: len(bad_rows(rows, ours)), GOOD_PEERS: sum(not bad_rows(rows, who) for who in peers)}


def _version(interpreter, package):
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()


def reasons(rows, ratios):
    """Why targets are missed."""
    peers = [one for one in PEERS if "left_out" not in rows.get(f"{FIRST}: {one.name}", {"left_out": ""})]
    why = {}
    for shown in (*SECONDS, LATER_FRESH):
        what, row = f"{shown}, ours / best peer", LATER if shown == LATER_FRESH else shown
        if ratios.get(what, 0) <= TARGETS[what][1]:
            continue
        seconds, who = quickest(rows, row, [one.name for one in peers if one.fresh or shown != LATER_FRESH])
        why[what] = f"{who} takes {seconds:.2g} s, launch {rows[f'{row}: launch']['median']:.2g} s"
        if row == LATER and not next(one.fresh for one in peers if one.name == who):
            why[what] += f"; {who} runs the function again in the same two processes"
        if others := bad_rows(rows, who):
            why[what] += f"; {who} is bad in {len(others)} other rows"
    if ratios[BAD_OURS]:
        why[BAD_OURS] = "; ".join(f"{row}: {words}" for row, words in bad_rows(rows, "launch").items())
    if ratios[GOOD_PEERS]:
        why[GOOD_PEERS] = ", ".join(one.name for one in peers if not bad_rows(rows, one.name))
    return why


def notes(rows, ratios):
    who = [what.partition(": ")[2] for what, row in rows.items() if "version" in row]
    said = [
        f"Versions: {', '.join(dict.fromkeys(rows[f'{FIRST}: {each}']['version'] for each in who))}.",
        "The first launch counts from the first cell of a new kernel. A failure is shown when the cell has ended and "
        f"names it; after {CAP:g} s it counts as not shown. A peer is bad where it fails even once.",
        "nbdistributed is given the time that its ranks need to start; ipyparallel and it run the function again in "
        "the same two processes, all others start fresh ones. Peers find a pkill that does nothing.",
    ]
    for each in who:
        if found := bad_rows(rows, each):
            said.append(f"{each}: " + "; ".join(f"{row}: {why}" for row, why in found.items()) + ".")
    said += [f"{what.partition(': ')[2]} was left out: {row['left_out']}." for what, row in rows.items()
             if "left_out" in row]  # fmt: skip
    return said
