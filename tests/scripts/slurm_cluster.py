"""What cluster guides hand out: rank and GPU from Slurm's variables, hosts that meet in a file, gloo without GPUs."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def init_distributed_mode(args):
    args.is_slurm_job = "SLURM_JOB_ID" in os.environ
    if args.is_slurm_job:
        args.rank = int(os.environ["SLURM_PROCID"])
        args.world_size = int(os.environ["SLURM_NNODES"]) * int(os.environ["SLURM_TASKS_PER_NODE"][0])
        args.gpu_to_work_on = args.rank % max(torch.cuda.device_count(), 1)
    else:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu_to_work_on = int(os.environ["LOCAL_RANK"])
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend=backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank,
    )  # fmt: skip
    if torch.cuda.is_available():
        torch.cuda.set_device(args.gpu_to_work_on)
        args.device = torch.device("cuda", args.gpu_to_work_on)
    else:
        args.device = torch.device("cpu")


def main():
    parser = argparse.ArgumentParser("training on a cluster")
    parser.add_argument("--dist-url", default=f"file://{os.getcwd()}/meeting", help="where the processes meet")
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--seed", default=31, type=int)
    args = parser.parse_args()
    init_distributed_mode(args)
    torch.manual_seed(args.seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(args.seed)

    data = torch.utils.data.TensorDataset(torch.randn(48, 12), torch.randint(0, 3, (48,)))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, sampler=sampler, batch_size=6, pin_memory=True, drop_last=True)
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 3)).to(args.device)
    on_gpu = args.device.type == "cuda"
    model = DistributedDataParallel(model, device_ids=[args.gpu_to_work_on] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1).to(args.device)
        for inp, target in loader:
            inp = inp.to(args.device, non_blocking=True)
            target = target.to(args.device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(inp), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if args.rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / args.world_size:.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
