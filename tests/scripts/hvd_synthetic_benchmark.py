"""Images a second on random data, with Horovod: what one runs first on a new machine."""

import argparse
import timeit

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torchvision import models

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", default="resnet50", help="a model of torchvision")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--num-warmup-batches", type=int, default=10)
parser.add_argument("--num-batches-per-iter", type=int, default=10)
parser.add_argument("--num-iters", type=int, default=10)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()

hvd.init()
cuda = not args.no_cuda and torch.cuda.is_available()
device = torch.device("cuda", hvd.local_rank()) if cuda else torch.device("cpu")
torch.manual_seed(hvd.rank())

model = getattr(models, args.model)(norm_layer=hvd.SyncBatchNorm).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

data = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
target = torch.randint(0, 1000, (args.batch_size,), device=device)


def benchmark_step():
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()


def log(text):
    if hvd.rank() == 0:
        print(text)


kind = "GPU" if cuda else "CPU"
log(f"{args.model}, batches of {args.batch_size}, {hvd.size()} {kind}s")
timeit.timeit(benchmark_step, number=args.num_warmup_batches)
speeds = []
for turn in range(args.num_iters):
    seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
    speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
    log(f"turn {turn}: {speeds[-1]:.1f} images/s a {kind}")
log(f"all {hvd.size()}: {hvd.size() * np.mean(speeds):.1f} +- {hvd.size() * 1.96 * np.std(speeds):.1f} images/s")
