"""The benchmark of the input paths: equal numbers, whole epochs, and a target that can be missed."""

import itertools
import time

import pytest
import torch

from benchmarks import input_paths
from helpers import measure
from helpers.data import loaders, sets
from helpers.data import loaders as data


def small(n=64):
    pixels = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return sets.ImageSet(
        "toy", pixels, torch.arange(n) % 10, tuple("abcdefghij"), (0.5,) * 3, (0.2,) * 3, flip=True
    )


def test_both_paths_take_whole_epochs_of_the_same_images(monkeypatch):
    seen = []
    rate = input_paths.rate

    def noted(loader, epoch):
        seen.append((loader.path, epoch, len(loader)))
        return rate(loader, epoch)

    monkeypatch.setattr(input_paths, "rate", noted)
    found = input_paths.in_rounds(small(), rounds=5, batch=16)
    assert set(found) == {input_paths.FAST, input_paths.SLOW} and all(len(rates) == 5 for rates in found.values())
    assert sorted(seen) == sorted((path, epoch, 4) for path in ("fast", "workers") for epoch in range(6))
    begins = [path for path, _, _ in seen[::2]]
    assert set(begins) == {"fast", "workers"}, "neither is always the first"


def test_a_planted_slow_path_is_seen(monkeypatch):
    class Slow:
        def set_epoch(self, epoch):
            pass

        def __iter__(self):
            for _ in range(3):
                time.sleep(0.02)
                yield torch.zeros(16), None

    assert input_paths.rate(Slow(), 0) < 16 / 0.02


def test_a_missed_target_is_reported_with_what_it_would_take():
    rows = {input_paths.FAST: measure.summary([100_000] * 5), input_paths.SLOW: measure.summary([10_000] * 5)}
    missed = input_paths.reasons(rows, {input_paths.RATIO: measure.summary([10.0] * 5)})
    assert "10.0 µs an image" in missed[input_paths.RATIO] and "6.7 µs would be wanted" in missed[input_paths.RATIO]
    assert input_paths.reasons(rows, {input_paths.RATIO: measure.summary([15.0] * 5)}) == {}


@pytest.mark.parametrize("b, channels, height, width", [(5, 3, 32, 32), (2, 1, 8, 12), (7, 4, 9, 5)])
def test_the_crops_of_many_shapes_one_after_the_other_are_right(b, channels, height, width):
    """What is kept from one batch to the next must be of that batch's shape."""
    draw = torch.Generator().manual_seed(b)
    images = torch.randint(0, 256, (b, channels, height, width), dtype=torch.uint8, generator=draw)
    for pad in (0, 2, 4):
        plan = torch.randint(0, 2 * pad + 1, (b, 3), generator=draw)
        plan[:, 2] %= 2
        got = loaders.crop_and_flip(images, plan, pad)
        for image, (dy, dx, flip), out in zip(images, plan.tolist(), got, strict=True):
            wide = torch.nn.functional.pad(image, (pad,) * 4)[:, dy : dy + height, dx : dx + width]
            assert torch.equal(out, wide.flip(2) if flip else wide)


def test_the_last_smaller_batch_is_right_too():
    sampler = data.GlobalBatchSampler(10, 4, drop_last=False)
    loader = data.FastLoader(small(10), sampler)
    assert [len(images) for images, _ in itertools.islice(loader, 5)] == [4, 4, 2]
