"""README's numbers come from the records in docs/ladder, and its links and commands exist."""

import re
import sys

from kernel import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import render_readme

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_records_say():
    readme, svg = render_readme.render()
    assert readme == TEXT, "run tools/render_readme.py"
    committed = (ROOT / "docs/ladder/speedup.svg").read_text(encoding="utf-8")
    described = re.compile(r"aria-label=\"[^\"]+\"")  # the drawing varies with matplotlib
    assert described.findall(svg) == described.findall(committed) != []


def test_links_and_make_targets_exist():
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", TEXT):
        assert (ROOT / target).exists(), target
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in re.findall(r"^make (\w+)", TEXT, re.MULTILINE):
        assert name in targets, name
