"""Prepared sets: right content, whole or absent whatever happens, and a command that says what to do."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from helpers.data import prepare, recipes
from helpers.data.recipes import RECIPES, Recipe
from helpers.data.sets import DataMissing, ensure, load

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Mock sets of few images."""
    for name, *sizes in (("mock", 2003, 400, 32), ("imagenet-mock", 43, 10, 224)):
        monkeypatch.setitem(RECIPES, name, Recipe("small", functools.partial(recipes.make_mock, *sizes), sizes[0]))


def partial(root):
    return [path.name for path in Path(root).glob(".*")]


# --- what is in the sets --------------------------------------------------------------------


def test_digits_are_scikit_learns_in_cifar_shape(tmp_path):
    from sklearn.datasets import load_digits

    prepare.prepare("digits", tmp_path)
    train, test = load("digits", "train", tmp_path), load("digits", "test", tmp_path)
    assert (len(train), len(test)) == (1437, 360) and len(train) == RECIPES["digits"].images
    images = torch.cat([train.images, test.images])
    assert images.shape == (1797, 3, 32, 32) and images.dtype == torch.uint8
    assert train.labels.dtype == torch.int64 and not train.flip
    inner = images[:, 0, 4:28, 4:28]
    source = load_digits()
    # The centre of every enlarged pixel is the pixel itself: nothing lost, nothing twice.
    back = (inner[:, 1::3, 1::3].double() * 16 / 255).round().flatten(1)
    pairs = sorted(zip(back.tolist(), torch.cat([train.labels, test.labels]).tolist(), strict=True))
    assert pairs == sorted(zip(source.data.tolist(), source.target.tolist(), strict=True))
    share = test.labels.bincount() / torch.from_numpy(source.target).bincount()
    assert (share - 0.2).abs().max() < 0.01


@pytest.mark.parametrize("name, sizes, pixels", [("mock", (2003, 400), 32), ("imagenet-mock", (43, 10), 224)])
def test_mock_sets_are_balanced_and_described(tmp_path, name, sizes, pixels):
    prepare.prepare(name, tmp_path)
    train, test = load(name, "train", tmp_path), load(name, "test", tmp_path)
    for n, found in zip(sizes, (train, test), strict=True):
        assert found.images.shape == (n, 3, pixels, pixels) and found.images.dtype == torch.uint8
        counts = found.labels.bincount(minlength=10)
        assert counts.max() - counts.min() <= 1 and found.flip and len(found.classes) == 10
    values = train.images.double().div(255).transpose(0, 1).flatten(1)
    assert train.mean == pytest.approx(values.mean(1).tolist(), abs=1e-6)
    assert train.std == pytest.approx(values.std(1, correction=0).tolist(), abs=1e-6)


class Source:
    """In the place of torchvision's CIFAR10: twenty pictures a split."""

    url, classes = CIFAR10.url, list("abcdefghij")

    def __init__(self, root, train, download):
        self.data = np.random.RandomState(train).randint(0, 256, (20, 32, 32, 3), np.uint8)
        self.targets = list(range(10)) * 2


def test_cifar10_is_torchvisions(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.CIFAR10", Source)
    prepare.prepare("cifar10", tmp_path)
    test = load("cifar10", "test", tmp_path)
    assert test.images.shape == (20, 3, 32, 32) and test.classes == tuple("abcdefghij") and test.flip
    assert torch.equal(test.images[3, 1], torch.from_numpy(Source(None, False, True).data[3, :, :, 1]))
    assert test.labels.tolist() == list(range(10)) * 2


def test_a_download_that_fails_or_a_lacking_module_is_named_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    def fails(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(CIFAR10, "download", fails)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for name, words in (("cifar10", CIFAR10.url), ("digits", "sklearn")):
        assert prepare.main([name, "--root", str(tmp_path)]) == 1
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and words in message and list(tmp_path.iterdir()) == []


# --- repeated, damaged, interrupted, at once ------------------------------------------------


def test_a_second_run_changes_nothing_and_another_version_is_made_anew(tmp_path, monkeypatch):
    folder = prepare.prepare("mock", tmp_path)
    before = {path: path.stat() for path in folder.iterdir()}
    prepare.prepare("mock", tmp_path)
    assert {path: path.stat() for path in folder.iterdir()} == before
    monkeypatch.setitem(RECIPES, "mock", Recipe("newer", lambda: recipes.make_mock(20, 10), 20, version=9))
    with pytest.raises(DataMissing, match="version"):
        load("mock", "train", tmp_path)
    prepare.prepare("mock", tmp_path)
    assert len(load("mock", "train", tmp_path)) == 20 and not partial(tmp_path)


DAMAGE = {
    "a truncated file": lambda folder: os.truncate(folder / "train_images.npy", 1000),
    "a missing file": lambda folder: (folder / "train_labels.npy").unlink(),
    "half a manifest": lambda folder: os.truncate(folder / "MANIFEST.json", 50),
    "an empty manifest": lambda folder: (folder / "MANIFEST.json").write_text("[]"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_said_with_the_command_that_helps(tmp_path, kind):
    DAMAGE[kind](prepare.prepare("digits", tmp_path))
    with pytest.raises(DataMissing, match=r"(?s)damaged.*digits --root"):
        load("digits", "train", tmp_path)
    if "file" in kind:
        shutil.rmtree(tmp_path / "digits")
    ensure("digits", tmp_path)
    assert len(load("digits", "train", tmp_path)) == 1437


def command(*arguments, **options):
    line = [sys.executable, "-m", "helpers.data.prepare", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO, **options)


@pytest.mark.long
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_stopped_while_writing(tmp_path, number, code):
    # A shell's background jobs, and so perhaps these tests, start with SIGINT ignored.
    process = command("mock", "--root", tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob(".mock.*/new/*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code and "Traceback" not in err
    assert bool(partial(tmp_path)) == (number == signal.SIGKILL)
    with pytest.raises(DataMissing):
        load("mock", "train", tmp_path)
    ensure("mock", tmp_path)
    assert len(load("mock", "train", tmp_path)) == 2003


@pytest.mark.long
def test_processes_at_once_leave_one_whole_set(tmp_path):
    processes = [command("digits", "--root", tmp_path) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert len(load("digits", "train", tmp_path)) == 1437 and not partial(tmp_path)


def test_a_root_that_cannot_be_and_foreign_files_are_left_alone(tmp_path, capsys):
    mine = tmp_path / "digits" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for root in (mine, mine / "below", "/proc/sets", tmp_path):
        assert prepare.main(["digits", "--root", str(root)]) == 1
        assert capsys.readouterr().err.count("error: ") == 1 and mine.read_text() == "mine"


# --- loading, and the command line ----------------------------------------------------------


def test_unknown_names_are_refused(tmp_path):
    for call in (lambda: load("svhn", "train", tmp_path), lambda: ensure("svhn", tmp_path)):
        with pytest.raises(ValueError, match=", ".join(RECIPES)):
            call()
    with pytest.raises(ValueError, match="train, test"):
        load("digits", "val", tmp_path)
    with pytest.raises(DataMissing, match="cifar10 --root"):
        ensure("cifar10", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        prepare.main(["svhn", "--root", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def script(clone, *arguments, cwd, python=sys.executable):
    environment = {**os.environ, "PYTHON": str(python), "HELPERS_DATA": "", "PYTHONPATH": ""}
    command = ["/bin/sh", clone / "data" / "prepare.sh", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_script_makes_digits_by_default_from_anywhere_and_explains_a_lack(tmp_path):
    clone = tmp_path / "my clone"
    shutil.copytree(REPO / "helpers", clone / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "data").mkdir()
    shutil.copy(REPO / "data" / "prepare.sh", clone / "data")
    (clone / "pyproject.toml").touch()
    result = script(clone, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    made = json.loads((clone / "data" / "digits" / "MANIFEST.json").read_text())
    assert made["recipe"]["set"] == "digits"
    assert all(name in script(clone, "--help", cwd=tmp_path).stdout for name in RECIPES)
    result = script(clone, cwd=tmp_path, python=tmp_path / "absent")
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "'make data'" in result.stderr
