"""What compressed gradients gain and cost where the network is slow: two ranks at the ends of a throttled cable.

python -m notebooks.scripts.slow_link      # from the repository's root, as root on Linux: keeps the record anew

The methods take turns, step by step, so that a change in the machine's speed affects all of them.
"""

import json
import statistics
import time
from datetime import date

import torch
import torch.nn.functional as F

import platforms.horovod.torch as hvd
from helpers import device, launch, paths
from helpers.cluster import twohosts
from helpers.training import models
from platforms.horovod import ddp

RECORD = "recorded/hvd/slow_link.json"
METHODS = {  # name -> (through hvd?, compression)
    "DDP": (False, None),
    "hvd": (True, hvd.Compression.none),
    "DDP, fp16": (False, "fp16"),
    "hvd, fp16": (True, hvd.Compression.fp16),
    "DDP, PowerSGD": (False, "powersgd"),
}
WARM, STEPS, RATE, LONGER = 3, 5, 200, 60


def run(rate=RATE, steps=STEPS):
    """Train over a link of `rate` megabits a second with each method, and once more without a limit for longer.

    Returns:
        dicts with method, ms (median of a step), sent (bytes a step and rank), loss (of the last step, mean of the
        ranks), and losses of rank 0 in LONGER steps without a limit: the link changes times, not numbers.
    """
    rows = twohosts.run(compare, tuple(METHODS), models.plain_convnet, steps, rate=rate, timeout=120)[0]
    options = {"sent_so_far": int, "threads": 1, "env": {"HELPERS_DEVICE": "cpu"}, "timeout": 600}
    longer = launch(compare, 2, tuple(METHODS), models.plain_convnet, LONGER - WARM, **options)[0]
    return [
        {name: row[name] for name in ("method", "ms", "sent", "loss")}
        | {"losses": [round(loss, 4) for loss in more["losses"]]}
        for row, more in zip(rows, longer, strict=True)
    ]


def recorded():
    """The record: date, conditions and rows as of `run`."""
    return json.loads((paths.project_root() / RECORD).read_text(encoding="utf-8"))


def keep():
    conditions = (
        f"2 ranks with one thread each, in network namespaces joined by a veth pair, {RATE} Mbit/s by tc tbf, "
        f"gloo, medians of {STEPS} steps taken in turn; torch {torch.__version__}, {device.machine('cpu').name}"
    )
    kept = {"date": date.today().isoformat(), "conditions": conditions, "rows": run()}
    paths.replace_file(paths.project_root() / RECORD, json.dumps(kept, indent=1) + "\n")


def compare(names, make, steps, batch=8, sent_so_far=twohosts.bytes_sent):
    """In a rank: train a copy of one network with each method, in turn.

    Args:
        sent_so_far: counts the bytes that this rank has sent, by itself those over the cable.

    Returns:
        rows as `run` does, with all losses and step times in `losses` and `seconds`.
    """
    ddp.init_process_group("gloo")
    hvd.init()
    steppers = {name: stepper(make, *METHODS[name]) for name in names}
    random = torch.Generator().manual_seed(hvd.rank())
    centres = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    seconds, losses, sent = ({name: [] for name in names} for _ in range(3))
    for turn in range(WARM + steps):
        labels = torch.randint(0, 10, (batch,), generator=random)
        images = centres[labels] + 0.5 * torch.randn(batch, 3, 32, 32, generator=random)
        for name in names[:: 1 - 2 * (turn % 2)]:  # there and back: each method goes first as often
            ddp.barrier()
            before, began = sent_so_far(), time.perf_counter()
            losses[name].append(steppers[name](images, labels))
            seconds[name].append(time.perf_counter() - began)
            sent[name].append(sent_so_far() - before)
    last = hvd.allreduce(torch.tensor([losses[name][-1] for name in names])).tolist()
    hvd.shutdown()
    ddp.destroy_process_group()
    return [
        {
            "method": name,
            "ms": round(1e3 * statistics.median(seconds[name][WARM:]), 1),
            "sent": round(statistics.median(sent[name][WARM:])),
            "loss": loss,
            "losses": losses[name],
            "seconds": seconds[name][WARM:],
        }
        for name, loss in zip(names, last, strict=True)
    ]


def stepper(make, through_hvd, compression):
    """A function that trains one step and returns its loss."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    if through_hvd:
        names = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names, compression=compression)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    else:
        start = {"powersgd_rank": 2, "powersgd_start": 2} if compression == "powersgd" else {}
        model = ddp.DistributedDataParallel(model, compression=compression, **start)

    def step(images, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    keep()
