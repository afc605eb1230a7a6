"""Each notebook of the course shows its idea before its first code; a drawing has a title and a description."""

import re
import xml.etree.ElementTree as ElementTree

import nbformat
import pytest

from helpers.paths import project_root

NOTEBOOKS = sorted((project_root() / "notebooks").glob("*.ipynb"))
MORE = sorted((project_root() / "notebooks" / "more").glob("*.ipynb"))
DRAWINGS = sorted((project_root() / "notebooks").glob("**/drawings/*.svg"))
IMAGE = re.compile(r"!\[([^]]+)\]\(((?:\.\./)?drawings/[^)]+)\)")


@pytest.mark.parametrize("path", [*NOTEBOOKS, *MORE], ids=lambda path: path.stem)
def test_a_notebook_of_the_course_opens_with_a_drawing_and_each_exists(path):
    cells = nbformat.read(path, as_version=4).cells
    shown = [IMAGE.findall(cell.source) for cell in cells if cell.cell_type == "markdown"]
    assert shown[0] or path in MORE, "the first cell shows no drawing"
    assert all((path.parent / file).is_file() for images in shown for _, file in images)


def test_every_drawing_is_shown():
    shown = {
        found[1].removeprefix("../")
        for path in [*NOTEBOOKS, *MORE]
        for found in IMAGE.findall(path.read_text(encoding="utf-8"))
    }
    assert shown == {f"drawings/{path.name}" for path in DRAWINGS if path.parent.parent.name != "zh"}


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_a_drawing_says_in_words_what_it_shows(path):
    svg = ElementTree.parse(path).getroot()
    names = {part.tag.rpartition("}")[2]: part for part in svg}
    assert names["title"].text and names["desc"].text
    assert svg.get("viewBox") == f"0 0 {svg.get('width')} {svg.get('height')}"
