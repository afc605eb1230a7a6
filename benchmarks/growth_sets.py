"""Batches of the fast path from sets of 10,000 to a million images, mapped into memory: images a second, and memory.

Runs in a process of its own, `python -m benchmarks.growth_sets FOLDER`, whose last line is what it found as JSON.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from helpers import measure
from helpers.paths import project_root

SIZES = (10_000, 100_000, 1_000_000)
BATCH, BATCHES, ROUNDS = 256, 40, 7
ROOM = 4000  # bytes of disk for an image, and some to spare
TIMEOUT = 600


def run(sizes=SIZES):
    """Rows of images a second; ratios: memory, seconds to load a set, and the largest's rate over the smallest's."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        free = shutil.disk_usage(folder).free
        sizes = [size for size in sizes if 2 * ROOM * size < free]
        for size in sizes:
            print(f"  … {size:,} images", flush=True)
            make(Path(folder, str(size)), size)
        command = [sys.executable, "-m", "benchmarks.growth_sets", folder, *map(str, sizes)]
        environment = {**os.environ, "PYTHONPATH": str(project_root()), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    found = json.loads(done.stdout.splitlines()[-1])
    rows, ratios = {}, {}
    for name, of in found.items():
        rows[f"{name} images: fast path"] = {**measure.summary(of["rates"]), "unit": "images/s"}
        for what, unit in (
            ("first load", "s"),
            ("load", "s"),
            ("first batch", "s"),
            ("own memory", "MB"),
            ("mapped, in use", "MB"),
        ):
            ratios[f"{name} images: {what}"] = {"median": of[what], "unit": unit}
    least, most = (found[f"{size:,}"] for size in (sizes[0], sizes[-1]))
    pairs = [a / b for a, b in zip(most["rates"], least["rates"], strict=True)]
    ratios[f"images/s, {sizes[-1]:,} / {sizes[0]:,} images"] = measure.with_interval(pairs)
    ratios["own memory / size of the largest set"] = 1e6 * most["own memory"] / (3072 * sizes[-1])
    return rows, ratios


def make(root, images) -> None:
    """Prepare `images` images below `root` as the set "mock": 10,000 of them, again and again."""
    from helpers.data import prepare, recipes

    folder = root / "mock"
    folder.mkdir(parents=True)
    labels = np.arange(min(10_000, images)) % 10
    pictures = recipes.paint(labels, 32, np.random.RandomState(0))
    for split, count in (("train", images), ("test", 10)):
        np.save(folder / f"{split}_labels.npy", np.resize(labels, count))
        with open(folder / f"{split}_images.npy", "wb") as file:  # a part at a time: all of them fill the memory
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, 32, 32)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, count, len(labels)):
                file.write(pictures[: count - start].data)
    about = {"classes": [str(k) for k in range(10)], "mean": [0.5] * 3, "std": [0.25] * 3}
    recipe = {"set": "mock", "version": recipes.RECIPES["mock"].version}
    (folder / prepare.MANIFEST).write_text(json.dumps({"recipe": recipe, "about": about}))


def look(folder, sizes) -> dict:
    """{size: what one process found}; the sets take turns."""
    import torch

    from helpers.data import loaders as data
    from helpers.data import sets

    torch.set_num_threads(1)
    found, loaders = {}, {}
    for size in sizes:
        root, before = Path(folder, str(size)), held()
        times = []
        for _ in range(2):
            began = time.perf_counter()
            images = sets.load("mock", "train", root)
            times.append(time.perf_counter() - began)
        loaders[size] = data.make_loader(images, path="fast", global_batch=BATCH)
        began = time.perf_counter()
        next(iter(loaders[size]))
        of = {"first load": times[0], "load": times[1], "first batch": time.perf_counter() - began, "rates": []}
        rate(loaders[size], 1)
        after = held()
        of |= {"own memory": after[0] - before[0], "mapped, in use": after[1] - before[1]}
        found[f"{size:,}"] = of
    for epoch in range(ROUNDS):
        for size in sizes[epoch % len(sizes) :] + sizes[: epoch % len(sizes)]:
            found[f"{size:,}"]["rates"].append(rate(loaders[size], epoch + 2))
    return found


def rate(loader, epoch):
    """Images a second over BATCHES batches after the first, which draws the order of the epoch."""
    loader.set_epoch(epoch)
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    for _ in range(min(BATCHES, len(loader) - 1)):
        next(batches)
    return BATCH * min(BATCHES, len(loader) - 1) / (time.perf_counter() - began)


def held():
    """Megabytes of this process: memory of its own, and mapped files (its share, where others map them too)."""
    from .growth import pss

    return pss("self", "Pss_Anon") / 1e6, pss("self", "Pss_File") / 1e6


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1], [int(size) for size in sys.argv[2:]])))
