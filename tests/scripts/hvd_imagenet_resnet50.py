"""ResNet-50 with Horovod at full dress: warm-up, accumulation, compression, checkpoints of rank 0, resume."""

import argparse
import math
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision import models

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", default="resnet50")
parser.add_argument("--images", type=int, default=20, help="of the training set; the last batch is short")
parser.add_argument("--image-size", type=int, default=32)
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--batches-per-allreduce", type=int, default=1, help="batches between two updates")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.0125)
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--wd", type=float, default=5e-5)
parser.add_argument("--no-cuda", action="store_true")


class Metric:
    """The average over all batches of all ranks."""

    def __init__(self, name):
        self.name, self.sum, self.n = name, torch.tensor(0.0), 0

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def average(self):
        return (self.sum / self.n).item()


def adjust_learning_rate(epoch, batch):
    """From base_lr to base_lr * size() in the first epochs; see https://arxiv.org/abs/1706.02677."""
    if epoch < args.warmup_epochs:
        epoch += (batch + 1) / len(train_loader)
        factor = 1 / hvd.size() * (epoch * (hvd.size() - 1) / args.warmup_epochs + 1)
    else:
        factor = 1.0 if epoch < 30 else 0.1
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * factor
    return optimizer.param_groups[0]["lr"]


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    loss_metric = Metric("train_loss")
    for batch, (data, target) in enumerate(train_loader):
        lr = adjust_learning_rate(epoch, batch)
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        for start in range(0, len(data), args.batch_size):
            part = slice(start, start + args.batch_size)
            loss = F.cross_entropy(model(data[part]), target[part])
            loss_metric.update(loss)
            loss.div_(math.ceil(len(data) / args.batch_size))
            loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1} lr {lr:.5f} loss {loss_metric.average:.4f}")


def validate(epoch):
    model.eval()
    loss_metric = Metric("val_loss")
    with torch.no_grad():
        for data, target in val_loader:
            loss_metric.update(F.cross_entropy(model(data.to(device)), target.to(device)))
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1} validation loss {loss_metric.average:.4f}")


def save_checkpoint(epoch):
    if hvd.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


def make_loader(count, batch_size, seed):
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, args.image_size, args.image_size, generator=random)
    data = TensorDataset(images, torch.randint(0, 1000, (count,), generator=random))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    return sampler, DataLoader(data, batch_size=batch_size, sampler=sampler)


if __name__ == "__main__":
    args = parser.parse_args()
    hvd.init()
    cuda = not args.no_cuda and torch.cuda.is_available()
    device = torch.device("cuda", hvd.local_rank()) if cuda else torch.device("cpu")
    torch.manual_seed(42)
    resume_from_epoch = 0
    for epoch in range(args.epochs, 0, -1):
        if hvd.rank() == 0 and os.path.exists(args.checkpoint_format.format(epoch=epoch)):
            resume_from_epoch = epoch
            break
    resume_from_epoch = hvd.broadcast(torch.tensor(resume_from_epoch), 0, name="resume_from_epoch").item()
    train_sampler, train_loader = make_loader(args.images, args.batch_size * args.batches_per_allreduce, 1)
    val_sampler, val_loader = make_loader(8, args.batch_size, 2)
    model = getattr(models, args.model)().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr, momentum=0.9, weight_decay=args.wd)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch), map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(resume_from_epoch, args.epochs):
        train(epoch)
        validate(epoch)
        save_checkpoint(epoch)
