"""The checks of notebook 06 accept its solutions and object to mistakes, each in words of its own."""

import sys

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from exercises import assert_verdicts, cells, function, objection
from torch import nn

from helpers import check

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

NOTEBOOK = "06_compiler.ipynb"
KNOWN = dict(torch=torch, nn=nn, F=F)


@pytest.mark.parametrize("exercise, name, cell", [
    ("one_graph", "OneGraph", "compiler-turn-graph"),
    ("one_compilation", "train_epoch", "compiler-turn-epoch"),
    ("close_enough", "close_enough", "compiler-turn-right"),
])  # fmt: skip
def test_the_solution_is_right_and_the_first_attempt_is_not(exercise, name, cell, capsys):
    checks = type("checks", (), {name: staticmethod(getattr(check, exercise))})
    assert_verdicts(checks, name, NOTEBOOK, cell, capsys, **KNOWN)


def test_the_notebook_calls_these_checks():
    code = "\n".join(cells(NOTEBOOK).values())
    assert all(f"check.{name}(" in code for name in ("one_graph", "one_compilation", "close_enough"))


# -- one_graph ----------------------------------------------------------------------------


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
    """No break, but compiled anew for each value of a Python number."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + 0 * self.calls


def test_another_way_to_one_graph(capsys):
    assert check.one_graph(Model) is True


@pytest.mark.parametrize("mistake, words", [
    (with_(constant=False), "the gradients are not"),
    (with_(factor=False), "Where the `if` was taken, the outputs"),
    (with_(keep=2.0), "Where the `if` was not taken, the outputs"),
    (type("Cut", (Model,), {"forward": lambda self, x: Model.forward(self, x).detach()}), "no gradient flows"),
    (type("Empty", (Model,), {"forward": lambda self, x: None}), "Is there a `return`?"),
    (type("Fails", (Model,), {"forward": lambda self, x: x @ x}), "RuntimeError"),
    (Talks, "still breaks at"),
    (OtherLayers, "other layers"),
    (ByValue, "depends on a number's value"),
    (lambda: 3, "other layers"),
    (3, "TypeError"),
])  # fmt: skip
def test_one_graph_objects_to(mistake, words, capsys):
    assert words in objection(check, "one_graph", mistake, capsys)


# -- one_compilation ----------------------------------------------------------------------


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


def test_other_ways_to_one_compilation(capsys):
    for last, words in (("mark", "every sample counts once"), ("pad", "every sample counts once"), ("drop", "6 of 22")):
        assert check.one_compilation(lambda *given, last=last: epoch(*given, last=last)) is True
        assert words in capsys.readouterr().out


def test_an_earlier_cell_does_not_teach_the_compiler(capsys):
    """Dynamo remembers which sizes of a piece of code have varied; the first attempt must still be wrong."""
    for _ in range(2):
        source = cells(NOTEBOOK)["compiler-turn-epoch-code"]
        assert "2 compilations" in objection(check, "one_compilation", function("train_epoch", source, **KNOWN), capsys)


@pytest.mark.parametrize("mistake, words", [
    (lambda *given: epoch(*given, last="as it comes"), "2 compilations"),
    (marks_late, "2 compilations"),
    (lambda *given: epoch(*given, last="learn"), "padding was learnt from"),
    (lambda *given: epoch(*given, last="wrap"), "count twice"),
    (lambda *given: epoch(*given, last="pad", mean=False), "their update is too small"),
    (lambda *given: epoch(*given, step=False), "the weights have not changed"),
    (lambda *given: (epoch(*given), epoch(*given)), "not those of an ordinary epoch"),
    (not_compiled, "nothing was compiled"),
    (lambda *given: 1 / 0, "ZeroDivisionError"),
    (3, "TypeError"),
])  # fmt: skip
def test_one_compilation_objects_to(mistake, words, capsys):
    assert words in objection(check, "one_compilation", mistake, capsys)


# -- close_enough -------------------------------------------------------------------------


def far(a, b):
    return (a - b).norm()


def near(eager, plan, exact, *, allowed=3.0, floor=1e-6, forgive=False):
    most = allowed * max(far(eager, exact), floor * exact.norm())
    return not far(plan, exact) > most if forgive else far(plan, exact) <= most


def test_other_yardsticks_that_are_right(capsys):
    assert check.close_enough(near) is True
    by_eager = lambda eager, plan, exact: far(plan, eager) <= 5 * far(eager, exact) + 1e-6 * exact.norm()  # noqa: E731
    assert check.close_enough(by_eager) is True


@pytest.mark.parametrize("mistake, words", [
    (lambda eager, plan, exact: far(plan, exact) <= 5e-6 * exact.norm(), "In a ResNet"),
    (lambda eager, plan, exact: far(plan, exact) <= 1e-2 * exact.norm(), "In an MLP"),
    (lambda eager, plan, exact: torch.allclose(plan, exact, rtol=0.1, atol=1e-4), "a plan is off by"),
    (lambda eager, plan, exact: torch.equal(plan, eager), "your function refuses it"),
    (lambda *given: near(*given, allowed=1.0), "2 times as far"),
    (lambda *given: near(*given, allowed=100.0), "off by 9e-06: your function takes it"),
    (lambda *given: near(*given, floor=1e-3), "your function takes it"),
    (lambda *given: near(*given, floor=0.0), "How near can fp32 come"),
    (lambda *given: near(*given, forgive=True), "nan"),
    (lambda eager, plan, exact: near(eager.abs(), plan.abs(), exact.abs()), "wrong sign"),
    (lambda eager, plan, exact: near(eager[:7], plan[:7], exact[:7]), "nan"),
    (lambda *given: True, "your function takes it"),
    (lambda *given: False, "your function refuses it"),
    (lambda eager, plan: True, "TypeError"),
    (lambda eager, plan, exact: plan == exact, "Boolean value"),
    (3, "TypeError"),
])  # fmt: skip
def test_close_enough_objects_to(mistake, words, capsys):
    assert words in objection(check, "close_enough", mistake, capsys)
