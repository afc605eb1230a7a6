"""Training in the style of Horovod's PyTorch example, over NCCL: one process a GPU, the learning rate
scaled by their number, parameters broadcast by rank 0, gradients averaged by an optimizer wrapper,
metric_average. Started by torchrun, which stands in for horovodrun."""

import argparse
import os

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="Horovod-like training")
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar", help="names of checkpoints")
parser.add_argument("--batch-size", type=int, default=8, help="images of one GPU")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.02, help="learning rate of a single GPU")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--no-cuda", action="store_true", default=False, help="stay on the CPU")
parser.add_argument("--seed", type=int, default=42)


class DistributedOptimizer:
    """Averages the gradients over all processes before each step."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def step(self):
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        self.optimizer.step()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.bn1 = nn.BatchNorm2d(6)
        self.fc1 = nn.Linear(6 * 5 * 5, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.bn1(self.conv1(x)), 2))
        return self.fc1(x.flatten(1))


def make_dataset(count, seed):
    """12×12 stripes: horizontal, vertical, rising or falling, with noise."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    kinds = torch.stack([torch.sin(y), torch.sin(x), torch.sin(x + y), torch.sin(x - y)])
    labels = torch.randint(4, (count,), generator=generator)
    images = kinds[labels][:, None] + 0.3 * torch.randn(count, 1, 12, 12, generator=generator)
    return torch.utils.data.TensorDataset(images, labels)


def metric_average(val, name):
    tensor = torch.tensor(val)
    if args.cuda:
        tensor = tensor.cuda()
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


def adjust_learning_rate(epoch, batch_idx):
    """From base_lr up to size × base_lr during the warm-up, then a tenth after 30 and 60 epochs."""
    size = dist.get_world_size()
    if epoch < args.warmup_epochs:
        done = epoch + float(batch_idx + 1) / len(train_loader)
        lr_adj = 1.0 / size * (done * (size - 1) / args.warmup_epochs + 1)
    else:
        lr_adj = 10.0 ** -((epoch >= 30) + (epoch >= 60))
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * size * lr_adj


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        adjust_learning_rate(epoch, batch_idx)
        if args.cuda:
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
    train_loss = metric_average(loss.item(), "avg_train_loss")
    if dist.get_rank() == 0:
        print(f"Train epoch {epoch} loss {train_loss:.6f} lr {optimizer.param_groups[0]['lr']:.5f}")


def test(epoch):
    model.eval()
    test_accuracy = 0.0
    with torch.no_grad():
        for data, target in test_loader:
            if args.cuda:
                data, target = data.cuda(), target.cuda()
            test_accuracy += model(data).argmax(1).eq(target).sum().item()
    test_accuracy = metric_average(test_accuracy / len(test_sampler), "avg_accuracy")
    if dist.get_rank() == 0:
        print(f"Test epoch {epoch} accuracy {100 * test_accuracy:.2f} %")


def save_checkpoint(epoch):
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


if __name__ == "__main__":
    args = parser.parse_args()
    args.cuda = not args.no_cuda and torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.manual_seed(args.seed)
    if args.cuda:
        torch.cuda.set_device(local_rank)
        torch.cuda.manual_seed(args.seed)
    cudnn.benchmark = True
    dist.init_process_group("nccl" if args.cuda else "gloo")

    # The newest checkpoint that rank 0 sees says where to go on.
    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    found = torch.tensor(resume_from_epoch)
    if args.cuda:
        found = found.cuda()
    dist.broadcast(found, src=0)
    resume_from_epoch = int(found.item())

    kwargs = {"num_workers": 1, "pin_memory": True} if args.cuda else {}
    train_dataset, test_dataset = make_dataset(40, 1), make_dataset(24, 2)
    size, rank = dist.get_world_size(), dist.get_rank()
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=size, rank=rank)
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, sampler=train_sampler, **kwargs)
    test_sampler = torch.utils.data.distributed.DistributedSampler(test_dataset, num_replicas=size, rank=rank)
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=args.batch_size, sampler=test_sampler, **kwargs)

    model = Net()
    if args.cuda:
        model.cuda()
    optimizer = DistributedOptimizer(
        optim.SGD(model.parameters(), lr=args.base_lr * size, momentum=args.momentum, weight_decay=5e-5))
    if resume_from_epoch > 0:
        where = torch.device("cuda", local_rank) if args.cuda else "cpu"
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch), map_location=where)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    for value in model.state_dict().values():
        dist.broadcast(value, src=0)

    for epoch in range(resume_from_epoch, args.epochs):
        train(epoch)
        test(epoch)
        save_checkpoint(epoch)
    dist.destroy_process_group()
