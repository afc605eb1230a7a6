"""The benchmarks of how far the arithmetic is from its limit: that they would notice, not how fast this machine is."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from benchmarks import (
    article,
    article_case,
    article_script,
    in_turn,
    ladder_top,
    loop_case,
    loop_cost,
    loop_script,
    peak,
    records,
    scaling,
)
from benchmarks import turns as taking
from helpers import RunConfig, launch, measure
from helpers.data import sets
from helpers.launcher import malloc
from helpers.training import models
from helpers.training.loop import train

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HELPERS_DEVICE", "cpu")
    threads = torch.get_num_threads()
    yield torch.set_num_threads(1)
    torch.set_num_threads(threads)


def spread(value, n=5):
    return measure.summary([value] * n)


# -- taking turns -------------------------------------------------------------------------


def test_the_order_rotates_and_turns_around():
    names = "abc"
    orders = [in_turn.order(names, number) for number in range(6)]
    assert all(sorted(order) == list(names) for order in orders)
    for name in names:  # over all rotations everybody is in each place as often
        places = [order.index(name) for order in orders]
        assert {place: places.count(place) for place in range(3)} == {0: 2, 1: 2, 2: 2}
    followed = {(a, b) for order in orders for a, b in zip(order, order[1:], strict=False)}
    assert followed == {(a, b) for a in names for b in names if a != b}, "everybody comes after everybody"


def test_a_slower_contender_comes_out_slower_whatever_the_machine_does():
    calls = []
    samples = in_turn.measured(
        {"quick": lambda: calls.append("q"), "slow": lambda: (calls.append("s"), time.sleep(0.01))}, rounds=5
    )
    assert in_turn.ratio(samples["slow"], samples["quick"])["min"] > 1
    assert calls.count("q") == calls.count("s") == 6, "five rounds after a warm-up"
    drifting = [1, 2, 4, 8, 16]  # a machine that gets slower does not move the ratio
    assert in_turn.ratio([1.1 * s for s in drifting], drifting)["q3"] == pytest.approx(1.1)


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


def test_processes_run_by_turns_and_a_planted_pause_shows(tmp_path):
    log, rounds, block = tmp_path / "log", 5, 2
    steps = taking.steps_needed(rounds, block)
    found = taking.measured(
        {"quick": contender(log, "q", 0.001, steps), "slow": contender(log, "s", 0.02, steps)}, rounds, block
    )
    assert in_turn.ratio(found["slow"]["seconds"], found["quick"]["seconds"])["median"] > 1.01
    whole = 2 * block * (rounds + 1)
    names = [name[0] for number in range(rounds + 1) for name in in_turn.order(["quick", "slow"], number)]
    assert log.read_text()[:whole] == "".join(block * name for name in names), "block by block, never side by side"
    assert found["quick"]["losses"] == [[float(step) for step in range(steps - 1)]]


def test_a_contender_that_dies_is_named_with_its_last_words(tmp_path):
    steps = taking.steps_needed(5, 1)
    with pytest.raises(RuntimeError, match=r"(?s)bad ended with status 1.*planted"):
        taking.measured({"bad": contender(tmp_path / "log", "b", 0, steps, "fail")}, 5, 1)


# -- counting and the limits --------------------------------------------------------------


def test_counted_operations_equal_a_closed_form():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    images = torch.randn(4, 3, 6, 6)
    conv, linear = 2 * 4 * 36 * 8 * 3 * 9, 2 * 4 * 8 * 36 * 5
    assert peak.flops(lambda: net(images)) == conv + linear
    # Backward: gradients of the weights and of the inputs, but the images need none.
    whole = peak.flops(lambda: F.cross_entropy(net(images), torch.zeros(4, dtype=torch.int64)).backward())
    assert whole == 2 * conv + 3 * linear


def test_an_image_costs_as_much_as_a_part_of_a_batch():
    net, images = models.build("resnet8", 10), torch.randn(3, 3, 32, 32)
    labels = torch.zeros(3, dtype=torch.int64)
    counted = peak.flops(lambda: F.cross_entropy(net(images), labels).backward()) / 3
    assert peak.flops_of_image("resnet8", 32) == counted
    assert peak.flops_of_image("resnet8", 32, backward=False) == peak.flops(lambda: net(images)) / 3


def test_the_peak_is_the_best_size_and_slow_formats_are_not_tried_at_all_sizes(monkeypatch):
    found = peak.matmul_peak(torch.float32, sizes=(16, 64))
    assert found["size"] in (16, 64) and found["median"] > 0 and found["n"] == 5
    monkeypatch.setattr(peak, "PATIENCE", 0.0)
    assert peak.matmul_peak(torch.float32, sizes=(16, 64))["size"] == 16


def test_what_the_cpu_lacks_is_said(monkeypatch):
    monkeypatch.setattr(peak, "bf16_flags", list)
    assert "amx_bf16" in peak.why_no_bf16() and not peak.has_bf16()
    monkeypatch.setattr(peak, "bf16_flags", lambda: ["amx_bf16"])
    assert peak.why_no_bf16() == "" and peak.has_bf16()


# -- the loop -----------------------------------------------------------------------------


def kit_losses(settings):
    """This rank's losses in the kit's loop."""
    gate = taking.Gate(F.cross_entropy)
    train(RunConfig(**settings, loss=gate))
    return [loss.item() for loss in gate.losses]


def test_the_kits_loop_and_the_script_by_hand_follow_equal_losses(monkeypatch):
    monkeypatch.setattr(loop_script, "LOCAL_BATCH", 4)
    settings = json.loads(loop_cost.contenders(5)[loop_cost.KIT][0][-1])["settings"]
    assert settings["local_batch"] == 4 and settings["nproc_per_node"] == 2
    ours = launch(kit_losses, 2, settings, threads=1, timeout=100)
    by_hand = launch(_by_hand, 2, 5, threads=1, timeout=100)
    assert ours == by_hand and len(ours[0]) == 5 and ours[0] != ours[1], "each rank has images of its own"


def _by_hand(steps):
    loop_script.LOCAL_BATCH = 4
    return loop_script.plain(steps)


def test_other_work_is_not_compared(monkeypatch):
    found = {"a": {"seconds": [1] * 5, "losses": [[1.0, 2.0]]}, "b": {"seconds": [1] * 5, "losses": [[1.0, 2.5]]}}
    monkeypatch.setattr(taking, "measured", lambda *_, **__: found)
    with pytest.raises(AssertionError, match="b must train as a does"):
        loop_cost.compared({}, 5, 1)


def test_a_loop_that_costs_too_much_is_reported_with_its_spread():
    rows = {name: spread(0.1) for name in (loop_cost.BY_HAND, loop_cost.SAME_MALLOC)}
    few = [loop_cost.few_images(name) for name in (loop_cost.KIT, loop_cost.SAME_MALLOC)]
    rows |= {few[0]: spread(0.009), few[1]: spread(0.007)}
    noise = {loop_cost.NOISE: spread(1.0)}
    slow = {**noise, **{name: spread(1.03) for name in loop_cost.TARGETS}}
    told = loop_cost.reasons({**rows, loop_cost.KIT: spread(0.103)}, slow)
    assert set(told) == set(loop_cost.TARGETS) and "+3.00 ms on steps of 100.0 ms" in told[loop_cost.COST]
    assert "9.00 ms in the kit's loop, 7.00 ms by hand" in told[loop_cost.OWN]
    fine = {**noise, **{name: spread(goal) for name, (_, goal) in loop_cost.TARGETS.items()}}
    assert loop_cost.reasons({**rows, loop_cost.KIT: spread(0.1)}, fine) == {}
    assert any("9.00 ms in the kit, 7.00 ms by hand" in note for note in loop_cost.notes(rows, fine))


def test_what_the_loop_adds_to_a_short_step_is_held_against_a_whole_one():
    short, whole = loop_cost.few_images, loop_cost.SAME_MALLOC
    seconds = {short(loop_cost.KIT): [0.008] * 5, short(whole): [0.007] * 5, whole: [0.1] * 5}
    assert loop_cost.own_cost(seconds)["median"] == pytest.approx(0.01)


def test_peers_that_cannot_be_installed_are_left_out_with_the_reason(monkeypatch):
    def fails(*_):
        raise loop_cost.peers_envs.NoEnvironment("no network")

    monkeypatch.setattr(loop_cost, "_why_absent", {})
    monkeypatch.setattr(loop_cost.peers_envs, "python", fails)
    assert loop_cost.peers(3) == {}
    assert any("accelerate is left out: no network" in note for note in loop_cost.notes({}, {}))


def test_a_rank_keeps_its_pages_and_a_notebook_does_not(tmp_path):
    code = (
        "import resource\nfrom helpers import memory\nprint(memory.keep_pages_in_rank())\n"
        "def step(): return [b'x' * 2**22 for _ in range(8)]\n"
        "step(); before = resource.getrusage(0).ru_minflt\nfor _ in range(5): step()\n"
        "print(resource.getrusage(0).ru_minflt - before)"
    )
    clean = {name: value for name, value in os.environ.items() if name not in malloc.RANK_NAMES}

    def told(**more):
        run = subprocess.run([sys.executable, "-c", code], env={**clean, **more}, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        kept, faults = run.stdout.split()
        return kept == "True", int(faults)

    notebook, rank, own = told(), told(RANK="0"), told(RANK="0", MALLOC_ARENA_MAX="4")
    assert not notebook[0] and not own[0], "settings of one's own stay"
    if rank[0]:  # glibc
        assert rank[1] < notebook[1] / 4, "freed pages were cleared again"
    else:
        assert sys.platform != "linux" or not hasattr(malloc.ctypes.CDLL(None), "gnu_get_libc_version")


def test_a_cast_counts_once_however_many_rounds_it_has():
    casts = [{"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 0.1]}, {"a": [3.0, 3.0, 3.0], "b": [3.0, 3.0, 3.0]}]
    assert in_turn.medians(lambda number: casts[number], 2) == {"a": [1.0, 3.0], "b": [2.0, 3.0]}


# -- scaling and the top of the ladder ----------------------------------------------------


def test_efficiencies_come_from_the_rounds():
    seconds = {
        scaling.ONE: [0.10] * 5, scaling.LOCAL: [0.125] * 5, scaling.GLOBAL: [0.0625] * 5, scaling.ALONE: [0.11] * 5,
    }  # fmt: skip
    ratios = scaling.ratios_of(seconds)
    assert ratios[scaling.FIXED_LOCAL]["median"] == pytest.approx(0.8)
    assert ratios[scaling.FIXED_GLOBAL]["median"] == pytest.approx(0.8)
    assert ratios[scaling.EXCHANGE]["median"] == pytest.approx(0.88)
    rows = {name: measure.summary(spent) for name, spent in seconds.items()}
    why = scaling.reasons(rows, ratios)[scaling.FIXED_LOCAL]
    assert "+10.0 ms are the machine's" in why and "+15.0 ms the exchange's" in why
    assert scaling.reasons(rows, {**ratios, scaling.FIXED_LOCAL: spread(0.93)}) == {}


def test_unconnected_runs_are_runs_of_one_rank():
    settings = {"device": "cpu", "threads": 1, "global_batch": 8, "steps": 3, "evaluate": False}
    one, other = launch(loop_case.unconnected, 2, settings, threads=1, timeout=100)
    assert one["world_size"] == other["world_size"] == 1
    assert one["samples"]["loss"] == other["samples"]["loss"], "each saw all of the batch, and the same one"


def test_bf16_without_instructions_is_measured_once_on_few_images(monkeypatch):
    monkeypatch.setattr(peak, "bf16_flags", list)
    assert ladder_top.batch_of(ladder_top.ONE, 256) == ladder_top.EMULATED_BATCH
    assert ladder_top.batch_of(ladder_top.BASE, 256) == 256
    parties = ladder_top.contenders(256, 3)
    settings = json.loads(parties[ladder_top.ONE][0][-1])["settings"]
    assert settings["local_batch"] == ladder_top.EMULATED_BATCH and settings["precision"] == "bf16"
    assert parties[ladder_top.LAST_DDP][1] == 2 and parties[ladder_top.BASE][1] == 1
    assert not {ladder_top.ONE, ladder_top.TOP} & set(ladder_top.contenders(128, 3))
    monkeypatch.setattr(peak, "bf16_flags", lambda: ["avx512_bf16"])
    for batch in ladder_top.BATCHES:
        parties = ladder_top.contenders(batch, 3)
        assert set(parties) == {ladder_top.BASE, ladder_top.LAST, ladder_top.LAST_DDP, *ladder_top.BF16}
        assert json.loads(parties[ladder_top.TOP][0][-1])["settings"]["local_batch"] == batch
        assert parties[ladder_top.TOP][1] == 2


def ladder(bf16):
    """(rows, ratios) of a machine on which bf16 multiplies matrices `bf16` times as fast as fp32."""
    rates = {ladder_top.BASE: [10.0] * 5, ladder_top.LAST: [15.0] * 5, ladder_top.LAST_DDP: [28.0] * 5,
             ladder_top.ONE: [15.0 * bf16] * 5, ladder_top.TOP: [28.0 * bf16] * 5}  # fmt: skip
    peaks, flops = {"fp32": 20e9, "bf16": 20e9 * bf16}, 1e9
    rows = {f"product of matrices, {kind}": spread(limit) for kind, limit in peaks.items()}
    ratios = {}
    for batch in ladder_top.BATCHES:
        measured = {name: rates[name] for name in ladder_top.variants(batch)}
        rows |= {f"{name}, b{batch}": measure.summary(rate) for name, rate in measured.items()}
        ratios |= ladder_top.ratios_of(measured, batch, peaks, flops)
    return rows, ratios


def test_the_ladders_ratios_and_shares(monkeypatch):
    monkeypatch.setattr(peak, "bf16_flags", lambda: ["amx_bf16"])
    _, ratios = ladder(2.0)
    top, one, share = ladder_top.ratio_names(256)
    assert ratios[top]["median"] == pytest.approx(5.6) and ratios[one]["median"] == pytest.approx(3.0)
    assert ratios[share]["median"] == pytest.approx(0.75)
    assert ratios[f"{ladder_top.LAST}, of the peak, b128"]["median"] == pytest.approx(0.75)


@pytest.mark.parametrize("bf16, words", [(0.5, "0.50 times the rate"), (2.0, "75% of that at batch 256")])
def test_a_missed_target_of_the_ladder_has_its_reason(monkeypatch, bf16, words):
    monkeypatch.setattr(peak, "bf16_flags", lambda: ["amx_bf16"])
    rows, ratios = ladder(bf16)
    told = ladder_top.reasons(rows, ratios)
    missed = {name for name, (_, goal) in ladder_top.TARGETS.items() if ratios[name]["median"] < goal}
    assert set(told) == missed != set() and all(words in why for why in told.values())
    notes = ladder_top.notes(rows, ratios)
    assert "For bf16 the CPU has amx_bf16." in notes and not any("Emulated" in note for note in notes)


def test_where_bf16_is_emulated_its_targets_are_open_and_fp32_is_told(monkeypatch):
    monkeypatch.setattr(peak, "bf16_flags", list)
    measured = ladder(0.02)
    monkeypatch.setattr(ladder_top, "run", lambda: measured)
    found = records.verdicts(records.new("ladder_top", ladder_top, *ladder_top.run(), seconds=1.0))
    assert {one.what for one in found} == set(ladder_top.TARGETS), "the targets stay in the table"
    assert all(one.met is None and one.value is None for one in found)
    assert all(one.why.startswith("not measured here: this CPU") and "avx512_bf16" in one.why for one in found)
    notes = " ".join(ladder_top.notes(*measured))
    assert "batch 128, DDP ×2 is 2.80 times" in notes and "one rank 1.50 times; it reaches 75%" in notes
    assert "at 0.02 times the rate" in notes and "0.3 images/s at a local batch of 8; at 256 one step" in notes


# -- the article --------------------------------------------------------------------------


def test_a_step_is_cut_into_parts_that_add_up():
    ticks = iter(range(1000))
    waits = []
    model, optimizer = nn.Linear(2, 2), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks = article_case.Marks(
        model, optimizer, turn=lambda: [next(ticks) for _ in range(50)], settle=lambda: waits.append(1),
        clock=lambda: next(ticks),
    )  # fmt: skip
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert len(marks.steps) == 2, "the first step has no beginning"
    assert marks.steps == [dict.fromkeys(article_case.PARTS, 1)] * 2, "the turn of others is in no part"
    assert waits, "an accelerator is waited for"


def test_where_the_step_goes_adds_up_to_the_whole():
    steps = [{"input wait": 1.0, "forward": 2.0, "backward": 6.0, "optimizer": 1.0}] * 5
    parts = article.breakdown(steps)
    assert sum(row["share"] for row in parts.values()) == pytest.approx(1)
    shares = article.lost(parts, {"forward": 1e9, "backward": 2e9}, limit=1e9)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["arithmetic at the peak"] == pytest.approx(0.3)
    assert shares["forward beyond it"] == pytest.approx(0.1) and shares["backward beyond it"] == pytest.approx(0.4)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_the_articles_epoch_is_compared_where_there_is_a_gpu(where):
    steps = [{"input wait": 0.1, "forward": 0.2, "backward": 0.6, "optimizer": 0.1}] * 5
    seconds = {article.SCRIPT: [1.0] * 5, article.KIT: [0.5] * 5}
    batches = {article.SCRIPT: 256, article.KIT: 1000}
    rows, ratios = article.table(where, seconds, dict.fromkeys(seconds, steps), batches, dict.fromkeys(seconds, 1e12))
    assert ratios[article.FASTER]["median"] == pytest.approx(2 * 1000 / 256)
    told, notes = article.reasons(rows, ratios)[article.EPOCHS], article.notes(rows, ratios)
    if where == "cpu":
        assert article.EPOCHS not in ratios and "needs a CUDA device" in told
        assert any("No CUDA device here" in note for note in notes)
    else:  # 25 s an epoch where the article takes 6.1 on 4 GPUs
        assert ratios[article.EPOCHS]["median"] == pytest.approx(6.1 / 25)
        assert "of this device's measured peak" in told and not any("No CUDA" in note for note in notes)


def test_the_articles_script_has_pil_images_and_what_its_article_has(monkeypatch):
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    toy = sets.ImageSet("toy", pixels, torch.arange(4), tuple("abcd"), (0.5,) * 3, (0.5,) * 3, flip=True)
    monkeypatch.setattr(sets, "load", lambda name, split: toy)
    image, label = article_script.Cifar(lambda image: image)[2]
    assert isinstance(image, Image.Image) and label == 2
    assert torch.equal(torch.from_numpy(np.array(image)).permute(2, 0, 1), pixels[2])
    assert (article_script.BATCH, article_script.WORKERS) == (256, 2)


def test_scripts_by_hand_name_the_same_work_as_the_kit():
    parties = loop_cost.contenders(7)
    settings = json.loads(parties[loop_cost.KIT][0][-1])["settings"]
    assert (settings["model"], settings["data"]) == (loop_script.MODEL, loop_script.DATA)
    assert settings["local_batch"] == loop_script.LOCAL_BATCH and settings["steps"] == 7
    assert {key: settings[key] for key in loop_script.SGD} == loop_script.SGD
