"""The checks of notebook 06: right answers pass, and each kind of mistake has a hint of its own."""

import torch
import torch.nn.functional as F
from exercises import Checks, cells, function, objection
from torch import nn

from helpers import check


class Model(nn.Module):
    """A right answer, with mistakes to choose from."""

    constant, factor, keep = True, True, 1.0

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        spread = x.std()
        x = F.silu(x / (spread.detach() if self.constant else spread))
        peak = x.abs().max()
        if self.factor:
            x = torch.where(peak > 3, x * (3 / peak), x)
        return self.keep * self.second(x)


def with_(**mistakes):
    return type("Mistaken", (Model,), mistakes)


class Talks(Model):
    def forward(self, x):
        print("", end="")
        return super().forward(x)


class OtherLayers(Model):
    def __init__(self):
        super().__init__()
        self.third = nn.Linear(4, 4)


class ByValue(Model):
    """No break, but compiled again for each value of a Python number."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + 0 * self.calls


def test_another_way_to_one_graph():
    assert check.one_graph(Model) is True


def epoch(model, optimizer, images, labels, batch, *, last="mark", step=True, mean=True):
    for part, answers in zip(images.split(batch), labels.split(batch), strict=True):
        n, missing = len(part), batch - len(part)
        if last == "mark":
            torch._dynamo.mark_dynamic(part, 0)
        if last == "drop" and missing:
            continue
        if last == "wrap":
            part, answers = torch.cat([part, images[:missing]]), torch.cat([answers, labels[:missing]])
            n = batch
        if last in ("pad", "learn"):
            part = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
        if last == "learn":
            answers, n = torch.cat([answers, answers.new_zeros(missing)]), batch
        optimizer.zero_grad()
        losses = F.cross_entropy(model(part)[:n], answers, reduction="none")
        (losses.mean() if mean else losses.sum() / batch).backward()
        if step:
            optimizer.step()


def not_compiled(model, *given):
    epoch(model._orig_mod, *given)


def marks_late(model, optimizer, images, labels, batch):
    for part, answers in zip(images.split(batch), labels.split(batch), strict=True):
        if len(part) < batch:
            torch._dynamo.mark_dynamic(part, 0)
        epoch(model, optimizer, part, answers, batch, last="as it comes")


def test_other_ways_to_one_compilation():
    for last in ("mark", "pad", "drop"):
        assert check.one_compilation(lambda *given, last=last: epoch(*given, last=last)) is True


def test_an_earlier_cell_does_not_teach_the_compiler(capsys):
    """Dynamo remembers which sizes of a piece of code have varied; the first attempt must still be wrong."""
    for _ in range(2):
        source = cells(TestCompiler.notebook)["compiler-turn-epoch-code"]
        attempt = function("train_epoch", source, **TestCompiler.known)
        assert "2 compilations" in objection("one_compilation", attempt, capsys)


def far(a, b):
    return (a - b).norm()


def near(eager, plan, exact, *, allowed=3.0, floor=1e-6, forgive=False):
    most = allowed * max(far(eager, exact), floor * exact.norm())
    return not far(plan, exact) > most if forgive else far(plan, exact) <= most


def test_other_tolerances_that_are_right():
    assert check.close_enough(near) is True
    by_eager = lambda eager, plan, exact: far(plan, eager) <= 5 * far(eager, exact) + 1e-6 * exact.norm()  # noqa: E731
    assert check.close_enough(by_eager) is True


class TestCompiler(Checks):
    notebook = "06_compiler.ipynb"
    known = dict(torch=torch, nn=nn, F=F)
    exercises = {
        "one_graph": ("compiler-turn-graph", "OneGraph"), "one_compilation": ("compiler-turn-epoch", "train_epoch"),
        "close_enough": ("compiler-turn-right", "close_enough"),
    }  # fmt: skip
    slow = ("one_graph", "one_compilation")
    mistakes = {
        "one_graph": [
            with_(constant=False), with_(factor=False), with_(keep=2.0),
            type("Cut", (Model,), {"forward": lambda self, x: Model.forward(self, x).detach()}),
            type("Empty", (Model,), {"forward": lambda self, x: None}),
            type("Fails", (Model,), {"forward": lambda self, x: x @ x}), Talks, (OtherLayers, lambda: 3), ByValue, 3,
        ],
        "one_compilation": [
            (lambda *given: epoch(*given, last="as it comes"), marks_late), lambda *given: epoch(*given, last="learn"),
            lambda *given: epoch(*given, last="wrap"), lambda *given: epoch(*given, last="pad", mean=False),
            lambda *given: epoch(*given, step=False), lambda *given: (epoch(*given), epoch(*given)), not_compiled,
            lambda *given: 1 / 0, 3,
        ],
        "close_enough": [
            lambda eager, plan, exact: far(plan, exact) <= 5e-6 * exact.norm(),
            (lambda eager, plan, exact: far(plan, exact) <= 1e-2 * exact.norm(),
             lambda eager, plan, exact: torch.allclose(plan, exact, rtol=0.1, atol=1e-4),
             lambda *given: near(*given, allowed=100.0), lambda *given: near(*given, floor=1e-3), lambda *given: True),
            (lambda eager, plan, exact: torch.equal(plan, eager), lambda *given: False),
            lambda *given: near(*given, allowed=1.0), lambda *given: near(*given, floor=0.0),
            (lambda *given: near(*given, forgive=True), lambda *given: near(*(t[:7] for t in given))),
            lambda eager, plan, exact: near(eager.abs(), plan.abs(), exact.abs()), lambda eager, plan: True, 3,
            lambda eager, plan, exact: plan == exact,
        ],
    }  # fmt: skip
