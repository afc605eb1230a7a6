"""README's numbers come from the records in recorded/ladder and recorded/studies, and its links and commands exist."""

import re
import sys

from kernel import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import render_readme

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_records_say():
    readme, figures = render_readme.render()
    assert readme == TEXT, "run tools/render_readme.py"
    described = re.compile(r"aria-label=\"[^\"]+\"")  # the drawing varies with matplotlib
    for path, svg in figures.items():
        committed = path.read_text(encoding="utf-8")
        assert described.findall(svg) == described.findall(committed) != []
        assert path.relative_to(ROOT).as_posix() in TEXT


def test_every_row_of_the_study_is_there():
    for label in render_readme.studies.load("batch_and_accuracy").groups():
        assert label.startswith("small") or f"| {label}" in TEXT


def test_links_and_make_targets_exist():
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", TEXT):
        assert (ROOT / target).exists(), target
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in re.findall(r"^make (\w+)", TEXT, re.MULTILINE):
        assert name in targets, name
