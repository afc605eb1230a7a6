"""docs/sources.md: the cells that it names exist, and each row says how it is done here."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[(\S+) `([^`]*)`\]\(\.\./notebooks/([^)#]+)#cell-id=([^)]+)\)")
KINDS = ("live", "recorded", "tested", "quoted", "named only")
CELLS = {
    path.name: {cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    for path in (ROOT / "notebooks").glob("*.ipynb")
}


def problems_of(page):
    """Links to cells that are not there, and rows without a kind, or without a reason where nothing runs."""
    links = LINK.findall(page)
    if page.count("../notebooks/") != len(links):
        yield "a link to a notebook names no cell"
    for number, text, name, cell in links:
        if cell not in CELLS.get(name, ()):
            yield f"{name} has no cell {cell}"
        if (number, text) != (name[:2], cell):
            yield f"the link `{text}` leads to {cell} of {name}"
    for row in re.findall(r"^\| .*\|$", page.partition("\n## ")[2], re.MULTILINE):
        *_, kind = row.strip("| ").split(" | ")
        if kind != "kind" and not kind.startswith(KINDS):
            yield f"no kind: {row}"
        if re.search("named only(?![:;,])", kind):
            yield f"no reason: {row}"


def test_every_cell_that_the_page_names_exists():
    assert list(problems_of(PAGE)) == []
    assert len(re.findall("^## ", PAGE, re.MULTILINE)) == 6 and len(LINK.findall(PAGE)) > 100
