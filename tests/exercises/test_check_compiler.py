"""The checks of notebook 06: right answers pass, and each kind of mistake has a hint of its own."""

import pytest
import torch
import torch.nn.functional as F
from answers import Checks, cells, function, objection
from torch import nn

from exercises import check

PADDED = "padded = torch.cat([part, part.new_zeros(batch - n, *part.shape[1:])])"
ZEROS = "part.new_zeros(batch - n, *part.shape[1:])"
LAYER = "nn.Linear(16, 4)"


def refuses_none(eager, plan, exact):
    return not (plan - exact).norm() > 3 * max((eager - exact).norm(), 1e-6 * exact.norm())


class TestCompiler(Checks):
    notebook = "06_compiler.ipynb"
    known = dict(torch=torch, nn=nn, F=F)
    exercises = {
        "one_graph": ("compiler-turn-graph", "OneGraph"),
        "one_compilation": ("compiler-turn-epoch", "train_epoch"),
        "close_enough": ("compiler-turn-right", "close_enough"),
    }
    slow = ("one_graph", "one_compilation")
    mistakes = {
        "one_graph": [
            ".detach() => .clone()",
            "x * (3 / peak.clamp(min=3)) => x",
            "return => return 2 *",
            "self.second(x) => self.second(x).detach()",
            "return => _ =",
            "x = self.first(x) => x = x @ x",
            "x = self.first(x) => print('', end='')\n        x = self.first(x)",
            (f"{LAYER} => {LAYER}\n        self.third = nn.Linear(4, 4)", lambda: 3),
            f"{LAYER} => {LAYER}\n        self.calls = 0 ;; return => self.calls += 1\n        return 0 * self.calls +",
            3,
        ],
        "one_compilation": [
            (
                f"{PADDED} => padded = part",
                f"{PADDED} => padded = part\n        if n < batch:\n            torch._dynamo.mark_dynamic(part, 0)",
            ),
            "[:n], answers => , torch.cat([answers, answers.new_zeros(batch - n)])",
            f"{ZEROS} => images[: batch - n] ;; [:n], answers => , torch.cat([answers, labels[: batch - n]])",
            "[:n], answers).backward() => [:n], answers, reduction='sum').div(batch).backward()",
            "optimizer.step() => pass",
            "in zip( => in 2 * list(zip( ;; )): => ))):",
            "model(padded) => model._orig_mod(padded)",
            lambda *given: 1 / 0,
            3,
        ],
        "close_enough": [
            "3 * max((eager - exact).norm(), floor) => 5e-6 * exact.norm()",
            (
                "3 * max((eager - exact).norm(), floor) => 1e-2 * exact.norm()",
                "3 * => 100 *",
                "4 * => 1e4 *",
                lambda eager, plan, exact: torch.allclose(plan, exact, rtol=0.1, atol=1e-4),
                lambda *given: True,
            ),
            (lambda eager, plan, exact: torch.equal(plan, eager), lambda *given: False),
            "3 * => 1 *",
            "4 * => 0 *",
            (refuses_none, "floor = => eager, plan, exact = eager[:7], plan[:7], exact[:7]\n    floor ="),
            "floor = => eager, plan, exact = eager.abs(), plan.abs(), exact.abs()\n    floor =",
            lambda eager, plan: True,
            3,
            lambda eager, plan, exact: plan == exact,
        ],
    }


@pytest.mark.parametrize(
    "name, answer",
    [
        ("one_graph", "x * (3 / peak.clamp(min=3)) => torch.where(peak > 3, x * (3 / peak), x)"),
        ("one_compilation", f"{PADDED} => padded = part\n        torch._dynamo.mark_dynamic(part, 0)"),
        ("one_compilation", "n = len(part) => n = len(part)\n        if n < batch:\n            continue"),
        ("close_enough", "4 * => 8 *"),
        ("close_enough", "(plan - exact) => (plan - eager)"),
    ],
)
def test_other_answers_are_right(name, answer):
    assert getattr(check, name)(TestCompiler.answer(name, answer)) is True


def test_an_earlier_cell_does_not_teach_the_compiler(capsys):
    """Dynamo remembers which sizes of a piece of code have varied; the first attempt must still be wrong."""
    source = cells(TestCompiler.notebook)["compiler-turn-epoch-code"]
    for _ in range(2):
        attempt = function("train_epoch", source, **TestCompiler.known)
        assert "2 compilations" in objection("one_compilation", attempt, capsys)
