"""Batches: exact shards, one order for all ranks, and two loaders that agree."""

import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel import wait_until
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from helpers.data.batches import GlobalBatchSampler, augmentation_plan
from helpers.data.loaders import crop_and_flip, eval_batches, make_loader
from helpers.data.sets import ImageSet, pair

both_paths = pytest.mark.parametrize("path", ["fast", "workers"])


def image_set(n=40, flip=True, height=32, width=32):
    generator = torch.Generator().manual_seed(n)
    images = torch.randint(0, 256, (n, 3, height, width), generator=generator, dtype=torch.uint8)
    return ImageSet("mock", images, torch.arange(n), ("a",), (0.5, 0.4, 0.3), (0.2, 0.1, 0.3), flip)


def labels_of(loader):
    return [labels.tolist() for _, labels in loader]


# --- GlobalBatchSampler ---------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(n=st.integers(1, 150), global_batch=st.integers(1, 64), world_size=st.integers(1, 9), epoch=st.integers(0, 3))
def test_ranks_together_see_what_one_device_sees(n, global_batch, world_size, epoch):
    n += global_batch - 1
    ranks = [GlobalBatchSampler(n, global_batch, rank, world_size) for rank in range(world_size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    alone = GlobalBatchSampler(n, global_batch)
    alone.set_epoch(epoch)
    batches = list(zip(*ranks, strict=True))
    assert [sum(pieces, []) for pieces in batches] == list(alone)
    assert {len(batch) for batch in alone} == {global_batch}
    assert len({i for batch in alone for i in batch}) == len(batches) * global_batch
    assert {len(sampler) for sampler in ranks} == {len(batches)} == {n // global_batch}
    for pieces in batches:
        lengths = [len(piece) for piece in pieces]
        assert max(lengths) - min(lengths) <= 1


# --- augmentation ---------------------------------------------------------------------------


def test_plan_covers_every_crop_and_depends_on_seed_and_epoch():
    def plan(epoch, seed, flip=True):
        sampler = GlobalBatchSampler(5000, 1, seed=seed)
        sampler.set_epoch(epoch)
        return augmentation_plan(sampler, flip)

    found = plan(3, 7)
    assert found.shape == (5000, 3) and found.dtype == torch.int64
    assert len(found.unique(dim=0)) == 9 * 9 * 2
    assert found.min() == 0 and found.amax(0).tolist() == [8, 8, 1]
    assert torch.equal(found, plan(3, 7))
    assert not torch.equal(found, plan(4, 7)) and not torch.equal(found, plan(3, 8))
    assert plan(3, 7, flip=False)[:, 2].sum() == 0


@pytest.mark.parametrize("height, width", [(32, 32), (5, 9)])
def test_crop_and_flip_equals_one_image_at_a_time(height, width):
    images = image_set(162, height=height, width=width).images
    plan = torch.cartesian_prod(torch.arange(9), torch.arange(9), torch.arange(2))
    expected = torch.zeros_like(images)
    for i, (dy, dx, flip) in enumerate(plan.tolist()):
        padded = torch.zeros(3, height + 8, width + 8, dtype=torch.uint8)
        padded[:, 4:-4, 4:-4] = images[i]
        cropped = padded[:, dy : dy + height, dx : dx + width]
        expected[i] = cropped.flip(2) if flip else cropped
    assert torch.equal(crop_and_flip(images, plan), expected)


# --- the two loaders ------------------------------------------------------------------------


@pytest.mark.parametrize("rank, world_size", [(0, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("augment, flip", [(True, True), (True, False), (False, True)])
def test_both_paths_give_equal_batches(rank, world_size, augment, flip):
    options = {"global_batch": 13, "rank": rank, "world_size": world_size, "seed": 5, "augment": augment}
    data = image_set(flip=flip)
    fast = make_loader(data, path="fast", **options)
    workers = make_loader(data, path="workers", num_workers=0, **options)
    assert (fast.path, workers.path) == ("fast", "workers") and len(fast) == len(workers) == 3
    seen = set()
    for epoch in (0, 1, 0):
        fast.set_epoch(epoch), workers.set_epoch(epoch)
        for (x, y), (x2, y2) in zip(fast, workers, strict=True):
            assert torch.equal(y, y2) and y.dtype == y2.dtype == torch.int64
            assert x.dtype == x2.dtype == torch.float32 and x.shape == x2.shape
            assert (x - x2).abs().max() <= 1e-6
            seen.add(tuple(y.tolist()))
    assert len(seen) == 6  # three batches in each of two different epochs


def test_a_sample_is_augmented_alike_on_every_rank():
    def crops(world_size):
        settings = {"global_batch": 20, "world_size": world_size}
        ranks = [make_loader(image_set(), rank=rank, **settings) for rank in range(world_size)]
        images, labels = (torch.cat(part) for part in zip(*itertools.chain(*ranks), strict=True))
        return images[labels.argsort()]

    assert torch.equal(crops(1), crops(4))


def child_pids():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="lists children through /proc")
def test_living_workers_reshuffle_resume_and_go_away():
    data, before = image_set(), child_pids()
    fast = make_loader(data, global_batch=8)
    loader = make_loader(data, path="workers", global_batch=8, num_workers=2)
    workers = None
    for epoch in (0, 1):
        fast.set_epoch(epoch), loader.set_epoch(epoch)
        pairs = list(zip(fast, loader, strict=True))
        assert all(torch.equal(y, y2) and (x - x2).abs().max() <= 1e-6 for (x, y), (x2, y2) in pairs)
        workers = workers or child_pids() - before
        assert len(workers) == 2 and child_pids() - before == workers  # the same two

    list(itertools.islice(loader, 2))  # an epoch that is left early ...
    fast.set_epoch(2), loader.set_epoch(2)
    fast.start_batch = loader.start_batch = 3
    assert labels_of(loader) == labels_of(fast)  # ... leaves nothing behind in the next one
    assert child_pids() - before == workers
    iterator = iter(loader)
    next(iterator)
    del iterator, loader
    assert wait_until(lambda: not child_pids() & workers, 100) is not None


@both_paths
def test_start_batch_skips_once_and_the_global_random_numbers_are_left_alone(path):
    state, loader = torch.get_rng_state(), make_loader(image_set(), path=path, global_batch=8, num_workers=0)
    loader.start_batch = 2
    rest, whole = list(loader), list(loader)
    assert len(rest) == 3 and len(whole) == len(loader) == 5
    torch.testing.assert_close(rest, whole[2:], rtol=0, atol=0)
    assert torch.equal(state, torch.get_rng_state())
    loader.start_batch = 5
    assert list(loader) == []
    loader.start_batch = 6
    with pytest.raises(ValueError, match="from 0 to 5"):
        iter(loader)


# --- the reader's own data set --------------------------------------------------------------


class Own(Dataset):
    def __init__(self, sample=lambda i: (torch.full((4,), float(i)), i)):
        self.sample, self.asked = sample, []

    def __len__(self):
        return 20

    def __getitem__(self, i):
        self.asked.append(i)
        return self.sample(i)


@both_paths
def test_own_data_set(path):
    loaders = [
        make_loader(Own(), path=path, global_batch=6, rank=rank, world_size=2, num_workers=0) for rank in range(2)
    ]
    orders = []
    for epoch in (0, 1):
        for loader in loaders:
            loader.set_epoch(epoch)
        batches = [batch for loader in loaders for batch in loader]
        assert all(torch.equal(x[:, 0].long(), y) and len(y) == 3 for x, y in batches)
        orders.append([label for _, labels in batches for label in labels.tolist()])
        assert len(set(orders[-1])) == len(orders[-1]) == 18
    assert orders[0] != orders[1]


@both_paths
@pytest.mark.parametrize(
    "sample",
    [
        lambda i: (Image.new("RGB", (8, 8)), i),
        lambda i: (torch.zeros(i + 1), i),
        lambda i: (torch.zeros(2), i, i),
        lambda i: (torch.zeros(2), "name"),
    ],
)
def test_unfit_samples_are_explained(path, sample):
    with pytest.raises(TypeError, match="must be a pair"):
        list(make_loader(Own(sample), path=path, global_batch=4, num_workers=0))


def test_what_cannot_be_loaded_is_refused():
    for wrong in ({"path": "quick"}, {"global_batch": 2, "world_size": 3}, {"global_batch": 41}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make_loader(**{"data": image_set(), "global_batch": 4, **wrong})
    for wrong in ([image_set()], (iter([]), None), (image_set(), {1, 2})):
        with pytest.raises(TypeError):
            pair(wrong)


# --- evaluation -----------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(n=st.integers(1, 40), batch=st.integers(1, 16), world_size=st.integers(1, 9))
def test_evaluation_sees_every_sample_once(n, batch, world_size):
    for data in (image_set(n, height=2, width=2), TensorDataset(torch.zeros(n, 2), torch.arange(n))):
        for rank in range(world_size):
            found = list(eval_batches(data, batch=batch, rank=rank, world_size=world_size))
            assert all(len(x) == len(y) <= batch for x, y in found)
            assert [int(label) for _, y in found for label in y] == list(range(rank, n, world_size))


def test_evaluation_normalises_and_does_not_augment():
    data = image_set(6)
    x, y = next(iter(eval_batches(data, batch=6)))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.mean, data.std))
    assert (x - (data.images / 255 - mean) / std).abs().max() <= 1e-6
    assert torch.equal(y, data.labels)
