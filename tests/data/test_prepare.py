"""Prepared sets: right content, whole or absent whatever happens, and a command that says what to do."""

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
    for name, images, tests, size in (("mock", 2003, 400, 32), ("imagenet-mock", 43, 10, 224)):
        recipe = Recipe(
            "small", lambda images=images, tests=tests, size=size: recipes.make_mock(images, tests, size), images
        )
        monkeypatch.setitem(RECIPES, name, recipe)


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
    assert images[:, 0].equal(images[:, 1]) and images[:, 0].equal(images[:, 2])
    inner = images[:, 0, 4:28, 4:28]
    assert images.sum(dtype=torch.int64) == 3 * inner.sum(dtype=torch.int64)
    source = load_digits()
    # The centre of every enlarged pixel is the pixel itself: nothing lost, nothing twice.
    back = (inner[:, 1::3, 1::3].double() * 16 / 255).round().flatten(1)
    pairs = sorted(zip(back.tolist(), torch.cat([train.labels, test.labels]).tolist(), strict=True))
    assert pairs == sorted(zip(source.data.tolist(), source.target.tolist(), strict=True))
    share = test.labels.bincount() / torch.from_numpy(source.target).bincount()
    assert (share - 0.2).abs().max() < 0.01


def test_enlarge_is_bilinear():
    grids = np.random.RandomState(0).randint(-9, 10, (2, 5, 8))
    whole = torch.from_numpy(grids)[None].double()
    expected = torch.nn.functional.interpolate(whole, scale_factor=3, mode="bilinear")[0]
    assert torch.allclose(torch.from_numpy(recipes.enlarge(grids, 3) / 36), expected)


@pytest.mark.parametrize("name, sizes, pixels", [("mock", (2003, 400), 32), ("imagenet-mock", (43, 10), 224)])
def test_mock_sets_are_balanced_and_always_the_same(tmp_path, name, sizes, pixels):
    prepare.prepare(name, tmp_path)
    prepare.prepare(name, tmp_path / "again")
    for split, n in zip(("train", "test"), sizes, strict=True):
        found = load(name, split, tmp_path)
        assert found.images.shape == (n, 3, pixels, pixels) and found.images.dtype == torch.uint8
        counts = found.labels.bincount(minlength=10)
        assert counts.max() - counts.min() <= 1 and found.flip and len(found.classes) == 10
        assert torch.equal(found.images, load(name, split, tmp_path / "again").images)
    train = load(name, "train", tmp_path)
    pixels = train.images.double().div(255).transpose(0, 1).flatten(1)
    assert torch.allclose(torch.tensor(train.mean).double(), pixels.mean(1), atol=1e-6)
    assert torch.allclose(torch.tensor(train.std).double(), pixels.std(1, correction=0), atol=1e-6)


def test_mock_can_be_learnt_but_not_at_a_glance():
    """Ridge regression on 4x4 thumbnails: well above chance (10 %), far below certainty."""

    def features(of):
        images = torch.from_numpy(of["images"]).double() / 255 - 0.5
        x = torch.nn.functional.avg_pool2d(images, 8).flatten(1)
        return torch.cat([x, x.abs(), torch.ones(len(x), 1)], 1), torch.from_numpy(of["labels"])

    splits, _ = recipes.make_mock(2003, 400)
    (x, y), (x_test, y_test) = features(splits["train"]), features(splits["test"])
    weights = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ torch.eye(10).double()[y])
    assert 0.2 < ((x_test @ weights).argmax(1) == y_test).double().mean() < 0.8


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


@pytest.mark.parametrize("error", [urllib.error.URLError("no network"), RuntimeError("file corrupted")])
def test_a_download_that_fails_is_worded_and_leaves_nothing(tmp_path, monkeypatch, capsys, error):
    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(CIFAR10, "download", fails)
    assert prepare.main(["cifar10", "--root", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and CIFAR10.url in message and "network" in message
    assert list(tmp_path.iterdir()) == []


# --- repeated, damaged, interrupted, at once ------------------------------------------------


def test_a_second_run_changes_nothing_and_another_version_is_made_anew(tmp_path, monkeypatch):
    folder = prepare.prepare("mock", tmp_path)
    before = {path: path.stat() for path in folder.iterdir()}
    prepare.prepare("mock", tmp_path)
    assert {path: path.stat() for path in folder.iterdir()} == before
    newer = Recipe("newer", lambda: recipes.make_mock(20, 10), 20, version=9)
    monkeypatch.setitem(RECIPES, "mock", newer)
    with pytest.raises(DataMissing, match="version"):
        load("mock", "train", tmp_path)
    prepare.prepare("mock", tmp_path)
    assert len(load("mock", "train", tmp_path)) == 20 and not partial(tmp_path)


DAMAGE = {
    "a truncated file": lambda folder: os.truncate(folder / "train_images.npy", 1000),
    "a missing file": lambda folder: (folder / "train_labels.npy").unlink(),
    "an empty file": lambda folder: os.truncate(folder / "train_images.npy", 0),
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


def test_foreign_files_are_kept(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "thesis.txt").write_text("mine")
    with pytest.raises(recipes.PrepareError):
        prepare.prepare("digits", tmp_path)
    assert (tmp_path / "digits" / "thesis.txt").read_text() == "mine"


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.data.prepare", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPO,
        **options,
    )


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


def test_processes_at_once_leave_one_whole_set(tmp_path):
    processes = [command("digits", "--root", tmp_path) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert len(load("digits", "train", tmp_path)) == 1437 and not partial(tmp_path)


def test_another_process_that_is_faster_wins(tmp_path, monkeypatch):
    def beaten():
        splits = recipes.make_mock(30, 10)
        monkeypatch.setitem(RECIPES, "mock", Recipe("quick", lambda: recipes.make_mock(20, 10), 20))
        prepare.prepare("mock", tmp_path)
        return splits

    monkeypatch.setitem(RECIPES, "mock", Recipe("beaten", beaten, 30))
    prepare.prepare("mock", tmp_path)
    assert len(load("mock", "train", tmp_path)) == 20 and not partial(tmp_path)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/sets"])
def test_impossible_root(tmp_path, place, capsys):
    (tmp_path / "file").write_text("mine")
    assert prepare.main(["digits", "--root", str(tmp_path / place)]) == 1
    assert capsys.readouterr().err.count("\n") == 1 and (tmp_path / "file").read_text() == "mine"


# --- loading --------------------------------------------------------------------------------


def test_arrays_are_mapped_and_writing_to_them_is_private(tmp_path):
    ensure("digits", tmp_path)
    before = load("digits", "train", tmp_path).images.clone()
    load("digits", "train", tmp_path).images.zero_()
    assert torch.equal(load("digits", "train", tmp_path).images, before)


def test_unknown_names_are_refused(tmp_path):
    for call in (lambda: load("svhn", "train", tmp_path), lambda: ensure("svhn", tmp_path)):
        with pytest.raises(ValueError, match=", ".join(RECIPES)):
            call()
    with pytest.raises(ValueError, match="train, test"):
        load("digits", "val", tmp_path)
    with pytest.raises(DataMissing, match="cifar10 --root"):
        ensure("cifar10", tmp_path)


# --- the command line -----------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["cifar100"], ["--what"]])
def test_bad_command_line(tmp_path, arguments):
    with pytest.raises(SystemExit) as stop:
        prepare.main([*arguments, "--root", str(tmp_path)])
    assert stop.value.code == 2 and list(tmp_path.iterdir()) == []


def script(clone, *arguments, cwd, python=sys.executable):
    environment = {**os.environ, "PYTHON": str(python), "HELPERS_DATA": "", "PYTHONPATH": ""}
    command = ["/bin/sh", clone / "data" / "prepare.sh", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300)


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


def test_a_lacking_module_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert prepare.main(["--root", str(tmp_path)]) == 1
    assert "sklearn" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
