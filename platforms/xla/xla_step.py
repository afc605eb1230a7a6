"""One step of data-parallel training through XLA."""

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.amp import syncfree

from .gradients import average


def prepare(model, lr, momentum=0.0, weight_decay=0.0):
    """(`model` on this rank's device, its optimizer)"""
    device = torch_xla.device()
    model = model.to(device)
    optimizer = syncfree.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    if momentum:  # which starts as nothing, so that the first step would be compiled for itself
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    torch_xla.sync()
    return model, optimizer


def step(model, optimizer, images, labels):
    """Train on this rank's part of a batch; returns its mean loss."""
    device = torch_xla.device()
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    average(xm._fetch_gradients(optimizer))
    optimizer.step()
    torch_xla.sync()
    return loss.item()
