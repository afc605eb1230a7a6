"""README's numbers come from the records in recorded/, and its links and commands exist."""

import re
import sys

import pytest
from kernel import ROOT

from helpers import cli

sys.path.insert(0, str(ROOT / "tools"))
import render_readme

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_numbers_are_those_of_the_records():
    readme, figures = render_readme.render()
    assert readme == TEXT, "run tools/render_readme.py"
    described = re.compile(r"aria-label=\"[^\"]+\"")  # the drawing varies with matplotlib
    for path, svg in figures.items():
        committed = path.read_text(encoding="utf-8")
        assert described.findall(svg) == described.findall(committed) != []
        assert path.relative_to(ROOT).as_posix() in TEXT


def test_links_lead_to_files():
    for target in re.findall(r"(?:\]\(|src=\")((?!https?:|#)[^)\"#\s]+)", TEXT):
        assert (ROOT / target).exists(), target


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in re.findall(r"\bmake ([a-z-]+)(?=[` \n])", "\n".join(code_of(TEXT))):
        assert name in targets, name


def test_commands_of_helpers_exist(capsys):
    for name in set(re.findall(r"python -m helpers ([a-z]+)", TEXT)):
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0, name


def code_of(text):
    """The code in a Markdown text: blocks and spans."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return blocks + re.findall(r"`[^`\n]+`", text)
