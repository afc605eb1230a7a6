"""Hogwild training as in PyTorch's examples: several processes update one model in shared memory, without locks."""

import argparse

import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

parser = argparse.ArgumentParser(description="Hogwild Example")
parser.add_argument("--num-processes", type=int, default=1, metavar="N", help="how many training processes to use")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--cuda", action="store_true", default=False, help="enables CUDA training")
parser.add_argument("--seed", type=int, default=1)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(rank, args, model, device):
    torch.manual_seed(args.seed + rank)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    model.train()
    for step in range(args.steps):
        data, target = torch.randn(16, 8), torch.arange(16) % 4
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
        print(f"process {rank} step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    args = parser.parse_args()
    use_cuda = args.cuda and torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    torch.manual_seed(args.seed)
    mp.set_start_method("spawn", force=True)
    model = Net().to(device)
    model.share_memory()  # gradients are allocated lazily, so they are not shared here

    processes = []
    for rank in range(args.num_processes - 1):
        p = mp.Process(target=train, args=(rank + 1, args, model, device))
        p.start()
        processes.append(p)
    train(0, args, model, device)
    for p in processes:
        p.join()
