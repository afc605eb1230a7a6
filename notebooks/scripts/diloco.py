"""Ways to train over a slow link: the loss, the bytes sent and the seconds of each.

`keep(runs, STEPS)` in notebooks/more/09_slow_links.ipynb, as root on Linux, keeps its record anew.
"""

import json
import time
from datetime import date

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import helpers
from helpers import device, paths
from helpers.cluster import twohosts
from helpers.data import sets
from helpers.training.gpt import gpt, next_token_loss

RECORD, SEQUENCES, RATE_OF_ADAM = "recorded/costmodel/diloco.json", 8, 3e-3
HOOKS = ("fp16", "bf16", "PowerSGD")


def ddp(hook=None):
    """The way `train` takes: DDP with AdamW, and a communication hook of `HOOKS`."""

    def way(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE_OF_ADAM)
        trained = DistributedDataParallel(model)
        if hook == "PowerSGD":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
            trained.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook:
            trained.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))

        def update(step):
            optimizer.step()
            optimizer.zero_grad()

        return trained, update

    return way


def train(way, steps, every=5, sent_so_far=twohosts.bytes_sent):
    """On every rank: a dict for each `every` steps: seconds, bytes sent and the loss on sequences of the test set.

    Args:
        way: function of a model that returns (what forward calls, `update(step)` for after each backward).
        sent_so_far: counts the bytes that this rank has sent; by itself those over the link.
    """
    with helpers.distributed() as world:
        data, held_out = sets.load("tokens", "train"), sets.load("tokens", "test").tokens[:32].long()
        torch.manual_seed(0)
        model = gpt(2, 64, 2, len(data.classes), data.length)
        trained, update = way(model)
        order = torch.randperm(len(data.tokens), generator=torch.Generator().manual_seed(1))
        rows, spent, sent_before = [], 0.0, sent_so_far()
        for step in range(steps):
            first = (step * world.size + world.rank) * SEQUENCES
            tokens = data.tokens[order[torch.arange(first, first + SEQUENCES) % len(order)]].long()
            began = time.perf_counter()
            next_token_loss(trained(tokens[:, :-1]), tokens[:, 1:]).backward()
            update(step + 1)
            spent += time.perf_counter() - began
            if (step + 1) % every == 0:
                sent = sent_so_far() - sent_before
                with torch.no_grad():
                    loss = next_token_loss(model(held_out[:, :-1]), held_out[:, 1:]).item()
                rows.append({"step": step + 1, "seconds": round(spent, 3), "sent": sent, "loss": round(loss, 4)})
                dist.barrier()
                sent_before += sent_so_far() - sent_before - sent  # what the barrier sent does not count
        return rows


def run(ways, steps, rate):
    """{name: rows of rank 0} of each {name: way}, on two emulated hosts at the ends of a link of `rate` Mbit/s.

    Raises:
        ValueError: no speed, or an impossible one. RuntimeError: there can be no hosts here, see twohosts.why_not.
    """
    if rate is None:
        raise ValueError("rate is None: without a limit the link is not slow; give its megabits a second")
    with twohosts.two_hosts(rate=rate) as hosts:
        sets.ensure("tokens")
        return {name: hosts.run(train, way, steps, timeout=600)[0] for name, way in ways.items()}


def recorded():
    """The record: date, conditions, and the rows of each way as of `run`."""
    return json.loads((paths.project_root() / RECORD).read_text(encoding="utf-8"))


def keep(found, steps, rate=50):
    """Write the record, which readers without root see."""
    conditions = (
        f"2 ranks with one thread each, in network namespaces joined by a veth pair, {rate} Mbit/s by tc tbf, gloo, "
        f"{steps} steps; torch {torch.__version__}, {device.machine('cpu').name}"
    )
    kept = {"date": date.today().isoformat(), "conditions": conditions, "ways": found}
    paths.replace_file(paths.project_root() / RECORD, json.dumps(kept) + "\n")
