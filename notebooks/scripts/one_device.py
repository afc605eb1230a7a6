"""A small net on the digits, on one device: goes on from a checkpoint, trains, saves. Notebook 08 changes it."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers import device
from helpers.data import sets

EPOCHS, CHECKPOINT, LOG = 1, "checkpoint.pt", "training.log"

gpu = device.of_rank(0)  # on GPUs: torch.cuda.set_device(0)
digits = sets.load("digits", "train")
train = TensorDataset(digits.images / 255 - 0.5, digits.labels)
loader = DataLoader(train, 32, shuffle=True, drop_last=True)

model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(1800, 10))
model = nn.DataParallel(model.to(gpu))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
if os.path.exists(CHECKPOINT):
    kept = torch.load(CHECKPOINT, map_location=gpu)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])

log = open(LOG, "a")
for epoch in range(EPOCHS):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(gpu)), labels.to(gpu))
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}", file=log)

torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, CHECKPOINT)
print(f"the last loss is {loss.item():.3f}")
