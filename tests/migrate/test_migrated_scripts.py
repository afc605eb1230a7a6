"""Migrated scripts of every shape run unedited on emulated cards: they train, save, and go on from what they saved.

The originals are notebooks/scripts/imagenet.py and those in tests/scripts. Where an original can
do the same on the CPU, the migrated one has to print the same losses.
"""

import contextlib
import io
import json
import os
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from npu_lab import free_port, images
from npu_ranks import needs_npu

import helpers
import platforms.npu
from platforms.migrate import migrate
from platforms.npu.loading import real_torch_npu

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "scripts").glob("*.py"))
SCRIPTS = {path.stem: path for path in FILES if not path.stem.startswith("hvd_")}
SCRIPTS["imagenet"] = ROOT / "notebooks" / "scripts" / "imagenet.py"

# Options that several scripts share.
SMALL = "--image-size 32 -b 8 -j 0 --lr 0.01 -p 1 --seed 1"
SPAWN = "--multiprocessing-distributed --world-size 1 --rank 0"
ONE, TWO = "--epochs 1", "--epochs 2"
ON = f"{TWO} --resume checkpoint.pth.tar"
STEP = r"[Ll]oss \d.*"


@dataclass(frozen=True)
class Case:
    """A script that is run twice in one folder: it trains an epoch, then goes on from its checkpoint for another.

    Attributes:
        first, then: the arguments of the two runs.
        losses: regular expression of the lines, or parts of them, to compare.
        cards: how many ranks there are.
        launcher: what starts them: "torchrun", "slurm", or "" for the script itself.
        cpu: arguments of runs of the original on the CPU that print the same.
        whole: arguments of a run of the migrated script that prints the same without an interruption.
    """

    first: str
    then: str
    losses: str = STEP
    cards: int = 1
    launcher: str = ""
    cpu: tuple = ()
    whole: str = ""


CASES = {
    "mingpt": Case(ONE, f"{TWO} --resume", "^epoch .*", whole=TWO),
    # Resumed, these two shuffle as in their first epoch, so the original has to be resumed as well.
    "imagenet": Case(f"DATA {SMALL} {ONE}", f"DATA {SMALL} {ON}"),
    "imagenet_accelerator": Case(f"{SMALL} {ONE}", f"{SMALL} {ON}", cpu=(f"{SMALL} {ONE}", f"{SMALL} {ON}")),
    "detection": Case(ONE, f"{TWO} --resume checkpoint.pth", r"loss \d\S*|^Test.*", cpu=(f"{TWO} --device cpu",)),
    "imagenet, 2 cards": Case(f"DATA {SMALL} {SPAWN} {ONE}", f"DATA {SMALL} {SPAWN} {ON}", cards=2),
    "imagenet_accelerator, 2 cards": Case(f"{SMALL} {SPAWN} {ONE}", f"{SMALL} {SPAWN} {ON}", cards=2),
    "detection, 2 cards": Case(
        f"--amp {ONE}",
        f"--amp {TWO} --resume checkpoint.pth",
        r"loss \d\S*|^Test.*",
        cards=2,
        launcher="torchrun",
        whole=f"--amp {TWO}",
    ),
}


def original(name):
    return SCRIPTS[name.partition(",")[0]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"), training=24, validation=9)


# The scripts run in ranks of the kit, which have imported PyTorch already: a process of their own costs 3 CPU seconds.
# Started as by a user, imagenet.py is in test_migration_steps.py (mp.spawn) and in notebook 07 (mp.spawn and torchrun).
OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OF_A_LAUNCHER += ("TORCHELASTIC_USE_AGENT_STORE",)


def run(name, data, folder):
    """The case's runs on the cards: the first, the second, and the whole if there is one."""
    case, finished = CASES[name], []
    (folder / "main.py").write_text(migrate(original(name)).result)
    (folder / "whole").mkdir()
    for where, arguments in ((folder, case.first), (folder, case.then), (folder / "whole", case.whole)):
        if not arguments:
            continue
        finished.append(in_ranks(case, folder / "main.py", arguments.replace("DATA", str(data)).split(), where))
    return finished


def in_ranks(case, script, arguments, folder):
    environment = {"HELPERS_NPU_DEVICES": "2", "PORT": str(free_port()), "TMPDIR": str(folder)}
    for file in folder.glob("process-*"):
        file.unlink()
    given = case.launcher, str(script), arguments, folder
    helpers.launch(play, case.cards, *given, env=environment, threads=1, timeout=900)
    output = "".join(file.read_text() for file in sorted(folder.glob("process-*.txt")))
    processes = [json.loads(file.read_text()) for file in sorted(folder.glob("process-*.json"))]
    return SimpleNamespace(output=output, processes=processes)


def play(launcher, script, arguments, folder):
    """In a rank: the script as the program of this process; the processes that it would spawn are the ranks."""
    import torch.multiprocessing as mp

    from platforms.npu import counts

    platforms.npu.load()
    number = os.environ["RANK"]
    if launcher != "torchrun":
        ranks = os.environ["WORLD_SIZE"]
        for name in OF_A_LAUNCHER:
            os.environ.pop(name, None)
        os.environ["MASTER_PORT"] = os.environ["PORT"]
    if launcher == "slurm":
        os.environ.update(SLURM_JOB_ID="1", SLURM_PROCID=number, SLURM_NNODES="1", SLURM_TASKS_PER_NODE=ranks)
    os.chdir(folder)
    output = os.open(f"process-{number}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
    sys.argv = [script, *arguments]
    mp.spawn = lambda fn, args=(), nprocs=1, **_: fn(int(number), *args)
    runpy.run_path(script, run_name="__main__")
    Path(f"process-{number}.json").write_text(json.dumps(counts.of_process()))


def on_the_cpu(name, folder, monkeypatch):
    """What the original prints here, on the CPU, with one thread as on the cards."""
    monkeypatch.chdir(folder)
    threads, said = torch.get_num_threads(), io.StringIO()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(said):
            for arguments in CASES[name].cpu:
                monkeypatch.setattr(sys, "argv", [name, *arguments.split()])
                runpy.run_path(str(original(name)), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    return said.getvalue()


def assert_same(found, expected):
    """The same words, and numbers that differ by no more than sums whose order depends on where tensors lie."""
    number = r"\d+\.\d+(?:[eE][-+]?\d+)?"
    assert [re.sub(number, "#", line) for line in found] == [re.sub(number, "#", line) for line in expected]
    for one, other in zip(found, expected, strict=True):
        assert list(map(float, re.findall(number, one))) == pytest.approx(
            list(map(float, re.findall(number, other))), rel=1e-3, abs=1e-6
        )


@needs_npu
@pytest.mark.skipif(real_torch_npu(), reason="only the emulated device counts what is done on it")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [  # notebook 07 does the same with the ImageNet example
        name if name == "mingpt" else pytest.param(name, marks=pytest.mark.long) for name in CASES
    ],
)
def test_it_trains_saves_and_goes_on(name, data, tmp_path, monkeypatch):
    case, folder = CASES[name], tmp_path / "case"
    folder.mkdir()
    finished = run(name, data, folder)
    for one in finished:
        assert sorted(list(process["devices"]) for process in one.processes) == [[str(c)] for c in range(case.cards)]
        for process in one.processes:
            assert all(card["ops"] > 50 for card in process["devices"].values())
            assert process["pinned"] == 0
            assert case.cards == 1 or process["collectives"]["allreduce"] > 0

    def losses(output):
        return re.findall(case.losses, output, flags=re.MULTILINE)

    first, then = (losses(one.output) for one in finished[:2])
    assert first and then
    if case.cpu:
        assert_same(first + then, losses(on_the_cpu(name, tmp_path, monkeypatch)))
    elif case.whole:
        assert_same(first + then, losses(finished[2].output))
    else:  # what they start with on two cards is random
        epochs = [set(re.findall(r"[Ee]poch:? \[?(\d)\]?(?:\[| batch)", one.output)) for one in finished]
        assert epochs == [{"0"}, {"1"}]
    if "imagenet" in name:
        assert torch.load(folder / "checkpoint.pth.tar", map_location="cpu")["epoch"] == 2


@dataclass(frozen=True)
class Twin:
    """A script of which the migrated run prints the losses that the original prints on the CPU.

    Attributes:
        cards, launcher, losses: as of a Case.
        first: the arguments.
        then: those of a second run in the same folder.
        cpu: the arguments of the original, and what has to be replaced in it: {regular expression: text}.
        refused: what the emulated device refuses with a sentence, and migrate has a note on; the migrated script then
            runs with the arguments of the original, on the CPU.
        noted, follow: the advice of a note that has to be followed, and how: (regular expression, text).
    """

    first: str = ""
    then: str = ""
    cpu: tuple = ("", {})
    losses: str = r"[Ll]oss.*"
    cards: int = 1
    launcher: str = ""
    refused: str = ""
    noted: str = ""
    follow: tuple = ("", "")


GLOO = {r"\bnccl\b": "gloo", r"torch\.cuda\.set_device\(.*\)": "pass", r", device_ids=\[[^]]*\]": ""}
OFF = {r"\.cuda\([^)]*\)": "", r"torch\.cuda\.(synchronize|max_memory_allocated|get_device_name)\(0?\)": "0"}
SPAWNED = {r"\.to\(rank\)": "", "=map_location": '="cpu"', r"torch\.cuda\.device_count\(\)": "2"}
SWAP = "torch.__future__.set_swap_module_params_on_conversion(True)"
APEX = {" +from apex.parallel .*\n": "", "= DistributedData": "= torch.nn.parallel.DistributedData"}
TWINS = {
    "toy_spawn": Twin(
        cards=2,
        cpu=("", GLOO | SPAWNED),
        losses="^rank.*",
        noted="torch.npu.set_device(card)",
        follow=("    dist.init_", "    torch.npu.set_device(rank)\n    dist.init_"),
    ),
    "torchrun_trainer": Twin(
        "2 1",
        "4 1",
        ("4 1", GLOO | {r"\.to\(self.local_rank\)": ""}),
        "Epoch.*",
        cards=2,
        launcher="torchrun",
        noted=SWAP,
        follow=(r"\nimport torch_npu.*", r"\g<0>\n" + SWAP),
    ),
    "apex_distributed": Twin(cards=2, launcher="torchrun", cpu=("", GLOO | OFF | APEX)),
    "slurm_cluster": Twin(cards=2, launcher="slurm"),
    "unet_segment": Twin(losses="^INFO: epoch.*"),
    "wgan_gp": Twin(),
    "ssd_boxes": Twin(losses="Loss.*"),
    "hogwild": Twin("--cuda", refused="share_memory()"),
}


@needs_npu
@pytest.mark.long
@pytest.mark.skipif(real_torch_npu(), reason="only the emulated device counts what is done on it")
@pytest.mark.parametrize("name", TWINS)
def test_its_losses_are_those_of_the_cpu(name, tmp_path):
    twin, (cpu, words) = TWINS[name], TWINS[name].cpu
    text = original(name).read_text()
    for found, other in words.items():
        text = re.sub(found, other, text)
    moved = migrate(original(name))

    def losses(folder, text, *runs):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.py").write_text(text)
        finished = [in_ranks(twin, tmp_path / folder / "main.py", it.split(), tmp_path / folder) for it in runs]
        found = [line for it in finished for line in re.findall(twin.losses, it.output, flags=re.MULTILINE)]
        return sorted(found), [process["devices"] for it in finished for process in it.processes]

    expected, devices = losses("cpu", text, cpu)
    assert len(expected) > 1 and not any(devices)
    if twin.refused:
        assert [note for note in moved.notes if twin.refused in note.text]
        with pytest.raises(helpers.RankError) as refused:
            losses("card", moved.result, twin.first)
        assert twin.refused in str(refused.value) and "DistributedDataParallel" in str(refused.value)
        assert_same(losses("moved", moved.result, cpu)[0], expected)
        return
    result = moved.result
    if twin.noted:
        assert [note for note in moved.notes if twin.noted in note.advice]
        result = re.sub(*twin.follow, result)
    found, devices = losses("card", result, twin.first, *filter(None, [twin.then]))
    assert_same(found, expected)
    assert sorted(map(list, devices)) == sorted([[str(card)] for card in range(twin.cards)] * (1 + bool(twin.then)))


def test_every_script_is_run():
    elsewhere = {SCRIPTS["imagenet_2020"]}  # in test_migration_steps.py
    assert {original(name) for name in (*CASES, *TWINS)} | elsewhere == set(SCRIPTS.values())
