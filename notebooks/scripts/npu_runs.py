"""Runs of notebook 07 and of those in more/ that go with it: on emulated cards, or as recorded."""

import re
import tempfile
from functools import cache

from helpers import launch
from platforms import npu
from platforms.npu import run_or_show, trial


def on_card(name, function, *given):
    """What `function` returns on a rank with cards."""
    host = npu.environment(devices=2) | {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return run_or_show("07", name, lambda: launch(function, 1, *given, threads=1, timeout=500, env=host)[0])


@cache
def _images():
    """A folder of 42 small images to train on and 21 to validate with."""
    folder = tempfile.TemporaryDirectory()
    return folder, trial.images(folder.name)  # lives as long as the folder is held


def outcome(name, source, options, **how):
    """Run a script as `python main.py OPTIONS DATA` on two cards or more, and print what happened."""
    found = run_or_show("07", name, lambda: trial.run(source, options, _images()[1], **how))
    print(f"{name}: {told(found)}")
    return found


def told(found):
    """A run in a line: its error, or its cards, steps, kernels and pinned tensors."""
    if re.search("nccl|NCCL|CUDA", found["error"]):  # in other words with other releases
        return "an error that speaks of NCCL or CUDA"
    if found["error"]:
        return short(re.sub(r"npu:\d", "npu:N", found["error"]).split(" (when")[0], 110)
    cards = [int(card) for process in found["processes"] for card in process["cards"]]
    one = found["processes"][0]
    facts = [f"{len(one['losses'])} steps", f"{one['kernels']} kernels", f"{one['pinned']} pinned tensors"]
    return f"runs on {f'cards {cards}' if cards else 'the CPU'}: " + ", ".join(facts if cards else facts[:1])


def short(text, most):
    return text if len(text) <= most else text[: most - 1] + "…"
