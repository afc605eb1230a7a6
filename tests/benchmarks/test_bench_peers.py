"""The comparison with peers finds what is planted: hidden failures, leftovers, slowness, a hang, no network."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import launch_latency, peers, peers_envs, peers_kernel, peers_table, peers_visit
from benchmarks.peers_contenders import OURS, PEERS, Contender
from benchmarks.peers_visit import CAN, COUNTS, FIRST, LATER, ROWS, SECONDS, SHOWN

# A launcher that starts no ranks, and does well whatever is planted, but for its one fault.
LAUNCHER = """
import os, subprocess, time
trained = False

def launch(fn, group, mark=None, fault={fault!r}):
    if fn in ("all_reduce", "training"):
        time.sleep(0.3 if "slow" in fault else 60 if fault == "hangs" and trained else 0)
        print("sum 2.0")
        return [2.0, 2.0]
    if "leaves" in fault:
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    with open(mark + ".new", "w") as file:
        file.write(str(time.monotonic()))
    os.rename(mark + ".new", mark)
    if fn == "hang":
        time.sleep(60)
    if fault != "hides":
        raise RuntimeError("rank 1: " + {{"exception": "planted mistake", "lost": "SIGKILL"}}[fn])
"""


def fake(name, fault="", pins=()):
    return Contender(
        name, (LAUNCHER.format(fault=fault),), "answer = launch('{fn}', {args})", "print(answer)", "", pins=pins
    )


def of(row, who, rows):
    return rows[peers_table.name(row, who)]


@pytest.fixture(scope="module")
def failures():
    contenders = [fake("good"), fake("hides", "hides"), fake("slow", "slow, leaves")]
    with pytest.MonkeyPatch.context() as patch:  # nothing here takes long to end
        patch.setattr(peers_visit, "SETTLE", 0.2)
        patch.setattr(peers_visit, "GONE", 0.5)
        return peers.run(contenders, ("failures",), cap=20)


def test_a_good_contender_has_no_bad_row(failures):
    rows, ratios = failures
    assert set(peers_table.bad(rows, "good")) == {peers_visit.TRAINED, peers_visit.LEFT_KILLED}, (
        "no such visit was made"
    )
    assert of(peers_visit.VALUES, "good", rows)["median"] == of(peers_visit.AGAIN, "good", rows)["median"] == 1


def test_a_hidden_failure_is_bad(failures):
    rows, _ = failures
    for what in ("exception", "lost"):
        assert "not within 20 s (1 of 1)" in of(SHOWN[what], "hides", rows)["bad"]
    assert (
        "passes with an exception; passes with a killed rank (2 of 2)" in of(peers_visit.FAILED, "hides", rows)["bad"]
    )
    assert of(peers_visit.NAMED, "hides", rows)["median"] == 0
    assert "bad" not in of(SHOWN["hang"], "hides", rows), "the interrupt is shown"


def test_what_is_left_is_counted_and_ended(failures):
    rows, _ = failures
    assert of(peers_visit.LEFT_RUN, "slow", rows)["median"] == 1
    assert of(peers_visit.LEFT_KERNEL, "slow", rows)["median"] == 3
    assert of(peers_visit.LEFT_KERNEL, "slow", rows)["bad"] == "3 left (1 of 1)"
    assert of(peers_visit.LEFT_KERNEL, "good", rows)["median"] == 0


def test_a_slower_contender_comes_out_slower(failures):
    rows, _ = failures
    assert of(LATER, "slow", rows)["min"] >= 0.3 and "bad" not in of(LATER, "slow", rows)
    assert of(LATER, "slow", rows)["median"] > of(LATER, "good", rows)["median"]
    assert peers_table.first(rows, LATER, ["slow", "good"])[1] == "good"


def test_a_hang_after_training_and_ranks_that_outlive_their_kernel_are_bad(monkeypatch):
    monkeypatch.setattr(peers_visit, "TRAINING", "trained = True")
    rows, _ = peers.run([fake("leaves", "leaves"), fake("hangs", "hangs")], ("training",), cap=3)
    assert "hangs, for over 3 s" in of(peers_visit.TRAINED, "hangs", rows)["bad"]
    assert of(peers_visit.TRAINED, "leaves", rows)["median"] == 1
    assert of(peers_visit.LEFT_KILLED, "leaves", rows)["median"] == 1
    assert of(peers_visit.LEFT_KILLED, "hangs", rows)["median"] == 0


def test_without_a_network_the_others_are_measured_and_it_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    fails = [sys.executable, "-c", "import sys; sys.exit('error: no route to host')"]
    contenders = [fake(OURS.name), fake("far", pins=("far==1.0",))]
    monkeypatch.setattr(peers, "ENOUGH", 0)  # nor is a second round begun
    rows, ratios = peers.run(contenders, ("failures", "failures"), cap=20, install=lambda where, pins: fails)
    assert peers_table.contenders(rows) == [OURS.name]
    assert "no route to host" in of(FIRST, "far", rows)["left_out"]
    assert any("far was left out" in note and "no route to host" in note for note in peers.notes(rows, ratios))
    assert any("planted in 1 of 3 rounds: 0 s had passed" in note for note in peers.notes(rows, ratios))
    assert "far is left out" in capsys.readouterr().out
    assert peers_table.ratio(FIRST) not in ratios, "there is nobody to compare with"


def test_an_environment_is_made_once_and_has_the_running_ones_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    made = []

    def install(where, pins):
        made.append(pins)
        return [sys.executable, "-c", ""]

    first = peers_envs.python("peer", ("peer==1",), install)
    assert peers_envs.python("peer", ("peer==1",), install) == first and len(made) == 1
    assert peers_envs.python("peer", ("peer==2",), install) == first and len(made) == 2
    found = subprocess.run([first, "-c", "import ipykernel; print(ipykernel.__file__)"], capture_output=True, text=True)
    import ipykernel

    assert found.stdout.strip() == ipykernel.__file__


def findings(seconds, counts=0, can=1, **bad):
    """Findings of one contender that takes `seconds` everywhere; `bad` are words for rows, by their first word."""
    made = []
    for row in ROWS:
        sample = counts if row in COUNTS else can if row in CAN else seconds
        words = next((words for first, words in bad.items() if row.startswith(first)), None)
        made += [{"row": row, "sample": sample, **({"bad": words} if words else {})}] * 3
    return made


def test_the_table_marks_the_first_and_the_bad_rows():
    rows = peers_table.rows({"launch": findings(0.2), "quick": findings(0.1, later="too late"), "slow": findings(0.3)})
    ratios = peers_table.ratios(rows, "launch", fresh=("slow",))
    assert peers_table.first(rows, FIRST, ["quick", "slow"]) == (0.1, "quick")
    assert peers_table.first(rows, LATER, ["quick", "slow"]) == (0.3, "slow"), "who is bad cannot be first"
    assert ratios[peers_table.ratio(FIRST)] == pytest.approx(2)
    assert ratios[peers_table.ratio(LATER)] == pytest.approx(2 / 3)
    assert ratios["bad rows of launch"] == 0 and ratios["peers without a bad row"] == 1
    text = "\n".join(peers_table.as_text(rows))
    assert "0.1!" in text and "0.3!" not in text


def test_a_missed_target_is_told_with_its_reason():
    slow, left = findings(0.2), findings(0.1, left="3 left")
    rows = peers_table.rows({"launch": slow, "ipyparallel": left, "torchrun": findings(5)})
    ratios = peers_table.ratios(rows, "launch", peers.FRESH)
    told = peers.reasons(rows, ratios)
    assert "ipyparallel takes 0.1 s, launch 0.2 s" in told[peers_table.ratio(FIRST)]
    assert "the same two processes" in told[peers_table.ratio(LATER)]
    assert peers_table.ratio(f"{LATER} in fresh processes") not in told, "that one is met"
    assert told["peers without a bad row"] == "torchrun"
    assert "bad rows of launch" not in told


def test_each_row_of_seconds_has_a_target():
    assert {peers_table.ratio(row) for row in SECONDS} < set(peers.TARGETS)


def test_every_contender_can_be_asked_for_every_function():
    for contender in (OURS, *PEERS):
        for fn in ("all_reduce", "training", "exception", "lost", "hang"):
            cell = contender.cell(fn, "a/mark")
            assert fn in cell and "a/mark" in cell and contender.group in cell
        assert all("==" in pin for pin in contender.pins)


# launch_latency


def summaries(**medians):
    names = (launch_latency.WARM, launch_latency.FORK, launch_latency.RUN, launch_latency.FIRST, launch_latency.IMPORT)
    return {name: {"median": 1.0} for name in (*names, launch_latency.EARLIER)} | {
        getattr(launch_latency, name): {"median": median} for name, median in medians.items()
    }


def test_a_slow_launch_is_explained_by_what_it_is_made_of():
    rows = summaries(WARM=0.4, FORK=0.2, RUN=4.0, FIRST=4.0, IMPORT=3.0, EARLIER=0.5)
    ratios = {launch_latency.BY_RUN: {"median": 10.0}, launch_latency.BY_FORK: {"median": 2.0}}
    told = launch_latency.reasons(rows, ratios)
    assert set(told) == set(launch_latency.TARGETS)
    assert "(50%)" in told[launch_latency.WARM] and "3.00 s of the 4.00 s (75%)" in told[launch_latency.FIRST]


def test_what_is_met_needs_no_reason():
    rows = summaries(WARM=0.08, FORK=0.07, RUN=5.0, FIRST=1.5)
    ratios = {launch_latency.BY_RUN: {"median": 60.0}, launch_latency.BY_FORK: {"median": 1.1}}
    assert launch_latency.reasons(rows, ratios) == {}


def test_a_bare_fork_does_the_same_work_and_ends():
    with launch_latency.BareFork() as fork:
        fork()  # it asserts the ranks' values
        process = fork.process
    assert process.returncode == 0


# the fork server


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_a_server_that_still_imports_ends_with_its_notebook(tmp_path):
    """Found by the comparison: the second generation went on importing after a kernel was shut down."""
    (tmp_path / "torchvision.py").write_text(f"import time\nopen({str(tmp_path / 'imports')!r}, 'w')\ntime.sleep(60)")
    mark = f"of-{os.getpid()}-{time.monotonic_ns()}"
    path = os.pathsep.join([str(tmp_path), str(peers_envs.paths.project_root())])
    environment = {**os.environ, "PYTHONPATH": path, peers_kernel.MARK: mark, "HELPERS_START_METHOD": "fork"}
    code = "from helpers.launcher import client; client.server(); import time; time.sleep(60)"
    notebook = subprocess.Popen([sys.executable, "-c", code], env=environment)
    entry = f"{peers_kernel.MARK}={mark}"
    try:
        assert until((tmp_path / "imports").exists, 60)
        notebook.send_signal(signal.SIGKILL)
        notebook.wait()
        assert until(lambda: not peers_kernel.running(entry), 15), "it outlived its notebook"
    finally:
        notebook.kill()
        notebook.wait()
        peers_kernel.end_all(peers_kernel.running(entry))


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
