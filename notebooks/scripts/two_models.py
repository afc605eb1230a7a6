"""An encoder and a classifier, trained on the digits on one device. Your turn in notebook 08: the ten steps."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers import device
from helpers.data import sets

EPOCHS, CHECKPOINT, LOG = 1, "two_models.pt", "two_models.log"

gpu = device.of_rank(0)
digits = sets.load("digits", "train")
train = TensorDataset(digits.images / 255 - 0.5, digits.labels)
loader = DataLoader(train, 32, shuffle=True, drop_last=True)

encoder = nn.Sequential(nn.Flatten(), nn.Linear(3072, 32))
classifier = nn.Sequential(nn.ReLU(), nn.Linear(32, 10))
encoder = nn.DataParallel(encoder.to(gpu))
classifier = nn.DataParallel(classifier.to(gpu))
optimizer = torch.optim.SGD([*encoder.parameters(), *classifier.parameters()], lr=0.02, momentum=0.9)
if os.path.exists(CHECKPOINT):
    kept = torch.load(CHECKPOINT, map_location=gpu)
    encoder.load_state_dict(kept["encoder"])
    classifier.load_state_dict(kept["classifier"])
    optimizer.load_state_dict(kept["optimizer"])

log = open(LOG, "a")
for epoch in range(EPOCHS):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(classifier(encoder(images.to(gpu))), labels.to(gpu))
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}", file=log)

kept = {"encoder": encoder.state_dict(), "classifier": classifier.state_dict(), "optimizer": optimizer.state_dict()}
torch.save(kept, CHECKPOINT)
print(f"the last loss is {loss.item():.3f}")
