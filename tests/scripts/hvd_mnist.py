"""Digits with Horovod, as its tutorials do it: the ten steps of a PyTorch script."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.04)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--no-cuda", action="store_true")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.dropout = nn.Dropout2d(0.1)
        self.fc = nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.dropout(self.conv(x))), 2)
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


def make_set(count, seed):
    """Ten patterns with noise in place of a download."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=random)
    return TensorDataset(patterns[labels] + 0.3 * torch.randn(count, 1, 28, 28, generator=random), labels)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for batch, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
        if batch % 4 == 0 and hvd.rank() == 0:
            print(f"epoch {epoch} [{batch * len(data)}/{len(train_sampler)}] loss {loss.item():.4f}")


def test():
    model.eval()
    loss, right = 0.0, 0.0
    with torch.no_grad():
        for data, target in test_loader:
            output, target = model(data.to(device)), target.to(device)
            loss += F.nll_loss(output, target, reduction="sum").item()
            right += (output.argmax(1) == target).float().sum().item()
    loss = metric_average(loss / len(test_sampler), "avg_loss")
    accuracy = metric_average(right / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"test loss {loss:.4f} accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(42 + hvd.rank())  # different weights, until rank 0's are broadcast
    cuda = not args.no_cuda and torch.cuda.is_available()
    device = torch.device("cuda", hvd.local_rank()) if cuda else torch.device("cpu")
    torch.set_num_threads(1)
    train_set, test_set = make_set(512, 1), make_set(128, 2)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_loader = DataLoader(test_set, batch_size=64, sampler=test_sampler)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
    )
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        final_accuracy = test()
