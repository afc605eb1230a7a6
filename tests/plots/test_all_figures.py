"""Every figure of the kit: readable for few and many labels, with a text, in small files of equal bytes."""

import io
import re
from xml.etree import ElementTree

import pytest
from figures import assert_readable
from gallery import FIGURES
from PIL import Image

from helpers import plots
from helpers.plots import style


@pytest.mark.parametrize("count", [6, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 2, 3, 8, 12))])
@pytest.mark.parametrize("name", FIGURES)
def test_few_and_many_labels_do_not_cover_each_other(name, count):
    figure, alt = FIGURES[name](count)
    assert_readable(figure)
    assert alt.endswith((".", "W"))


ONE_QUICK = [name if name == "cost sweep" else pytest.param(name, marks=pytest.mark.long) for name in FIGURES]


@pytest.mark.parametrize("name", ONE_QUICK)
def test_a_drawing_is_valid_and_asks_for_nothing(name):
    figure, alt = FIGURES[name](6)
    svg = style.svg(figure, alt)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == alt
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")


@pytest.mark.parametrize("name", ONE_QUICK)
def test_pictures_are_small_and_without_ground(name):
    png = style.png(FIGURES[name](4)[0])
    picture = Image.open(io.BytesIO(png))
    assert picture.format == "PNG" and len(png) < 80_000
    assert {picture.convert("RGBA").getpixel(at)[3] for at in ((0, 0), (picture.width - 1, 0))} == {0}


@pytest.mark.long  # test_plots.py has a quick one
@pytest.mark.parametrize("name", FIGURES)
def test_drawn_again_its_file_has_the_same_bytes(name):
    first, again = (style.svg(*FIGURES[name](4)) for _ in range(2))
    assert first == again


def test_html_names_what_the_figure_shows():
    figure, _ = FIGURES["hvd stages"](2)
    text = plots.html(figure, 'a "quoted" <b> & more')
    assert re.fullmatch(r'<figure><img src="data:image/[^"]+" alt="[^"]+" width="864" height="\d+"></figure>', text)
    assert 'alt="a &quot;quoted&quot; &lt;b&gt; &amp; more"' in text and "http" not in text
