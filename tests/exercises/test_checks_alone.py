"""The checks that need no ranks: right answers pass, and each kind of mistake has a hint of its own."""

import math

from answers import Checks


class TestBaseline(Checks):
    notebook = "01_baseline.ipynb"
    mistakes = {
        "timed_steps": [
            "        synchronize()\n => ",
            "    synchronize()\n    for => \n    for",
            "return times[warmup:] => return times",
            "range(steps) => range(steps - warmup)",
            "return times[warmup:] => return sum(times[warmup:])",
            "began = clock()\n        step() => step()\n        began = clock()",
            "step()\n        synchronize() => step()\n        len(times) % 2 or synchronize()",
        ],
    }


class TestDataParallel(Checks):
    notebook = "02_data_parallel.ipynb"
    mistakes = {
        "reduce_gradients": [
            "size / total => 1",
            "size / total => 1 / len(sizes)",
            "size / total => size",
            "size / total => 1 / size",
            lambda gradients, sizes: [],
            lambda gradients, sizes: gradients[0][::-1],
        ],
    }


class TestPrecision(Checks):
    notebook = "04_mixed_precision.ipynb"
    right = {"amp_step": ["nn.utils.clip_grad_norm_ => torch.nn.utils.clip_grad_norm_"]}
    mistakes = {
        "amp_step": [
            " / len(micro_batches) => ",
            "    scaler.unscale_(optimizer)\n => ",
            "scaler.step(optimizer) => optimizer.step()",
            (
                "    scaler.unscale_(optimizer)\n =>  ;; scaler.step(optimizer) => optimizer.step() ;; "
                "scaler.update() => pass"
            ),
        ],
    }


class TestBatch(Checks):
    notebook = "05_batch_and_accuracy.ipynb"
    mistakes = {
        "diagnosis": [
            '"more work" => "nothing"',
            '"few updates" => "nothing"',
            '"too long steps" => "nothing"',
            '"D": "nothing" => "D": "more work"',
        ],
    }


LINE = "torchrun --nnodes={} --nproc-per-node={} --rdzv-backend=c10d --rdzv-endpoint={} --rdzv-id=first train.py"


class TestHosts(Checks):
    notebook = "09_several_machines.ipynb"
    mistakes = {
        "command_for": [
            lambda host, hosts, each: "torchrun --standalone train.py",
            lambda host, hosts, each: LINE.format(1, each, hosts[0]),
            lambda host, hosts, each: LINE.format(len(hosts), each * len(hosts), hosts[0]),
            lambda host, hosts, each: LINE.format(len(hosts), 1, hosts[0]),
            lambda host, hosts, each: LINE.format(len(hosts), each, host),
            lambda host, hosts, each: LINE.format(len(hosts), each, "localhost:29400"),
            lambda host, hosts, each: LINE.format(len(hosts), each, "login"),
            lambda host, hosts, each: f"torchrun --nnodes {len(hosts)} --nproc_per_node {each} train.py",
            lambda host, hosts, each: LINE.replace("=c10d", "=static").format(len(hosts), each, hosts[0]),
            lambda host, hosts, each: LINE.replace("first", host).format(len(hosts), each, hosts[0]),
        ],
        "ring_seconds": [
            lambda size, n, a, b: 2 * (n - 1) / n * size * b,
            lambda size, n, a, b: (n - 1) * (a + size / n * b),
            lambda size, n, a, b: 2 * n * (a + size / n * b),
            lambda size, n, a, b: max(a, 2 * (n - 1) * (a + size / n * b)),
        ],
        "not_hidden": [
            lambda backward, ready, costs: sum(costs),
            lambda backward, ready, costs: costs[-1],
            lambda backward, ready, costs: sum(costs) - backward,
            lambda backward, ready, costs: max(0, sum(costs) - backward),
        ],
    }


class TestSlowLinks(Checks):
    notebook = "more/09_slow_links.ipynb"
    mistakes = {
        "choose_h": [
            lambda step, megabytes, rate, most: 8 * megabytes / rate * (1 / most - 1) / step,
            "8 * megabytes => megabytes",
            "8 * megabytes => 16 * megabytes",
            "(every * step + send) => every * step",
            lambda step, megabytes, rate, most: 1,
            lambda step, megabytes, rate, most: 1000,
        ],
    }


class TestReport(Checks):
    notebook = "10_report.ipynb"
    mistakes = {
        "runs_needed": [
            lambda spread, gain: 8 * (spread / gain) ** 2,
            lambda spread, gain: math.ceil(4 * (spread / gain) ** 2) or 2,
            lambda spread, gain: math.ceil(8**0.5 * spread / gain),
            lambda spread, gain: 2,
            lambda spread, gain: 500,
        ],
    }


class TestLongSequences(Checks):
    notebook = "14_long_sequences_and_experts.ipynb"
    right = {
        "balanced": [
            lambda length, ranks: [
                sorted(p for p in range(length) if min(p % (2 * ranks), 2 * ranks - 1 - p % (2 * ranks)) == rank)
                for rank in range(ranks)
            ]
        ]
    }
    mistakes = {
        "balanced": [
            lambda length, ranks: [list(range(rank, length, ranks)) for rank in range(ranks)],
            "range(ranks)] => range(ranks - 1)]",
            "pieces[-1 - rank] => pieces[rank + 1]",
            "pieces[rank] + pieces[-1 - rank] => pieces[-1 - rank] + pieces[rank]",
            lambda length, ranks: [list(range(length)), *[[]] * (ranks - 1)],
            lambda length, ranks: [list(part) for part in zip(*[iter(range(length))] * (length // ranks), strict=True)],
        ],
        "capacity": [
            lambda loads, most: -(-sum(loads) // len(loads)),
            lambda loads, most: max(loads),
            lambda loads, most: 1,
            lambda loads, most: 1.5,
            lambda loads, most: 9,
        ],
        "scaled": [
            lambda weights, kept: weights * kept,
            lambda weights, kept: weights * 1,
            "torch.where(total > 0, total, 1.0) => total",
            "left / torch.where(total > 0, total, 1.0) => torch.where(total > 0, left / total, 0.0)",
            "left / torch.where(total > 0, total, 1.0) => left / torch.where(total > 0, total, 1.0).detach()",
            lambda weights, kept: weights * kept / kept.double().mean(),
            lambda weights, kept: weights * 0 + 0.5 * kept,
        ],
    }
