"""CIFAR-like training of one process in the style of the well-known CIFAR repositories: a device string,
DataParallel, cudnn.benchmark, a checkpoint folder, cosine annealing. The images come from a seed."""

import argparse
import os

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

parser = argparse.ArgumentParser(description="A small ResNet on small pictures")
parser.add_argument("--lr", default=0.05, type=float, help="learning rate")
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--resume", "-r", action="store_true", help="go on from checkpoint/ckpt.pth")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
best_acc = 0
start_epoch = 0
torch.manual_seed(7)


class SmallResNet(nn.Module):
    def __init__(self, classes=4, channels=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x):
        out = F.max_pool2d(F.relu(self.conv1(x)), 2)
        out = F.relu(self.bn(self.conv2(out)) + out)
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


def images(count, seed):
    """Noise with one bright quadrant; which one is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    pictures = torch.randn(count, 3, 16, 16, generator=generator)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        top, left = 8 * (label // 2), 8 * (label % 2)
        picture[:, top : top + 8, left : left + 8] += 1.5
    return torch.utils.data.TensorDataset(pictures, labels)


trainloader = torch.utils.data.DataLoader(images(40, 1), batch_size=16, shuffle=False, num_workers=0)
testloader = torch.utils.data.DataLoader(images(20, 2), batch_size=10, shuffle=False, num_workers=0)

net = SmallResNet()
net = net.to(device)
if device == "cuda":
    net = torch.nn.DataParallel(net)
    cudnn.benchmark = True

criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

if args.resume:
    checkpoint = torch.load("./checkpoint/ckpt.pth")
    net.load_state_dict(checkpoint["net"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    best_acc = checkpoint["acc"]
    start_epoch = checkpoint["epoch"] + 1


def train(epoch):
    net.train()
    train_loss = correct = total = 0
    for inputs, targets in trainloader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()

        train_loss += loss.item()
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
    print(f"epoch {epoch} loss {train_loss / len(trainloader):.6f} acc {100.0 * correct / total:.2f}")


def test(epoch):
    global best_acc
    net.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, targets in testloader:
            inputs, targets = inputs.to(device), targets.to(device)
            _, predicted = net(inputs).max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
    best_acc = max(best_acc, 100.0 * correct / total)
    print(f"test {epoch} acc {100.0 * correct / total:.2f} of {total} images, best {best_acc:.2f}")


for epoch in range(start_epoch, args.epochs):
    train(epoch)
    test(epoch)
    scheduler.step()
    os.makedirs("checkpoint", exist_ok=True)
    state = {"net": net.state_dict(), "acc": best_acc, "epoch": epoch}
    state.update(optimizer=optimizer.state_dict(), scheduler=scheduler.state_dict())
    torch.save(state, "checkpoint/ckpt.pth")
