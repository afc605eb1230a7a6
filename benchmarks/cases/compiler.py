"""One case of the compiler benchmark, in a process of its own: `python -m benchmarks.cases.compiler '{"model": …}'`.

Prints what it found as JSON in its last line.
"""

import json
import sys
import time
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.cases import planted
from helpers import device
from helpers.compiler import Plan, compiler_stats, optimize
from helpers.training import models

ROUNDS = 11


def steps_of(net, images, labels, lr=0.01):
    """A function that makes one training step with `call` in the place of the model."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)

    def step(call):
        optimizer.zero_grad()
        F.cross_entropy(call(images), labels).backward()
        optimizer.step()
        device.synchronize(images.device)

    return step


def main(case):
    torch.set_num_threads(1)
    where = device.of_rank(0)
    torch.manual_seed(0)
    net = models.build(case["model"], 10).to(where).train()
    images = torch.randn(case["batch"], 3, case["pixels"], case["pixels"], device=where)
    labels = torch.randint(0, 10, (case["batch"],), device=where)
    step = steps_of(net, images, labels)
    began = time.perf_counter()
    if case["what"] == "faults":
        plans = [Plan(getattr(planted, fault)) for fault in planted.FAULTS] + [Plan(planted.same), Plan("aot_eager")]
        optimize(net, plans, rounds=1, log=None)
    elif case["what"] == "no compiler":
        optimize(net, ["inductor"], rounds=1, log=None)
    else:
        optimize(net, bf16=case["bf16"], log=None)
    while not net.tuner.done:
        step(net)
    found = {
        "tuning_s": time.perf_counter() - began,
        "rows": net.tuner.rows(),
        "choice": str(net.tuner.choice),
        "compile_s": compiler_stats().compile_s,
    }
    if case["what"] == "cold":
        found["samples"] = exhaustive(net, step, found["rows"])
    print(json.dumps(found))


def exhaustive(net, step, rows):
    """Seconds of whole training steps of every plan that is right, taking turns."""
    plans = {str(plan): plan for plan in net.tuner.plans}
    right = [row["plan"] for row in rows if row["status"] in ("baseline", "chosen", "slower")]
    calls = {name: partial(plans[name].make(net.tuner.function), net) for name in right}
    samples = {name: [] for name in right}
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            step(call)
            if number:  # the first compiles
                samples[name].append(time.perf_counter() - began)
    return samples


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
