"""A reader's own model and data: containers, lazy layers, unused heads, random samples, and two processes at once."""

import re
import signal
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from toys import ToySet

import helpers
from helpers import RunConfig


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))


@dataclass
class Output:
    scores: torch.Tensor
    state: torch.Tensor


class Named(OrderedDict):
    """As the outputs of transformers are."""


WRAPS = {
    "tuple": lambda scores, state: (scores, state),
    "named": lambda scores, state: Named(scores=scores, inner={"state": state}),
    "dataclass": Output,
}


class Own(nn.Module):
    """Two heads of which one is never used, and lazy layers."""

    def __init__(self, wrap):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.LazyBatchNorm1d()), nn.LazyLinear(3)
        self.spare, self.wrap = nn.Linear(16, 10), wrap

    def forward(self, x):
        state = self.body(x).tanh()
        return self.wrap(self.head(state), state)


def loss(outputs, labels):
    scores = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "scores", None)
    return nn.functional.cross_entropy(outputs["scores"] if scores is None else scores, labels)


def data():
    return ToySet(dtype=torch.float32), ToySet(37, dtype=torch.float32)


@pytest.mark.parametrize("kind", WRAPS)
def test_any_outputs_lazy_layers_and_a_head_that_is_never_used(kind):
    made = helpers.compare(model=lambda: Own(WRAPS[kind]), dataset=data, loss=loss, steps=6, global_batch=32, devices=2)
    assert [record["status"] for record in made.records] == ["completed"] * 3
    assert all(record["measured"]["evaluation"]["answers"] == 37 for record in made.records)
    assert made.records[0]["measured"]["parameters"] == 192 * 16 + 16 + 2 * 16 + 16 * 3 + 3 + 16 * 10 + 10
    assert re.search(r"find_unused_parameters.*spare\.weight, spare\.bias", made.rows()[2]["note"])


class Random(ToySet):
    """A flip of every second picture."""

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return image.flip(-1) if torch.rand(()) < 0.5 else image, label


class Remembers(nn.Linear):
    """Writes down what it was trained on."""

    def __init__(self, path):
        super().__init__(192, 3)
        self.path = path

    def forward(self, x):
        if self.training:
            with open(self.path, "a") as file:
                file.writelines(f"{image.sum(-2).tolist()}\n" for image in x[:, 0])
        return super().forward(x.flatten(1))


@pytest.mark.parametrize("kind, path, different", [(ToySet, "fast", 32), (Random, "workers", 64)])
def test_samples_that_are_random_are_read_anew_in_each_epoch(kind, path, different, tmp_path):
    sets = (kind(32, dtype=torch.float32),) * 2
    config = RunConfig(
        model=lambda: Remembers(tmp_path / "seen"), data=sets, global_batch=16, epochs=12, evaluate=False
    )
    measured = helpers.run(config)["measured"]
    seen = (tmp_path / "seen").read_text().splitlines()
    assert measured["input_path"] == path and ("random" in measured["note"]) == (path == "workers")
    assert len(seen) == 12 * 32 and len(set(seen)) == different


def test_of_pictures_each_pixel_is_an_answer():
    class Masks(ToySet):
        def __getitem__(self, i):
            return self.images[i], self.labels[i].expand(8, 8)

    config = RunConfig(
        model=lambda: nn.Conv2d(3, 3, 1), data=(Masks(32, torch.float32),) * 2, global_batch=16, epochs=1
    )
    assert helpers.run(config)["measured"]["evaluation"]["answers"] == 32 * 64


OTHER = """
import sys
from helpers.comparison.run import in_turn
work = lambda progress: print("mine", flush=True) or sys.stdin.readline()
in_turn("the other's run", work, ["x"], background=False)
"""


def test_two_processes_measure_one_after_the_other_and_a_dead_one_frees_its_place(tmp_path, monkeypatch):
    for name, value in (("TMPDIR", str(tmp_path)), ("HELPERS_ALONE", "1"), ("HELPERS_PROGRESS", "plain")):
        monkeypatch.setenv(name, value)
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    start = lambda: subprocess.Popen([sys.executable, "-c", OTHER], **pipes)  # noqa: E731
    with start() as first, start() as stopped, start() as second:
        speaks = {process: process.stdout.readline() for process in (first, stopped, second)}
        holder = next(process for process, said in speaks.items() if said == "mine\n")
        stopped, second = (process for process in speaks if process is not holder)
        assert all(f"the other's run ({holder.pid}) in another process" in speaks[one] for one in (stopped, second))
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(60) and "KeyboardInterrupt" in stopped.stdout.read() and second.poll() is None
        holder.kill()
        assert second.stdout.readline() == "mine\n"
        second.communicate("\n", timeout=60)
        assert second.returncode == 0
