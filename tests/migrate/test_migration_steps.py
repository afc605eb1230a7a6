"""Every step of the migration matters: a script that lacks one is found out, by an error or by what it did.

The migrated script and its mutants (mutants.py) run in the lab (npu_lab.py) on two of four emulated
cards. `problems` holds every oracle; the script itself passes them all.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from mutants import MUTANTS, of_cuda
from npu_lab import CARDS, Lab, Run, free_port, images
from npu_ranks import needs_npu

import helpers.npu
from helpers.migrate import migrate
from helpers.migrate.steps import STEPS
from helpers.npu.loading import real_torch_npu

pytestmark = [
    pytest.mark.long,  # notebook 07 leaves each step out of the guide's script, and trains what migrate makes of it
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
    refused: str = ""  # what an error has to say


SCENARIOS = {
    "train": Scenario((*TWO_CARDS, "--amp", "--epochs", 2), scale=1024.0),
    "dynamic": Scenario((*TWO_CARDS, *DYNAMIC, "--epochs", 2), scale="dynamic"),
    "resume": Scenario((*TWO_CARDS, *DYNAMIC, "--epochs", 3, "--resume", "two"), trained=1, scale="dynamic"),
    "uninterrupted": Scenario((*TWO_CARDS, *DYNAMIC, "--epochs", 3), trained=3, scale="dynamic"),
    "one card": Scenario(("--device-list", "2", "--epochs", 2), cards=(2,)),
    "schedule": Scenario(("--device-list", "2", "--epochs", 60), cards=(2,), trained=60),
    "card twice": Scenario((*TWO_CARDS[:-1], "1,1"), refused="--device-list 1,1 names a card twice"),
    "no such card": Scenario((*TWO_CARDS[:-1], "0,9"), refused="--device-list 0,9: this host has 4 cards"),
}


class Clean(dict):
    """What the migrated script does in a scenario, by name; it is run when it is first asked for."""

    def __init__(self, run):
        self._run = run

    def __missing__(self, name):
        self[name] = self._run(name)
        return self[name]


class Bench:
    """The lab with the images, the migrated script and what its own runs did."""

    def __init__(self, lab, data):
        self.lab, self.data = lab, data
        self.migration = migrate(SCRIPT)
        self.script = self.migration.result
        self.clean = Clean(lambda name: self.run(self.script, name))

    def run(self, source, name) -> Run:
        arguments = [self.two_epochs if a == "two" else a for a in SCENARIOS[name].arguments]
        meeting = ["--addr", "127.0.0.1", "--port", free_port()]
        return self.lab.run(source, [self.data, *SETTINGS, *arguments, *meeting], schedule=name == "schedule")

    @property
    def two_epochs(self):
        return self.clean["dynamic"].folder / "checkpoint.pth.tar"

    def problems(self, run, name):
        """What is wrong with a run of this script, each with the name of the oracle that saw it."""
        wanted, clean = SCENARIOS[name], self.clean[name]
        if wanted.refused:
            if wanted.refused not in run.error:
                yield f"refusal: {run.error or 'none'}"
            return
        yield from (f"error: {line}" for line in run.error.splitlines())
        if len(run.processes) != len(wanted.cards):
            yield f"processes: {len(run.processes)} trained"
            return
        for card, process in zip(wanted.cards, run.processes, strict=True):
            yield from self._problems_of(run, process, card, name)
        if len({process["weights"] for process in run.processes}) > 1:
            yield "together: the ranks have different weights"
        yield from (f"cuda: {text} is left" for text in of_cuda(ast.parse((run.folder / "main.py").read_text())))
        if name == "schedule":
            return
        yield from _problems_of_files(run, wanted)
        for what in ("weights", "amp", "kernels"):
            done, right = ([_fact(p, what) for p in processes] for processes in (run.processes, clean.processes))
            if done != right:
                yield f"{what}: {done}, not {right}"

    def _problems_of(self, run, process, card, name):
        wanted = SCENARIOS[name]
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
        steps = 1 if name == "schedule" else TRAINING // BATCH
        if process["rates"] != pytest.approx([rate for rate in _rates(wanted) for _ in range(steps)]):
            yield f"schedule: {process['rates']}"
        if name == "schedule":
            return
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


NAMED = {f"{mutant.step} {mutant.name}": mutant for mutant in MUTANTS}


def _rates(wanted):
    """The learning rate of every epoch that is trained: it falls to a tenth after 30 epochs."""
    return [0.01 * 0.1 ** (epoch // 30) for epoch in range(wanted.trained)]


def _fact(process, what):
    return sum(card["kernels"] for card in process["devices"].values()) if what == "kernels" else process[what]


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
    run = bench.clean[name]
    assert list(bench.problems(run, name)) == [], run.output


def test_resumed_it_is_where_it_would_be_uninterrupted(bench):
    resumed, whole = bench.clean["resume"], bench.clean["uninterrupted"]
    for one, other in zip(resumed.processes, whole.processes, strict=True):
        assert one["weights"] == other["weights"]
        assert one["amp"] == other["amp"]


def test_steps_that_overflow_are_skipped(bench):
    """The first loss scales do; otherwise the runs with a dynamic scale would show nothing."""
    for process in bench.clean["dynamic"].processes:
        assert 2.0**16 > process["amp"]["loss_scaler0"]["loss_scale"] > 1
    for process in bench.clean["train"].processes:
        assert process["amp"] == {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": len(process["rates"])}}


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


def test_the_lab_shows_what_a_run_of_its_own_does(bench, tmp_path):
    """Python started anew, processes spawned, a model of torchvision's.

    No loading processes: those of a spawned process are spawned too, and would import everything again.
    """
    script = tmp_path / "main.py"
    script.write_text(bench.script)
    meeting = ["--addr", "127.0.0.1", "--port", free_port()]
    arguments = [bench.data, *SETTINGS, *SCENARIOS["train"].arguments, "-a", "squeezenet1_1", "-j", 0, *meeting]
    run = helpers.npu.run([script, *arguments], devices=CARDS, cwd=tmp_path, timeout=300, echo=None).check()
    for own, quick in zip(run.processes, bench.clean["train"].processes, strict=True):
        for fact in ("rank", "set_device", "pinned", "amp"):
            assert own[fact] == quick[fact]
        assert list(own["devices"]) == list(quick["devices"])
        assert set(own["collectives"]) == set(quick["collectives"])
        targets = [sum(card["int32_targets"] for card in process["devices"].values()) for process in (own, quick)]
        assert targets[0] == targets[1] > 0
    assert (tmp_path / "checkpoint.pth.tar").exists()


def test_a_script_without_torch_npu_has_no_device(bench, tmp_path):
    """Step 1 in a process of its own: in the lab, torch_npu is there already."""
    source = re.sub(r"^import torch_npu.*\n", "", bench.script, flags=re.MULTILINE)
    assert source != bench.script
    (tmp_path / "main.py").write_text(source)
    arguments = [bench.data, *SETTINGS, "--device-list", "2"]
    run = helpers.npu.run([tmp_path / "main.py", *arguments], devices=CARDS, cwd=tmp_path, timeout=300, echo=None)
    assert run.returncode and "npu" in run.error


@pytest.mark.parametrize("name", NAMED)
def test_a_script_without_a_step_is_found_out(bench, name):
    mutant = NAMED[name]
    source = mutant.apply(bench.script)
    run = bench.run(source, mutant.scenario)
    found = list(bench.problems(run, mutant.scenario))
    assert any(re.search(mutant.told, problem) for problem in found), f"{found}\n{run.output}"


def test_every_step_has_its_mutants():
    assert {mutant.step for mutant in MUTANTS} == {step.number for step in STEPS} - {16}  # the command
    assert len(MUTANTS) >= 20 and len(NAMED) == len(MUTANTS)
