"""The learner's edition: no outputs, empty predictions that are asked for, no solutions, and nobody's work is lost."""

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import exercises
from exercises import verdict
from tools import workshop

SOURCE = """prediction = 23  # steps
predicted_gain, predicted_seconds = 1.5, 5.0
predicted = {"DDP ×2": 0.9 * 2, "SGD": 1} if many > 1 else {}
predicted_file = compute(3)
other = 5"""


def test_predictions_are_emptied_and_nothing_else():
    assert workshop.emptied(SOURCE).splitlines() == [
        "prediction = ...  # steps",
        "predicted_gain, predicted_seconds = ..., ...",
        'predicted = {"DDP ×2": ..., "SGD": ...} if many > 1 else {}',
        "predicted_file = compute(3)",
        "other = 5",
    ]
    assert workshop.emptied("%%ranks\nprediction = 1") == "%%ranks\nprediction = 1"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A folder of one notebook, and its workshop; call it to write the workshop, as `python -m tools.workshop` does."""
    for name, folder in (("ROOT", ""), ("SOURCE", "notebooks"), ("WORKSHOP", "workshop")):
        monkeypatch.setattr(workshop, name, tmp_path / folder)
    for folder in ("scripts", "more"):
        (tmp_path / "notebooks" / folder).mkdir(parents=True)
    (tmp_path / "notebooks" / "more" / "scripts").symlink_to("../scripts")
    folded = "<details><summary>A solution</summary>\n\n42\n\n</details>"
    cells = [
        new_markdown_cell("# One"),
        new_code_cell("prediction = 3", outputs=[new_output("stream", text="3")], execution_count=1),
        new_code_cell("def visits():\n    return 41\n\n\ncheck.visits(visits)"),
        new_markdown_cell(folded),
    ]
    for name in ("one", "more/one"):
        nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    return workshop.write


def test_the_edition_has_no_outputs_no_solutions_and_finds_the_scripts(made):
    assert not list(made())
    cells = nbformat.read(workshop.WORKSHOP / "one.ipynb", as_version=4).cells
    assert cells[1].source == "%load_ext tools.predictions\nprediction = ..."
    assert not cells[1].outputs
    assert 'exercises.solution("visits")' in cells[3].source and "42" not in cells[3].source
    for folder in ("", "more"):
        assert (workshop.WORKSHOP / folder / "scripts").resolve() == workshop.SOURCE / "scripts"


def test_work_is_kept_and_what_nobody_touched_follows_the_source(made):
    list(made())
    mine, source = workshop.WORKSHOP / "one.ipynb", workshop.SOURCE / "one.ipynb"
    source.write_text(source.read_text().replace("# One", "# Two"))
    assert not list(made()) and "# Two" in mine.read_text()
    mine.write_text(mine.read_text().replace("return 41", "return 42"))
    assert len(list(made())) == 1 and "return 42" in mine.read_text()
    list(made(fresh=True))
    assert "return 42" not in mine.read_text()
    assert "return 42" in (workshop.WORKSHOP / "one.mine.ipynb").read_text()


@pytest.fixture
def shell():
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "tools.predictions")
    return shell


@pytest.mark.parametrize("empty", ["prediction = ...", 'prediction = {"DDP": ...}'])
def test_a_cell_waits_for_the_prediction_that_it_uses(shell, empty, capsys):
    assert shell.run_cell(empty).success
    assert not shell.run_cell("ran = True\nprint(prediction)").success
    assert "ran" not in shell.user_ns
    assert "Traceback" not in capsys.readouterr().out
    assert not shell.run_cell("predicted = ...\nprint(predicted)").success
    assert shell.run_cell("prediction = None").success
    assert shell.run_cell("print(prediction)").success


def test_a_solution_is_shown_after_a_try():
    @verdict.exercise
    def slices(answer, say):
        return iter(())

    verdict.tried.discard("slices")
    with pytest.raises(ValueError, match="try it first"):
        exercises.solution("slices")
    slices(None)
    assert "def my_slice" in exercises.solution("slices").data
