"""Benchmarks notice what is planted: a slow contender, one that does other work, hidden failures, leftovers."""

import json
import sys

import pytest
import torch
import torch.nn.functional as F
from kernel import wait_until
from torch import nn

from benchmarks import article, environments, launchers, loop_cost, peak, peers, turns
from benchmarks.cases import article as article_case
from benchmarks.cases import loop
from benchmarks.kernel import kernel
from helpers import RunConfig, launch
from helpers.training.loop import train

# -- taking turns ----------------------------------------------------------------------------------

CONTENDER = """
import sys, time
from benchmarks.turns import Gate
class Loss(float):
    detach = item = lambda self: Loss(self)
gate = Gate(lambda outputs, labels: Loss(outputs))
for step in range(int(sys.argv[1])):
    gate(float(step), None)
    time.sleep(float(sys.argv[2]))
    with open(sys.argv[3], "a") as log:
        log.write(sys.argv[4])
    if sys.argv[5:]:
        sys.exit("planted")
"""


def contender(log, mark, seconds, steps, *more):
    return [sys.executable, "-c", CONTENDER, str(steps), str(seconds), str(log), mark, *more], 1, {}


def test_everybody_is_in_each_place_and_after_everybody():
    orders = [turns.order("abc", number) for number in range(6)]
    assert {order[place] for order in orders for place in range(3)} == set("abc")
    followed = {pair for order in orders for pair in zip(order, order[1:], strict=False)}
    assert followed == {(a, b) for a in "abc" for b in "abc" if a != b}


def test_processes_run_by_turns_and_a_planted_pause_shows(tmp_path):
    log, rounds, block = tmp_path / "log", 5, 2
    steps = turns.steps_needed(rounds, block)
    found = turns.measured(
        {"quick": contender(log, "q", 0.001, steps), "slow": contender(log, "s", 0.3, steps)}, rounds, block
    )
    assert turns.ratio(found["slow"]["seconds"], found["quick"]["seconds"])["median"] > 1.01
    names = [name[0] for number in range(rounds + 1) for name in turns.order(["quick", "slow"], number)]
    assert log.read_text()[: 2 * block * (rounds + 1)] == "".join(block * name for name in names)
    assert found["quick"]["losses"] == [[float(step) for step in range(steps - 1)]]


def test_a_contender_that_dies_is_named_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)bad ended with status 1.*planted"):
        turns.measured({"bad": contender(tmp_path / "log", "b", 0, turns.steps_needed(5, 1), "fail")}, 5, 1)


def test_a_machine_that_gets_slower_does_not_move_a_ratio():
    drifting = [1, 2, 4, 8, 16]
    found = turns.ratio([1.1 * s for s in drifting], drifting)
    assert (found["low"], found["high"]) == pytest.approx((1.1, 1.1))
    casts = [{"a": [1.0, 9.0, 1.0]}, {"a": [3.0, 3.0, 3.0]}]
    assert turns.medians(lambda number: casts[number], 2) == {"a": [1.0, 3.0]}


# -- the loop --------------------------------------------------------------------------------------


def kit_losses(settings):
    gate = turns.Gate(F.cross_entropy)
    train(RunConfig(**settings, loss=gate))
    return [loss.item() for loss in gate.losses]


def by_hand(steps):
    loop.LOCAL_BATCH = 4
    return loop.plain(steps)


@pytest.mark.long
def test_the_kits_loop_and_the_script_by_hand_follow_equal_losses(monkeypatch):
    monkeypatch.setattr(loop, "LOCAL_BATCH", 4)
    settings = json.loads(loop_cost.contenders(5)[loop_cost.KIT][0][-1])["settings"]
    ours = launch(kit_losses, 2, settings, threads=1, timeout=600, env={"HELPERS_DEVICE": "cpu"})
    assert ours == launch(by_hand, 2, 5, threads=1, timeout=600)
    assert len(ours[0]) == 5 and ours[0] != ours[1], "each rank has images of its own"


def test_other_work_is_not_compared(monkeypatch):
    found = {"a": {"seconds": [1] * 5, "losses": [[1.0, 2.0]]}, "b": {"seconds": [1] * 5, "losses": [[1.0, 2.5]]}}
    monkeypatch.setattr(turns, "measured", lambda *_, **__: found)
    with pytest.raises(AssertionError, match="b must train as a does"):
        loop_cost.compared({}, 5, 1)


@pytest.mark.long
def test_unconnected_runs_are_runs_of_one_rank():
    settings = {"device": "cpu", "threads": 1, "global_batch": 8, "steps": 3, "evaluate": False}
    one, other = launch(loop.unconnected, 2, settings, threads=1, timeout=600)
    assert one["world_size"] == other["world_size"] == 1
    assert one["samples"]["loss"] == other["samples"]["loss"], "each saw all of the batch, and the same one"


# -- counting --------------------------------------------------------------------------------------


def test_counted_operations_equal_a_closed_form():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    images = torch.randn(4, 3, 6, 6)
    conv, linear = 2 * 4 * 36 * 8 * 3 * 9, 2 * 4 * 8 * 36 * 5
    assert peak.flops(lambda: net(images)) == conv + linear
    # Backward: gradients of the weights and of the inputs, but the images need none.
    whole = peak.flops(lambda: F.cross_entropy(net(images), torch.zeros(4, dtype=torch.int64)).backward())
    assert whole == 2 * conv + 3 * linear


def test_a_step_is_cut_into_parts_that_add_up():
    ticks, model = iter(range(1000)), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    others = lambda: [next(ticks) for _ in range(50)]  # noqa: E731
    marks = article_case.Marks(model, optimizer, turn=others, clock=lambda: next(ticks))
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert marks.steps == [dict.fromkeys(article_case.PARTS, 1)] * 2, "the turn of others is in no part"
    parts = article.breakdown([{"input wait": 1.0, "forward": 2.0, "backward": 6.0, "optimizer": 1.0}] * 5)
    shares = article.lost(parts, {"forward": 1e9, "backward": 2e9}, limit=1e9)
    assert sum(shares.values()) == pytest.approx(1) and shares["arithmetic at the peak"] == pytest.approx(0.3)


# -- peers -----------------------------------------------------------------------------------------

# A launcher that starts no ranks and does well whatever is planted, but for its one fault.
LAUNCHER = """
import os, subprocess, time
trained = False

def train():
    global trained
    trained = True

def launch(group, what, mark=None, fault={fault!r}):
    if mark is None:
        time.sleep(3 if fault == "slow" else 60 if fault == "hangs" and what == "train" else 0)
        print("sum 2.0")
        return [2.0, 2.0]
    if fault == "leaves":
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    with open(mark + ".new", "w") as file:
        file.write(str(time.monotonic()))
    os.rename(mark + ".new", mark)
    if what == "hang":
        time.sleep(60)
    if fault != "hides":
        raise RuntimeError("rank 1: planted mistake")
"""


def fake(fault, pins=(), group="env"):
    code = (LAUNCHER.format(fault=fault),)
    return launchers.Contender(fault, code, "answer = launch({args})", group=group, pins=pins)


@pytest.fixture(scope="module")
def failed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "SETTLE", 10.0)
        patch.setattr(peers, "GONE", 20.0)
        others = [fake(name) for name in ("hides", "slow", "leaves")]
        return peers.run([fake("good")], others, ("exception",), 1, cap=60)


@pytest.mark.long
def test_hidden_failures_leftovers_and_a_slow_launcher_are_found(failed):
    rows, ratios = failed
    assert not set(peers.bad_rows(rows, "good")) & {peers.AGAIN, peers.SHOWN["exception"], peers.LEFT_KERNEL}
    assert "not within 60 s (1 of 1)" in rows[f"{peers.SHOWN['exception']}: hides"]["bad"]
    assert rows[f"{peers.NAMED}: hides"]["median"] == 0 and rows[f"{peers.NAMED}: good"]["median"] == 1
    assert rows[f"{peers.LEFT_RUN}: leaves"]["median"] == rows[f"{peers.LEFT_KERNEL}: leaves"]["median"] == 1
    assert rows[f"{peers.LEFT_KERNEL}: good"]["median"] == 0
    assert rows[f"{peers.LATER}: slow"]["min"] >= 3
    assert peers.quickest(rows, peers.LATER, fake("good"), [fake("slow"), fake("leaves")])[1] == "leaves"
    assert peers.quickest(rows, peers.LATER, fake("good", group="kept"), [fake("slow"), fake("leaves")]) is None
    assert ratios["later launch, good / best peer"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "fault, kind, row",
    [
        ("hangs", "training", peers.TRAINED),
        ("leaves", "kernel killed", peers.LEFT_KILLED),
    ],
)
def test_a_hang_after_training_and_ranks_that_outlive_their_kernel_are_found(fault, kind, row):
    rows, _ = peers.run([fake(fault)], [], (kind,), 1, cap=2)
    assert "bad" in rows[f"{row}: {fault}"]


@pytest.mark.long
def test_a_launcher_that_never_launches_costs_its_patience_twice_and_ends_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "VISIT", 1.0)
    rows, _ = peers.run([fake("slow")], [], ("exception", "training", "lost"), 1)
    assert rows[f"{peers.FIRST}: slow"]["n"] == peers.HOPELESS and "did not work" in rows[f"{peers.FIRST}: slow"]["bad"]
    assert peers.visit(fake("good"), str(tmp_path / "no python"), "lost")[0][0] == peers.FIRST


def test_what_would_take_too_long_is_left_out_of_later_rounds(monkeypatch):
    found = [(peers.FIRST, 1.0, ""), (peers.LATER, 1.0, "")]
    monkeypatch.setattr(peers, "visit", lambda *_: found)
    monkeypatch.setattr(peers, "ENOUGH", 0)
    rows, _ = peers.run([fake("good")], [], ("exception", "lost"), 2)
    assert rows[f"{peers.FIRST}: good"]["n"] == 2, "one round"


@pytest.mark.long
def test_a_kernel_behind_a_server_is_stopped_and_shut_down(tmp_path):
    with kernel(sys.executable, tmp_path, served=True) as here:
        sleeping = here.send("import time\nprint('there')\ntime.sleep(600)")
        assert wait_until(lambda: "there" in here.finish(sleeping, 1).text, 300) is not None
        here.interrupt()
        assert "KeyboardInterrupt" in here.finish(sleeping, 300).error
        assert here.run("6 * 7", 300).text == "42" and here.processes()
        here.shut_down()
        assert wait_until(lambda: not here.processes(), 100) is not None


def test_what_cannot_be_installed_is_left_out_and_an_environment_is_made_once(monkeypatch, tmp_path):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    fails = [sys.executable, "-c", "import sys; sys.exit('error: no route to host')"]
    rows, ratios = peers.run([fake("good")], [fake("far", ("far==1",))], (), 1, install=lambda *_: fails)
    assert "no route to host" in rows[f"{peers.FIRST}: far"]["left_out"]
    assert any("far was left out" in note for note in peers.notes(rows, ratios))
    made = []
    for pin in ("peer==1", "peer==1", "peer==2"):
        environments.python("peer", (pin,), lambda where, pins: made.append(pins) or [sys.executable, "-c", ""])
    assert made == [("peer==1",), ("peer==2",)]
