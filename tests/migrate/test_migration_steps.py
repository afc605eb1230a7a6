"""The migrated ImageNet script trains on emulated cards as the original would on GPUs, and resumes where it was.

It runs in the lab (npu_lab.py) on two of four cards. `problems` holds every oracle. That each step matters is what
notebook 07 shows: it leaves each of them out.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from npu_lab import CARDS, Lab, Run, free_port, images
from npu_ranks import needs_npu

from platforms.migrate import migrate
from platforms.npu.loading import real_torch_npu

pytestmark = [
    pytest.mark.long,  # notebook 07 trains what migrate makes of this script, too
    needs_npu,
    pytest.mark.skipif(real_torch_npu(), reason="only the emulated device counts what is done on it"),
]
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "imagenet_2020.py"
TRAINING, VALIDATION, BATCH, WORKERS = 26, 9, 8, 3  # images; 13 a rank: three batches of 4 and a rest of 1
SETTINGS = ["--image-size", "32", "-b", BATCH, "-j", WORKERS, "--lr", "0.01", "-p", "1"]
TWO_CARDS = ["--multiprocessing-distributed", "--world-size", "1", "--rank", "0", "--device-list", "3,1"]
DYNAMIC = ["--amp", "--loss-scale", "-1"]


@dataclass(frozen=True)
class Scenario:
    """One way to run the script: its arguments and what they have to lead to."""

    arguments: tuple
    cards: tuple = (1, 3)  # by rank
    trained: int = 2  # epochs that this run trains
    scale: float | str | None = None  # of the loss, as amp.initialize has to be given it


SCENARIOS = {
    "train": Scenario((*TWO_CARDS, "--amp", "--epochs", 2), scale=1024.0),
    "dynamic": Scenario((*TWO_CARDS, *DYNAMIC, "--epochs", 2), scale="dynamic"),
    "resume": Scenario((*TWO_CARDS, *DYNAMIC, "--epochs", 3, "--resume", "two"), trained=1, scale="dynamic"),
    "uninterrupted": Scenario((*TWO_CARDS, *DYNAMIC, "--epochs", 3), trained=3, scale="dynamic"),
    "one card": Scenario(("--device-list", "2", "--epochs", 2), cards=(2,)),
}


class Bench:
    """The lab with the images, the migrated script and what its own runs did."""

    def __init__(self, lab, data):
        self.lab, self.data = lab, data
        self.script = migrate(SCRIPT).result
        self.clean = functools.cache(self.run)

    def run(self, name) -> Run:
        arguments = [self.two_epochs if a == "two" else a for a in SCENARIOS[name].arguments]
        meeting = ["--addr", "127.0.0.1", "--port", free_port()]
        return self.lab.run(self.script, [self.data, *SETTINGS, *arguments, *meeting])

    @property
    def two_epochs(self):
        return self.clean("dynamic").folder / "checkpoint.pth.tar"


def problems(run, wanted):
    """What is wrong with a run of this script, each with the name of the oracle that saw it."""
    yield from (f"error: {line}" for line in run.error.splitlines())
    if len(run.processes) != len(wanted.cards):
        yield f"processes: {len(run.processes)} trained"
        return
    for card, process in zip(wanted.cards, run.processes, strict=True):
        yield from _problems_of(run, process, card, wanted)
    if len({process["weights"] for process in run.processes}) > 1:
        yield "together: the ranks have different weights"
    yield from _problems_of_files(run, wanted)


def _problems_of(run, process, card, wanted):
    ranks = len(wanted.cards)
    if list(process["devices"]) != [str(card)]:
        yield f"card: used {list(process['devices'])}, not {card}"
    if process["set_device"] != [card]:
        yield f"set_device: {process['set_device']}, not {card}"
    if process["parameters"] != [f"npu:{card}"]:
        yield f"parameters: the optimizer has those on {process['parameters']}"
    shares = [(loader["batch_size"], loader["workers"]) for loader in process["loaders"]]
    if shares != [(BATCH // ranks, -(-WORKERS // ranks))] * 2:
        yield f"shares: batches and workers of {shares}"
    if process["pinned"] or any(loader.get("pin_memory") for loader in process["loaders"]):
        yield f"pinned: {process['pinned']} tensors"
    steps = TRAINING // BATCH
    if process["batches"] != [BATCH // ranks] * (steps * wanted.trained):
        yield f"batches: {process['batches']}"
    tests = -(-VALIDATION // (BATCH // ranks))
    targets = sum(card["int32_targets"] for card in process["devices"].values())
    if targets != (steps + tests) * wanted.trained:
        yield f"int32: {targets} losses with int32 targets"
    if ranks > 1:
        if process["backend"] != "hccl" or not process["collectives"].get("allreduce"):
            yield f"hccl: backend {process['backend']}, {process['collectives']}"
        if process["address"] != f"127.0.0.1:{run.arguments[-1]}":
            yield f"rendezvous: at {process['address']}"
    if [call["loss_scale"] for call in process["amp_calls"]] != ([wanted.scale] if wanted.scale else []):
        yield f"scale: amp.initialize was given {process['amp_calls']}"


def _problems_of_files(run, wanted):
    told = re.findall(r"Acc@5 [\d.]+ of (\d+) images", run.output)
    if told != [str(VALIDATION)] * (wanted.trained * len(wanted.cards)):
        yield f"validated: {told} images"
    path = run.folder / "checkpoint.pth.tar"
    if not path.exists():
        yield "checkpoint: none"
        return
    saved = torch.load(path, map_location="cpu")
    if set(saved) != {"epoch", "arch", "state_dict", "best_acc1", "optimizer", "amp"}:
        yield f"checkpoint: has {sorted(saved)}"
    elif bool(saved["amp"]) != bool(wanted.scale):
        yield f"checkpoint: amp is {saved['amp']}"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    data = images(tmp_path_factory.mktemp("images"), TRAINING, VALIDATION)
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield Bench(lab, data)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_migrated_script_passes_every_oracle(bench, name):
    run = bench.clean(name)
    assert list(problems(run, SCENARIOS[name])) == [], run.output


def test_resumed_it_is_where_it_would_be_uninterrupted(bench):
    resumed, whole = bench.clean("resume"), bench.clean("uninterrupted")
    for one, other in zip(resumed.processes, whole.processes, strict=True):
        assert one["weights"] == other["weights"]
        assert one["amp"] == other["amp"]


def test_steps_that_overflow_are_skipped(bench):
    """The first loss scales do; otherwise the runs with a dynamic scale would show nothing."""
    for process in bench.clean("dynamic").processes:
        assert 2.0**16 > process["amp"]["loss_scaler0"]["loss_scale"] > 1
    for process in bench.clean("train").processes:
        assert process["amp"] == {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": len(process["batches"])}}


def test_on_one_card_it_is_the_script_that_it_was(bench):
    """Float32 on the card gives what the original gives on the CPU, line by line; no batch is smaller here."""
    settings = [bench.data, *SETTINGS, "-b", TRAINING // 2, "--epochs", 2]
    before = bench.lab.run(SCRIPT.read_text(), settings)
    after = bench.lab.run(bench.script, [*settings, "--device-list", "2"])
    assert (before.error, after.error) == ("", "")
    assert list(after.processes[0]["devices"]) == ["2"] and not before.processes[0]["devices"]
    assert after.processes[0]["weights"] == before.processes[0]["weights"]
    first, second = (re.findall(r"\bLoss.*| \* Acc.*", run.output) for run in (before, after))
    assert first == second and len(first) > 4


def test_the_modern_spelling_goes_on_where_it_would_be(bench):
    """The shorter diff, on all four cards, with torch.amp; each card has two images a step."""
    script, saved = migrate(SCRIPT, style="modern").result, "checkpoint.pth.tar"

    def run(*arguments):
        settings = [bench.data, *SETTINGS, *TWO_CARDS[:-2], "--amp", *arguments]
        done = bench.lab.run(script, settings, MASTER_PORT=free_port())
        assert done.error == "" and len(done.processes) == CARDS, done.output
        for card, process in enumerate(done.processes):
            assert list(process["devices"]) == [str(card)] and process["set_device"] == [card]
            assert process["backend"] == "hccl" and process["parameters"] == [f"npu:{card}"]
            assert set(process["batches"]) == {BATCH // CARDS} and process["pinned"] == 0
        (weights,) = {process["weights"] for process in done.processes}
        return done, weights

    two, _ = run("--epochs", 2)
    state = torch.load(two.folder / saved, map_location="cpu")
    assert 1 < state["scaler"]["scale"] < 2.0**16, "the first scales overflow"
    _, resumed = run("--epochs", 3, "--resume", two.folder / saved)
    _, uninterrupted = run("--epochs", 3)
    # DDP's first step has other buckets than later ones, in which four summands meet in another order.
    assert resumed == pytest.approx(uninterrupted, rel=1e-8)
