"""One contender of the benchmark of the article, in a process of its own: its script, or the kit's best path.

    torchrun --nproc-per-node 1 -m benchmarks.cases.article script STEPS
    python -m benchmarks.cases.article kit '{"settings": …}'

Hooks at the model and at the optimizer cut a step into its parts, so that neither has to be written differently. The
script is like that of the source article, as such tutorials write it: torchvision, DataLoader workers, fp32, a batch of
256. Its images come from a set of CIFAR-10's shape that needs no download, and it can be stopped after some steps. It
also pads the crop by 4, normalises with CIFAR-10's own values, has 10 outputs, 2 workers (the article: 10), a rate of
0.01 (0.001), and no SyncBatchNorm. Nothing in it is tuned: it is what the kit's path is measured against.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torchvision
import torchvision.transforms as transforms
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks import turns
from helpers import RunConfig, device, launch
from helpers.data import sets
from helpers.training import loop

PARTS = ("input wait", "forward", "backward", "optimizer")
OUT = "BENCH_PARTS"  # file that gets the seconds of each part, step by step, as JSON


BATCH, WORKERS = 256, 2


class Cifar(Dataset):
    """Like torchvision.datasets.CIFAR10: an array of all images, of which one a time becomes a PIL image."""

    def __init__(self, transform):
        found = sets.load("mock", "train")
        self.data, self.targets = found.images.permute(0, 2, 3, 1).contiguous().numpy(), found.labels.tolist()
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def parts():
    """Loader, model, loss and optimizer; the process group must be there."""
    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ]
    )
    train_set = Cifar(transform)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=True)
    cuda = torch.cuda.is_available()
    where = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    model = DDP(torchvision.models.resnet50(num_classes=10).to(where))
    return where, loader, model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(where, loader, model, criterion, optimizer, epochs, steps):
    """Train; `steps` ends it early."""
    model.train()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            images, labels = images.to(where), labels.to(where)
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps -= 1
            if not steps:
                return


class Marks:
    """Cuts the time of a training loop into PARTS: each second of a step belongs to exactly one.

    "input wait" is everything between two steps (the next batch, its copy to the device, the loop itself), "backward"
    begins with the loss.

    Attributes:
        steps: one {part: seconds} for each whole step.
    """

    def __init__(self, model, optimizer, turn=lambda: None, settle=lambda: None, clock=time.perf_counter):
        self._turn, self._settle, self._clock = turn, settle, clock
        self.steps, self._step, self._last = [], {}, None
        model.register_forward_pre_hook(lambda *_: self._mark("input wait"))
        model.register_forward_hook(lambda *_: self._mark("forward"))
        optimizer.register_step_pre_hook(lambda *_: self._mark("backward"))
        optimizer.register_step_post_hook(lambda *_: self._end())

    def _mark(self, part):
        self._settle()
        now = self._clock()
        if self._last is not None:
            self._step[part] = now - self._last
        self._last = now

    def _end(self):
        self._mark("optimizer")
        if len(self._step) == len(PARTS):  # the first step has no beginning
            self.steps.append(self._step)
        self._step = {}
        self._turn()  # while others have theirs, this clock stands
        self._last = self._clock()


def watched(model, optimizer, where):
    """Marks that take turns with other contenders."""
    gate = turns.Gate()
    return Marks(model, optimizer, gate.turn, lambda: device.synchronize(where))


def written(marks):
    with open(os.environ[OUT], "w") as file:
        json.dump(marks.steps, file)


def script(steps):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    where, loader, model, criterion, optimizer = parts()
    marks = watched(model, optimizer, where)
    train(where, loader, model, criterion, optimizer, -(-steps // len(loader)), steps)
    written(marks)
    dist.destroy_process_group()


def kit_rank(settings):
    """The kit's own loop; `launch` runs this."""
    made = loop.Run.__init__

    def watching(run, *args):
        made(run, *args)
        run.marks = watched(run.wrapped, run.optimizer, run.world.device)

    def measured(run, evaluation):
        written(run.marks)

    loop.Run.__init__, loop.Run._measured = watching, measured  # of this rank, which is a process of its own
    loop.train(RunConfig(**settings))


def main(how, what):
    if how == "script":
        script(int(what))
    else:
        settings = json.loads(what)["settings"]
        launch(kit_rank, 1, settings, threads=settings["threads"])


if __name__ == "__main__":
    main(*sys.argv[1:])
