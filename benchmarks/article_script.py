"""The training script of the source article, as such tutorials write it: torchvision, DataLoader workers, fp32.

    torchrun --nproc-per-node 1 -m benchmarks.article_script

It differs from the tutorials in where the images come from, a set of CIFAR-10's shape that needs no download, and in
that it can be stopped after some steps. Nothing in it is tuned: it is what the kit's path is measured against.
"""

import os

import torch
import torch.distributed as dist
import torchvision
import torchvision.transforms as transforms
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from helpers.data import sets

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
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    model = DDP(torchvision.models.resnet50(num_classes=10).to(device))
    return device, loader, model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(device, loader, model, criterion, optimizer, epochs, steps):
    """Train; `steps` ends it early."""
    model.train()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps -= 1
            if not steps:
                return


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(*parts(), epochs=10, steps=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
