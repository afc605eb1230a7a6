"""NVIDIA apex as its examples use it: --local_rank, amp.initialize, apex's own DDP."""

import argparse
import os

import torch
from torch.autograd import Variable

try:
    from apex import amp
    from apex.parallel import DistributedDataParallel, convert_syncbn_model
except ImportError:
    raise ImportError("Please install apex from https://www.github.com/nvidia/apex to run this example.") from None

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", default=os.getenv("LOCAL_RANK", 0), type=int)
parser.add_argument("--opt-level", default="O0", type=str)
parser.add_argument("--sync_bn", action="store_true")
args = parser.parse_args()

args.distributed = False
if "WORLD_SIZE" in os.environ:
    args.distributed = int(os.environ["WORLD_SIZE"]) > 1

if args.distributed:
    torch.cuda.set_device(args.local_rank)
    torch.distributed.init_process_group(backend="nccl", init_method="env://")

torch.backends.cudnn.benchmark = True
torch.manual_seed(0)

N, D_in, D_out = 64, 32, 8
x = Variable(torch.randn(N, D_in)).cuda()
y = Variable(torch.randn(N, D_out)).cuda()

model = torch.nn.Sequential(torch.nn.Linear(D_in, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, D_out))
if args.sync_bn:
    model = convert_syncbn_model(model)
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)

model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
if args.distributed:
    model = DistributedDataParallel(model)

loss_fn = torch.nn.MSELoss().cuda()
for t in range(12):
    optimizer.zero_grad()
    y_pred = model(x)
    loss = loss_fn(y_pred, y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    if args.local_rank == 0:
        print(f"step {t} loss = {loss.item():.8f}")
