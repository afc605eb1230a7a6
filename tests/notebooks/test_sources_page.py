"""docs/project/sources.md: the cells that it names exist, and each row says how it is done here."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "project" / "sources.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[(\S+) `([^`]*)`\]\(\.\./\.\./notebooks/([^)#]+)#cell-id=([^)]+)\)")
KINDS = ("live", "recorded", "tested", "quoted", "named only", "as it is")
CELLS = {
    folder + path.name: {cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    for folder in ("", "more/")
    for path in (ROOT / "notebooks" / folder).glob("*.ipynb")
}


def test_every_cell_that_the_page_names_exists_and_each_row_has_a_kind():
    links = LINK.findall(PAGE)
    assert len(links) == PAGE.count("../notebooks/") > 100, "a link to a notebook names no cell"
    for number, text, name, cell in links:
        assert cell in CELLS.get(name, ()), (name, cell)
        assert (number, text) == (name.removeprefix("more/")[:2], cell)
    for row in re.findall(r"^\| .*\|$", PAGE.partition("\n## ")[2], re.MULTILINE):
        *_, kind = row.strip("| ").split(" | ")
        assert kind == "kind" or kind.startswith(KINDS), row
        assert not re.search("named only(?![:;,])", kind), f"no reason: {row}"
