"""One step of data-parallel training with DDP."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def prepare(model, lr, momentum=0.0, weight_decay=0.0):
    """(`model` on this rank's device, its optimizer)"""
    device = torch.device("cpu")
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    return model, optimizer


def step(model, optimizer, images, labels):
    """Train on this rank's part of a batch; returns its mean loss."""
    device = torch.device("cpu")
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
