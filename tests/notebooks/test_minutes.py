"""What headers and README say of a notebook's time is what tools/minutes.py computes, and it is within the limit."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import minutes


def test_headers_and_readme_show_the_computed_minutes():
    for file, text in minutes.written().items():
        assert file.read_text(encoding="utf-8") == text, (
            f"{file.name}: run `python -m tools.minutes --write`, `make zh`"
        )


def test_a_notebook_takes_no_longer_than_the_limit():
    taken = {path.stem: minutes.reading(path).with_exercises for path in minutes.notebooks()}
    assert max(taken.values()) <= minutes.LIMIT, taken


def test_what_is_optional_folded_or_hidden_counts_for_nothing(tmp_path):
    cells = [
        new_markdown_cell("# One\n\nfour words of prose\n\n```python\nshown = 1\n```\n\n![a drawing](a.svg)"),
        new_code_cell("# a comment\n\nx = 1\ncheck.visits(x)"),
        new_code_cell("hidden = 1", metadata={"tags": ["hide-input"]}),
        new_markdown_cell("<details><summary>A solution</summary>\n\nmuch text\n\n</details>"),
        new_markdown_cell("## Depth *(optional)*\n\nmore words"),
        new_code_cell("y = 2"),
        new_markdown_cell("### A part of it\n\nmore"),
        new_markdown_cell("## Next\n\nagain"),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "one.ipynb")
    assert minutes.reading(tmp_path / "one.ipynb") == minutes.Reading(words=7, lines=3, figures=1, exercises=1)


def test_the_plans_of_a_workshop_fit_their_hours():
    text = (minutes.ROOT / "docs/teaching/schedules.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    hours = [[minutes.clock(minutes.SLOT.search(lines[k])["at"]) for k in table] for table in minutes.tables(lines)]
    assert [(plan[-1] - plan[0]) / 60 for plan in hours] == [1.5, 4, 7.5, 7.5]
    longest = {path.stem: minutes.Reading(exercises=9) for path in minutes.notebooks()}  # 45 minutes each
    assert "| 10:30 | questions, and what to read next | 0 |\n| 10:30 | end" in minutes.planned(text, longest)
