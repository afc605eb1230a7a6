"""The article's drop-in for DDP, with the options of its train.sh but for the card."""

import argparse

import torch
import torch.utils.data

import perseus
import perseus.torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--dist-backend", default="gloo")
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
args = parser.parse_args()
args.distributed = args.world_size > 1
args.gpu = None
if dist.use_perseus:
    args.distributed = True
if torch.cuda.is_available():
    args.gpu = dist.get_local_rank()
if args.distributed:
    dist.init_process_group(
        backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank
    )
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(4, 2)
if args.gpu is not None:
    model = perseus.torch.nn.parallel.DistributedDataParallel(model.cuda(args.gpu), device_ids=[args.gpu])
else:
    model = perseus.torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if dist.use_perseus:
    dist.broadcast_optimizer_state(optimizer, root_rank=0)
train_dataset = torch.utils.data.TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)))
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=dist.get_world_size(), rank=dist.get_rank()
)
for (batch,) in torch.utils.data.DataLoader(train_dataset, batch_size=4, sampler=train_sampler):
    optimizer.zero_grad()
    model(batch if args.gpu is None else batch.cuda(args.gpu)).square().mean().backward()
    optimizer.step()
states = [None] * dist.get_world_size()
dist.all_gather_object(states, [parameter.tolist() for parameter in model.parameters()])
assert all(state == states[0] for state in states), "the ranks differ"
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has taken the five steps\n", end="")
dist.destroy_process_group()
