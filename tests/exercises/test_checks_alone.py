"""The checks that need no ranks: right answers pass, and each kind of mistake has a hint of its own."""

import statistics

from answers import Checks


class TestBaseline(Checks):
    notebook = "01_baseline.ipynb"
    mistakes = {
        "timed_steps": [
            "        synchronize()\n => ",
            "    synchronize()\n    for => \n    for",
            "return times[warmup:] => return times",
            "return times[warmup:] => return times[warmup + 1 :]",
            "range(steps) => range(steps - warmup)",
            "return times[warmup:] => return sum(times[warmup:])",
            "began = clock()\n        step() => step()\n        began = clock()",
            "step()\n        synchronize() => step()\n        len(times) % 2 or synchronize()",
        ],
        "sped_up": [
            lambda parts, part, factor: factor,
            "return whole / after => return after / whole",
            "return whole / after => return after",
            lambda parts, part, factor: 1 + parts[part] / sum(parts.values()) * (factor - 1),
            "whole - parts[part] + => ",
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


RAMP = "min(1, (update + 1) / (warmup + 1))"


class TestBatch(Checks):
    notebook = "05_batch_and_accuracy.ipynb"
    mistakes = {
        "learning_rate": [
            f"{RAMP} => min(1, update / max(1, warmup))",
            "(warmup + 1) => max(1, warmup)",
            f"{RAMP} => (update + 1) / (warmup + 1)",
            f"{RAMP} => 1",
            f"{RAMP} => {RAMP} ** 2",
            "lr * global_batch / base_batch => lr",
            "global_batch / base_batch => base_batch / global_batch",
            "global_batch / base_batch => (global_batch / base_batch) ** 0.5",
        ],
        "time_to": [
            lambda curve, target: next((s for s, a in curve if a >= target), curve[-1][0]),
            lambda curve, target: next((a for s, a in curve if a >= target), None),
            lambda curve, target: max(curve, key=lambda point: point[1])[0],
            lambda curve, target: curve[0][0],
            lambda curve, target: sum(a < target for s, a in curve) + 0.25,
            lambda curve, target: None,
            lambda curve, target: [s for s, a in curve if a >= target][0],
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


def by(measure, swapped=False):
    def answer(base, other):
        a, b = measure(base), measure(other)
        return "no difference" if a == b else "faster" if (b < a) != swapped else "slower"

    return answer


class TestReport(Checks):
    notebook = "10_report.ipynb"
    mistakes = {
        "difference": [
            by(statistics.mean),
            by(statistics.median),
            by(statistics.median, swapped=True),
            (
                "low, high = measure.median_interval(base) => low, _, high = statistics.quantiles(base, n=4) ;; "
                "other_low, other_high = measure.median_interval(other) => "
                "other_low, _, other_high = statistics.quantiles(other, n=4)"
            ),
            "other_high < low => max(other) < min(base) ;; other_low > high => min(other) > max(base)",
            lambda base, other: True,
        ],
    }
