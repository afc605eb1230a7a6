"""The same training as one writes it by hand with PyTorch, or with another library's loop; run by torchrun.

    torchrun --nproc-per-node 2 -m benchmarks.loop_script plain STEPS [LOCAL_BATCH]

Model, data, order of the images, augmentation and optimizer are those of the kit's run, so that what is compared
is what goes on around them.
"""

import sys
from itertools import count

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks import turns
from helpers.data import loaders, sets
from helpers.training import models

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


def command(how, steps, python=sys.executable, ranks=2, batch=None):
    """What starts it, for turns.measured."""
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", "benchmarks.loop_script", how, str(steps), str(batch or LOCAL_BATCH)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    LOCAL_BATCH = int(sys.argv[3]) if sys.argv[3:] else LOCAL_BATCH
    {"plain": plain, "fabric": fabric, "accelerate": accelerate}[sys.argv[1]](int(sys.argv[2]))
