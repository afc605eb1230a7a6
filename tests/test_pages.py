"""README and docs: their numbers come from records, their links, commands and options exist."""

import re
import sys

import pytest
from kernel import ROOT

import helpers

sys.path.insert(0, str(ROOT / "tools"))
import render_pages

PAGES = [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_measured_blocks_are_what_the_records_say():
    pages, figures = render_pages.render()
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run tools/render_pages.py"
    described = re.compile(r"aria-label=\"[^\"]+\"")  # the drawing varies with matplotlib
    for path, svg in figures.items():
        assert described.findall(svg) == described.findall(path.read_text(encoding="utf-8")) != []
        assert any(path.name in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(((?!http)[^)#]+)", text):
        assert (page.parent / target).exists(), target
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE):
        assert name in targets, name
    for module in re.findall(r"-m (helpers(?:\.\w+)*|benchmarks|tools\.\w+)\b", text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize("page", ["api.md", "api.zh.md"])
def test_the_api_page_holds_every_public_name(page):
    page = (ROOT / "tools" / "site" / page).read_text(encoding="utf-8")
    assert set(helpers.__all__) <= set(re.findall(r":: helpers\.(?:\w+\.)*(\w+)", page))


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.name)
def test_readme_is_short_and_names_no_account_that_is_not_there(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120 and "OWNER" not in text
