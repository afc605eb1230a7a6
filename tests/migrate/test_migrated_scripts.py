"""Migrated scripts of every shape run unedited on emulated cards: they train, save, and go on from what they saved.

The originals are helpers/migrate/examples/imagenet.py and those in tests/scripts. Where an original can
do the same on the CPU, the migrated one has to print the same losses to the last digit.
"""

import contextlib
import functools
import io
import json
import os
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from npu_lab import free_port, images
from npu_ranks import needs_npu

import helpers.npu
from helpers.migrate import migrate
from helpers.npu.loading import real_torch_npu

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "scripts").glob("*.py"))
SCRIPTS = {path.stem: path for path in FILES if not path.stem.startswith("hvd_")}
SCRIPTS["imagenet"] = ROOT / "helpers" / "migrate" / "examples" / "imagenet.py"

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
        again: whether the first run trains both epochs, and the second starts from its first checkpoint.
        gone: the second checkpoint, where it has to be out of the way for that.
        losses: regular expression of the lines, or parts of them, to compare.
        cards: how many ranks there are.
        torchrun: whether torchrun starts them, or the script its own processes.
        cpu: arguments of runs of the original on the CPU that print the same.
        whole: arguments of a run of the migrated script that prints the same without an interruption.
        style: of the migration.
    """

    first: str
    then: str
    losses: str = STEP
    cards: int = 1
    torchrun: bool = False
    cpu: tuple = ()
    whole: str = ""
    again: bool = False
    gone: str = ""
    style: str = "article"


CASES = {
    "cifar": Case(ONE, f"{TWO} --resume", "^(?:epoch|test) .*", cpu=(TWO,)),
    "mnist": Case(ONE, f"{TWO} --resume mnist_cnn.pt", "^(?:Train|Test).*", cpu=(TWO,)),
    "dcgan": Case(  # it draws its weights on the device, which has a generator of its own
        "--cuda --niter 2",
        "--cuda --niter 2 --netG netG_epoch_0.pth --netD netD_epoch_0.pth --resume optimizers_epoch_0.pth",
        "loss_D.*",
        again=True,
    ),
    "mingpt": Case(ONE, f"{TWO} --resume", "^epoch .*", whole=TWO),
    # Resumed, these two shuffle as in their first epoch, so the original has to be resumed as well.
    "imagenet": Case(f"DATA {SMALL} {ONE}", f"DATA {SMALL} {ON}"),
    "imagenet_accelerator": Case(f"{SMALL} {ONE}", f"{SMALL} {ON}", cpu=(f"{SMALL} {ONE}", f"{SMALL} {ON}")),
    "detection": Case(ONE, f"{TWO} --resume checkpoint.pth", r"loss \d\S*|^Test.*", cpu=(f"{TWO} --device cpu",)),
    "horovod_like": Case(TWO, TWO, "^T.*", torchrun=True, again=True, gone="checkpoint-2.pth.tar"),
    "imagenet_2020, 2 cards": Case(
        f"DATA {SMALL} {SPAWN} --device-list 1,0 --amp {ONE}",
        f"DATA {SMALL} {SPAWN} --device-list 1,0 --amp {ON}",
        cards=2,
    ),
    "imagenet_2020, 2 cards, modern": Case(
        f"DATA {SMALL} --amp {ONE}", f"DATA {SMALL} --amp {ON}", cards=2, torchrun=True, style="modern"
    ),
    "imagenet, 2 cards": Case(f"DATA {SMALL} {SPAWN} {ONE}", f"DATA {SMALL} {SPAWN} {ON}", cards=2),
    "imagenet_accelerator, 2 cards": Case(f"{SMALL} {SPAWN} {ONE}", f"{SMALL} {SPAWN} {ON}", cards=2),
    "detection, 2 cards": Case(
        f"--amp {ONE}",
        f"--amp {TWO} --resume checkpoint.pth",
        r"loss \d\S*|^Test.*",
        cards=2,
        torchrun=True,
        whole=f"--amp {TWO}",
    ),
    "horovod_like, 2 cards": Case(TWO, TWO, "^T.*", cards=2, torchrun=True, again=True, gone="checkpoint-2.pth.tar"),
}
QUICK = ("mnist", "imagenet, 2 cards")  # the others are for the long tests


def original(name):
    return SCRIPTS[name.partition(",")[0]]


@functools.cache
def migrated(path, style):
    return migrate(path, style=style)


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
    (folder / "main.py").write_text(migrated(original(name), case.style).result)
    (folder / "whole").mkdir()
    for where, arguments in ((folder, case.first), (folder, case.then), (folder / "whole", case.whole)):
        if not arguments:
            continue
        if case.gone:
            (folder / case.gone).unlink(missing_ok=True)
        finished.append(in_ranks(case, folder / "main.py", arguments.replace("DATA", str(data)).split(), where))
    return finished


def in_ranks(case, script, arguments, folder):
    environment = {"HELPERS_NPU_DEVICES": "2", "PORT": str(free_port())}
    for file in folder.glob("process-*"):
        file.unlink()
    given = case.torchrun, str(script), arguments, folder
    helpers.launch(play, case.cards, *given, env=environment, threads=1, timeout=300)
    output = "".join(file.read_text() for file in sorted(folder.glob("process-*.txt")))
    processes = [json.loads(file.read_text()) for file in sorted(folder.glob("process-*.json"))]
    return helpers.npu.Finished(0, output, 0.0, processes)


def play(torchrun, script, arguments, folder):
    """In a rank: the script as the program of this process; the processes that it would spawn are the ranks."""
    import torch.multiprocessing as mp

    from helpers.npu import counts

    helpers.npu.load()
    number = os.environ["RANK"]
    if not torchrun:
        for name in OF_A_LAUNCHER:
            os.environ.pop(name, None)
        os.environ["MASTER_PORT"] = os.environ["PORT"]
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


@needs_npu
@pytest.mark.skipif(real_torch_npu(), reason="only the emulated device counts what is done on it")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_it_trains_saves_and_goes_on(name, data, tmp_path, monkeypatch):
    case, folder = CASES[name], tmp_path / "case"
    folder.mkdir()
    finished = run(name, data, folder)
    for one in finished:
        one.check()
        assert sorted(list(process["devices"]) for process in one.processes) == [[str(c)] for c in range(case.cards)]
        for process in one.processes:
            assert all(card["ops"] > 50 for card in process["devices"].values())
            assert process["pinned"] == 0
            assert case.cards == 1 or process["collectives"]["allreduce"] > 0

    def losses(output):
        return re.findall(case.losses, output, flags=re.MULTILINE)

    first, then = (losses(one.output) for one in finished[:2])
    assert first and then
    if case.again:
        assert 2 * len(then) == len(first) and then == first[-len(then) :]
    elif case.cpu:
        assert first + then == losses(on_the_cpu(name, tmp_path, monkeypatch))
    elif case.whole:
        assert first + then == losses(finished[2].output)
    else:  # what they start with on two cards is random
        epochs = [set(re.findall(r"[Ee]poch:? \[?(\d)\]?(?:\[| batch)", one.output)) for one in finished]
        assert epochs == [{"0"}, {"1"}]
    if "imagenet" in name:
        assert torch.load(folder / "checkpoint.pth.tar", map_location="cpu")["epoch"] == 2


def test_every_script_is_run():
    assert {original(name) for name in CASES} == set(SCRIPTS.values())
