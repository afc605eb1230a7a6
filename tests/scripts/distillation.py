"""One GPU, chosen inside the script: CUDA_VISIBLE_DEVICES from an option, `.cuda()` everywhere, a frozen teacher,
timing with synchronize, gradients accumulated over batches, an average of the weights."""

import argparse
import copy
import os
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", default="0", type=str, help="id of the GPU to use")
parser.add_argument("--accum", default=2, type=int)
parser.add_argument("--T", default=4.0, type=float)
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


set_seed(42)
inputs, labels = torch.randn(48, 1, 10, 10), torch.randint(0, 5, (48,))
teacher = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5)).cuda()
student = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)).cuda()
teacher.eval()
for p in teacher.parameters():
    p.requires_grad = False
average = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
criterion = nn.CrossEntropyLoss().cuda()

for epoch in range(2):
    torch.cuda.synchronize()
    start = time.time()
    for step in range(6):
        x = inputs[8 * step : 8 * step + 8].cuda(non_blocking=True)
        y = labels[8 * step : 8 * step + 8].cuda(non_blocking=True)
        with torch.no_grad():
            soft = F.softmax(teacher(x) / args.T, dim=1)
        logits = student(x)
        kd = F.kl_div(F.log_softmax(logits / args.T, dim=1), soft, reduction="batchmean") * args.T**2
        loss = (0.3 * criterion(logits, y) + 0.7 * kd) / args.accum
        loss.backward()
        if (step + 1) % args.accum == 0:
            optimizer.step()
            optimizer.zero_grad()
            for p, q in zip(average.parameters(), student.parameters()):
                p.data.mul_(0.9).add_(q.data, alpha=0.1)
    scheduler.step()
    torch.cuda.synchronize()
    correct = (average(inputs.cuda()).argmax(1).cpu() == labels).sum().item()
    memory = torch.cuda.max_memory_allocated() / 1024**2
    print(f"[{time.time() - start:.2f} s, {memory:.1f} MB]", flush=True)
    print(f"epoch {epoch} loss {loss.item():.7f} average {correct} of 48 on {torch.cuda.get_device_name(0)}"[:40])
