"""Migrated scripts of every shape run unedited on emulated cards: they train, save, and go on from what they saved.

The originals are notebooks/scripts/imagenet.py and those in tests/scripts. A migrated script prints the losses that its
original prints on the CPU, or those of its own run without an interruption. They run in ranks of the kit, which have
imported PyTorch already; notebook 07 starts scripts as a user does.
"""

import json
import os
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from npu_ranks import free_port, images, needs_npu

import helpers
import platforms.npu
from platforms.migrate import migrate
from platforms.npu.loading import real_torch_npu

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "scripts").glob("*.py"))
SCRIPTS = {path.stem: path for path in FILES if not path.stem.startswith("hvd_")}
SCRIPTS["imagenet"] = ROOT / "notebooks" / "scripts" / "imagenet.py"

TRAINING, VALIDATION, BATCH = 24, 9, 8  # images
SMALL = f"--image-size 32 -b {BATCH} -j 0 --lr 0.01 -p 1 --seed 1"
SPAWN = "--multiprocessing-distributed --world-size 1 --rank 0"
ONE, TWO = "--epochs 1", "--epochs 2"
ON = f"{TWO} --resume checkpoint.pth.tar"
GLOO = {r"\bnccl\b": "gloo", r"torch\.cuda\.set_device\(.*\)": "pass", r", device_ids=\[[^]]*\]": ""}
SPAWNED = {r"\.to\(rank\)": "", "=map_location": '="cpu"', r"torch\.cuda\.device_count\(\)": "2"}


@dataclass(frozen=True)
class Case:
    """A script that runs on cards, and what has to print the same losses.

    Attributes:
        runs: the arguments of its runs, one after the other in one folder.
        like: those of the runs to compare with: of the original, in which `words` ({regular expression: text}) put it
            on the CPU; without `words` of the migrated script on the cards.
        losses: regular expression of the lines, or parts of them, to compare.
        cards: by rank. launcher: what starts the ranks: "torchrun", "slurm", or "" for the script itself.
        noted: part of the advice of a note that has to be followed, as `follow` does to the result.
        refused: what the device refuses, and a note speaks of; moved, the script runs on the CPU as before.
    """

    runs: tuple = ("",)
    like: tuple = ("",)
    words: dict | None = None
    losses: str = r"[Ll]oss\W+\d.*"
    cards: tuple = (0,)
    launcher: str = ""
    style: str = "article"
    noted: str = ""
    follow: dict | None = None
    refused: str = ""


def interrupted(given, options="", **how):
    """An ImageNet script: an epoch, and another from its checkpoint, are two epochs in one."""
    return Case((f"{given} {options} {ONE}", f"{given} {options} {ON}"), (f"{given} {options} {TWO}",), **how)


def on_one_card(given, options="", like="", **how):
    """The same on one card as on the CPU, where it is resumed, too: a resumed run shuffles as in its first epoch."""
    runs = ((f"{given} {more} {ONE}", f"{given} {more} {ON}") for more in (options, like))
    return Case(*runs, {}, **how)


BOTH = {"cards": (0, 1)}
TORCHRUN = BOTH | {"launcher": "torchrun"}
CASES = {
    "imagenet": on_one_card(f"DATA {SMALL}"),
    "imagenet_2020": on_one_card(f"DATA {SMALL}", "--device-list 2", cards=(2,)),
    "imagenet_accelerator": on_one_card(SMALL, like="--no-accel"),
    "imagenet, 2 cards": interrupted(f"DATA {SMALL} {SPAWN}", "--amp", **BOTH),
    "imagenet_2020, 2 cards": interrupted(
        f"DATA {SMALL} {SPAWN}", "--amp --loss-scale -1 --device-list 3,1", cards=(1, 3)
    ),
    "imagenet_2020, modern": interrupted(f"DATA {SMALL} {SPAWN}", "--amp", style="modern", **BOTH),
    "imagenet_accelerator, 2 cards": interrupted(f"{SMALL} {SPAWN}", **BOTH),
    "toy_spawn": Case(
        words=GLOO | SPAWNED,
        losses="^rank.*",
        noted="torch.npu.set_device(card)",
        follow={"    dist.init_": "    torch.npu.set_device(rank)\n    dist.init_"},
        **BOTH,
    ),
    "torchrun_trainer": Case(("2 1", "4 1"), ("4 1",), GLOO | {r"\.to\(self.local_rank\)": ""}, "Epoch.*", **TORCHRUN),
    "slurm_cluster": Case(words={}, cards=(0, 1), launcher="slurm"),
    "wgan_gp": Case(words={}),
    "hogwild": Case(("--cuda",), words={}, refused="share_memory()"),
}


def original(name):
    return SCRIPTS[name.partition(",")[0]]


def replaced(text, words):
    for found, other in (words or {}).items():
        text = re.sub(found, other, text)
    return text


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"), TRAINING, VALIDATION)


def run(case, script, arguments, folder, data):
    """(what each rank printed, what it did) of one run of the text `script` in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text(script)
    for file in folder.glob("process-*"):
        file.unlink()
    env = {"HELPERS_NPU_DEVICES": str(1 + max(1, *case.cards)), "PORT": str(free_port()), "TMPDIR": str(folder)}
    given = case.launcher, arguments.replace("DATA", str(data)).split(), folder
    helpers.launch(play, len(case.cards), *given, env=env, threads=1, timeout=900)
    said = [file.read_text() for file in sorted(folder.glob("process-*.txt"))]
    return said, [json.loads(file.read_text()) for file in sorted(folder.glob("process-*.json"))]


OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OF_A_LAUNCHER += ("TORCHELASTIC_USE_AGENT_STORE",)


def play(launcher, arguments, folder):
    """In a rank: the script as the program of this process; the processes that it would spawn are the ranks."""
    import torch.multiprocessing as mp

    from platforms.npu import counts

    platforms.npu.load()
    torch.manual_seed(0)
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
    sys.argv = ["main.py", *arguments]
    mp.spawn = lambda fn, args=(), nprocs=1, **_: fn(int(number), *args)
    runpy.run_path("main.py", run_name="__main__")
    Path(f"process-{number}.json").write_text(json.dumps(counts.of_process()))


def losses(case, said):
    """By rank, over all runs."""
    return [re.findall(case.losses, "\n".join(parts), flags=re.MULTILINE) for parts in zip(*said, strict=True)]


def assert_same(found, expected):
    """The same words, and numbers that differ by no more than sums whose order depends on where tensors lie."""
    number = r"\d+\.\d+(?:[eE][-+]?\d+)?"
    assert [re.sub(number, "#", line) for line in found] == [re.sub(number, "#", line) for line in expected]
    for one, other in zip(found, expected, strict=True):
        values = [float(value) for value in re.findall(number, other)]
        assert [float(value) for value in re.findall(number, one)] == pytest.approx(values, rel=1e-3, abs=1e-6)


@needs_npu
@pytest.mark.skipif(real_torch_npu(), reason="only the emulated device counts what is done on it")
@pytest.mark.parametrize("name", [it if it == "wgan_gp" else pytest.param(it, marks=pytest.mark.long) for it in CASES])
def test_it_trains_as_before_saves_and_goes_on(name, data, tmp_path):
    case, moved = CASES[name], migrate(original(name), style=CASES[name].style)
    result = replaced(moved.result, case.follow)
    cpu = None if case.words is None else replaced(original(name).read_text(), case.words)
    likes = [run(case, cpu or result, it, tmp_path / "like", data) for it in case.like]
    expected = losses(case, [said for said, _ in likes])
    assert sum(map(len, expected)) > 1 and not (cpu and any(it["devices"] for _, did in likes for it in did))
    assert not case.noted or [note for note in moved.notes if case.noted in note.advice]
    if case.refused:
        assert [note for note in moved.notes if case.refused in note.text]
        with pytest.raises(helpers.RankError, match=f"{re.escape(case.refused)}(.|\n)*DistributedDataParallel"):
            run(case, result, case.runs[0], tmp_path / "card", data)
        assert_same(*losses(case, [run(case, result, "", tmp_path / "moved", data)[0]]), *expected)
        return
    done = [run(case, result, it, tmp_path / "card", data) for it in case.runs]
    for found, wanted in zip(losses(case, [said for said, _ in done]), expected, strict=True):
        assert_same(found, wanted)
    for _, processes in done:
        assert [list(process["devices"]) for process in processes] == [[str(card)] for card in case.cards]
        for process in processes:
            assert all(card["ops"] > 50 for card in process["devices"].values()) and process["pinned"] == 0
            assert len(case.cards) == 1 or process["collectives"]["allreduce"] > 0
    if "imagenet" in name:
        shared = (
            len(case.cards) > 1 and "2020" not in name
        )  # the validation: a batch of each rank, and what is left over
        tests = 2 if shared else -(-VALIDATION // (BATCH // len(case.cards)))
        imagenet_did(case, done[-1], tests, torch.load(tmp_path / "card" / "checkpoint.pth.tar", map_location="cpu"))


def imagenet_did(case, done, tests, saved):
    """The second epoch: shares of the batch, int32 labels, cards, all images validated, the scale in the checkpoint."""
    (said, processes), given = done, case.runs[-1]
    for card, text, process in zip(case.cards, said, processes, strict=True):
        assert process["devices"][str(card)]["int32_targets"] == TRAINING // BATCH + tests and process[
            "set_device"
        ] == [card]
        assert "DATA" not in given or re.findall(r"Acc@5 \S+ of (\d+) images", text)[-1:] == [str(VALIDATION)]
    assert saved["epoch"] == 2 and {"state_dict", "optimizer"} < set(saved)
    scale = (
        saved["scaler"]["scale"]
        if case.style == "modern"
        else (saved["amp"] or {}).get("loss_scaler0", {}).get("loss_scale")
    )
    if "--amp" not in given:
        assert scale is None
    elif case.style == "modern" or "--loss-scale -1" in given:
        assert 1 < scale < 2**16, "the first scales overflow"
    else:
        assert scale == 1024


def test_every_script_is_run():
    assert {original(name) for name in CASES} == set(SCRIPTS.values())
