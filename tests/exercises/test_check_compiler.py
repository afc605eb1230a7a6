"""The checks of notebook 06: right answers pass, and each kind of mistake has a hint of its own."""

from answers import Checks, cells, function, objection

PADDED = "padded = torch.cat([part, part.new_zeros(batch - n, *part.shape[1:])])"
LAYER = "nn.Linear(16, 4)"


class TestCompiler(Checks):
    notebook = "06_compiler.ipynb"
    right = {
        "one_graph": ["x * (3 / peak.clamp(min=3)) => torch.where(peak > 3, x * (3 / peak), x)"],
        "one_compilation": [f"{PADDED} => padded = part\n        torch._dynamo.mark_dynamic(part, 0)"],
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
            f"{LAYER} => {LAYER}\n        self.third = nn.Linear(4, 4)",
            f"{LAYER} => {LAYER}\n        self.calls = 0 ;; return => self.calls += 1; return 0 * self.calls +",
        ],
        "one_compilation": [
            f"{PADDED} => padded = part",
            "optimizer.step() => pass",
            "in zip( => in 2 * list(zip( ;; )): => ))):",
            "model(padded) => model._orig_mod(padded)",
        ],
    }


def test_an_earlier_cell_does_not_teach_the_compiler(capsys):
    """Dynamo remembers which sizes of a piece of code have varied; the first attempt must still be wrong."""
    source = cells(TestCompiler.notebook)["compiler-turn-epoch-code"]
    for _ in range(2):
        objection("one_compilation", function("train_epoch", source, TestCompiler.notebook), capsys)
