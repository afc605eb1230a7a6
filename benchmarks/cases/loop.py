"""One training, in the kit's loop, written by hand with PyTorch, or with another library's loop.

    python -m benchmarks.cases.loop kit '{"settings": …, "ranks": …}'
    torchrun --nproc-per-node 2 -m benchmarks.cases.loop plain STEPS [LOCAL_BATCH]

Model, data, order of the images, augmentation and optimizer of a script are those of the kit's run, so that what is
compared is the loop around them.
"""

import json
import os
import sys
import tempfile
from itertools import count

import torch
import torch.distributed as dist
import torch.nn.functional as F

import helpers
from benchmarks import turns
from helpers import RunConfig, launch
from helpers.data import loaders, sets
from helpers.training import models
from helpers.training.loop import train

MODEL, DATA, LOCAL_BATCH, CLASSES = "resnet8", "digits", 64, 10
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}


def batches(loader, steps):
    """(images, labels) of as many epochs as it takes."""
    for epoch in count():
        loader.set_epoch(epoch)
        for pair in loader:
            if not steps:
                return
            steps -= 1
            yield pair


def parts(rank, size):
    """Loader, model and optimizer of one rank."""
    loader = loaders.make_loader(
        sets.load(DATA, "train"), path="fast", global_batch=LOCAL_BATCH * size, rank=rank, world_size=size, seed=0
    )
    torch.manual_seed(0)
    model = models.build(MODEL, CLASSES)
    return loader, model, torch.optim.SGD(model.parameters(), **SGD)


def plain(steps):
    """A script as PyTorch's own tutorials have it; returns this rank's losses."""
    dist.init_process_group("gloo")
    loader, model, optimizer = parts(dist.get_rank(), dist.get_world_size())
    model = torch.nn.parallel.DistributedDataParallel(model)
    loss_fn = turns.Gate(F.cross_entropy)
    for images, labels in batches(loader, steps):
        optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        optimizer.step()
    dist.destroy_process_group()
    return [loss.item() for loss in loss_fn.losses]


def fabric(steps):
    """The loop of Lightning Fabric's documentation."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    loader, model, optimizer = parts(fabric.global_rank, fabric.world_size)
    model, optimizer = fabric.setup(model, optimizer)
    loss_fn = turns.Gate(F.cross_entropy)
    for images, labels in batches(loader, steps):
        optimizer.zero_grad()
        fabric.backward(loss_fn(model(images), labels))
        optimizer.step()


def accelerate(steps):
    """The loop of accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader, model, optimizer = parts(accelerator.process_index, accelerator.num_processes)
    model, optimizer = accelerator.prepare(model, optimizer)
    loss_fn = turns.Gate(F.cross_entropy)
    for images, labels in batches(loader, steps):
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(images), labels))
        optimizer.step()
    accelerator.end_training()


def unconnected(config):
    """A whole run of one device in each rank, all at the same time and none aware of the others."""
    gate = turns.Gate(F.cross_entropy, rank=int(os.environ["RANK"]))
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    return train(RunConfig(**config, loss=gate))


def run_kit(case):
    """The kit's own run; with "ranks" as many unconnected runs at the same time."""
    if case["ranks"]:
        launch(unconnected, case["ranks"], case["settings"], threads=case["settings"]["threads"])
        return
    with tempfile.TemporaryDirectory() as records:
        os.environ["HELPERS_RESULTS"] = records
        helpers.run(RunConfig(**case["settings"], loss=turns.Gate(F.cross_entropy)))


def kit(ranks=None, **settings):
    """The command of `run_kit`, for turns.measured. `settings` need steps=turns.steps_needed(…)."""
    return [sys.executable, "-m", "benchmarks.cases.loop", "kit", json.dumps({"settings": settings, "ranks": ranks})]


def script(how, steps, python=sys.executable, ranks=2, batch=None):
    """The command of `plain`, `fabric` or `accelerate`, for turns.measured."""
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", "benchmarks.cases.loop", how, str(steps), str(batch or LOCAL_BATCH)]


if __name__ == "__main__":
    if sys.argv[1] == "kit":
        run_kit(json.loads(sys.argv[2]))
    else:
        torch.set_num_threads(1)
        LOCAL_BATCH = int(sys.argv[3]) if sys.argv[3:] else LOCAL_BATCH
        {"plain": plain, "fabric": fabric, "accelerate": accelerate}[sys.argv[1]](int(sys.argv[2]))
