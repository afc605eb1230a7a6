"""Large sets are mapped: the same batches, memory that is not theirs, and damage refused as before."""

import shutil
import warnings

import numpy as np
import pytest
import torch

from benchmarks import growth_sets
from helpers.data import loaders as data
from helpers.data import mapped, sets, store


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    growth_sets.make(root / "sets", 500)
    return root / "sets"


@pytest.fixture(autouse=True)
def large(tmp_path, monkeypatch):
    """Every set is large, and the cache is this test's own."""
    monkeypatch.setattr(mapped, "FROM", 0)
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(source, tmp_path):
    return shutil.copytree(source, tmp_path / "sets")


def load(root, split="train"):
    return sets.load("mock", split, root)


def checked(monkeypatch):
    """Files whose checksum is looked at from now on."""
    seen, read = [], store.read_checked
    monkeypatch.setattr(sets, "read_checked", lambda *a: (seen.append(a[1]), read(*a))[1])
    return seen


def test_batches_are_those_of_a_set_in_memory(root, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that cannot be written to
        ours = load(root)
    monkeypatch.setattr(mapped, "FROM", 1e12)
    theirs = load(root)
    assert torch.equal(ours.images, theirs.images) and torch.equal(ours.labels, theirs.labels)
    for path in ("fast", "workers"):
        for rank in range(2):
            options = dict(path=path, global_batch=64, rank=rank, world_size=2, seed=3, num_workers=0)
            loaders = [data.make_loader(one, **options) for one in (ours, theirs)]
            for epoch in range(2):
                for loader in loaders:
                    loader.set_epoch(epoch)
                for mine, other in zip(*loaders, strict=True):
                    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_checksums_are_compared_once(root, monkeypatch):
    seen = checked(monkeypatch)
    load(root)
    assert len(seen) == 5
    load(root)
    assert len(seen) == 5
    load(root, "test")
    assert len(seen) == 6


def test_writing_to_the_images_leaves_the_file_alone(root):
    first = load(root)
    before = first.images.clone()
    first.images.zero_()
    assert torch.equal(load(root).images, before)


@pytest.mark.parametrize("what", ["changed", "shortened", "removed"])
def test_damage_is_refused(root, what):
    load(root)
    path = root / "mock" / "cifar-10-batches-py" / "data_batch_3"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    if what == "removed":
        path.unlink()
    else:
        path.write_bytes(content if what == "changed" else content[:-1])
    with pytest.raises(sets.DataMissing, match="damaged"):
        load(root)


def test_a_set_made_anew_is_read_anew(root, monkeypatch):
    before = load(root).images.clone()
    shutil.rmtree(root)
    growth_sets.make(root, 1000)
    assert len(load(root)) == 1000 != len(before)


def copy_of(tmp_path):
    (place,) = (path for path in (tmp_path / "cache" / "sets").iterdir() if path.is_dir())
    return place


@pytest.mark.parametrize("file", [*mapped.FILES, mapped.STATE])
def test_a_damaged_copy_is_made_again(root, tmp_path, file):
    before = load(root).images.clone()
    path = copy_of(tmp_path) / file
    path.write_bytes(path.read_bytes()[:-7] + b"1234567")
    assert torch.equal(load(root).images, before)
    assert np.load(copy_of(tmp_path) / "images.npy", mmap_mode="r").shape == before.shape


def test_without_room_or_right_it_is_read_into_memory(root, tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert len(load(root)) == 500 and not list((tmp_path / "cache" / "sets").glob("*-train*/images.npy"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file"))
    assert len(load(root)) == 500


def test_small_sets_stay_in_memory(root, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "FROM", 500 * 3072 + 1)
    load(root)
    assert not (tmp_path / "cache").exists()
