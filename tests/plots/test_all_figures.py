"""Every figure of the kit: readable for few and many labels, with a text, in small files of equal bytes."""

import io
import re
from gettext import NullTranslations
from xml.etree import ElementTree

import gallery
import pytest
from figures import assert_readable
from gallery import FIGURES, OTHERS, SHARED, comparison
from matplotlib.text import Text
from PIL import Image

from helpers import language
from helpers.plots import style


@pytest.mark.parametrize("count", [6, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 2, 3, 8, 12))])
@pytest.mark.parametrize("name", FIGURES)
def test_few_and_many_labels_do_not_cover_each_other(name, count):
    figure, alt = FIGURES[name](count)
    assert_readable(figure)
    assert alt


@pytest.mark.parametrize("name", ["cost sweep", *(pytest.param(name, marks=pytest.mark.long) for name in FIGURES)])
def test_files_are_small_valid_and_ask_for_nothing(name):
    figure, alt = FIGURES[name](6)
    svg, png = style.svg(figure, alt), style.png(figure)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == alt
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")
    assert Image.open(io.BytesIO(png)).format == "PNG" and len(png) < 80_000


def test_html_names_what_the_figure_shows():
    figure, _ = FIGURES["hvd stages"](2)
    text = style.html(figure, 'a "quoted" <b> & more')
    assert re.fullmatch(r'<figure><img src="data:image/[^"]+" alt="[^"]+" width="864" height="\d+"></figure>', text)
    assert 'alt="a &quot;quoted&quot; &lt;b&gt; &amp; more"' in text and "http" not in text


# -- in Chinese ---------------------------------------------------------------------------

THEIRS = ("No bars", SHARED, "another note", *(record["label"] for record in comparison(8).records))
STAYS = set(  # names and units, which stay as they are
    "ms step batch images resnet digits DataParallel helpers training strategies torch cu compiled group Some Other "
    "Intel Xeon Processor GHz Mbit tbf cable network namespaces of ResNet CIFAR cpu nn py all reduce eager inductor "
    "speed up accuracy".split()
)


class Translated(NullTranslations):
    """A catalog that has every message: a Chinese character for each word outside named places."""

    def gettext(self, message):
        return re.sub(r"[A-Za-z]+(?![^{}]*})", "字", message)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("name", [name for name in (*FIGURES, *OTHERS) if not name.startswith("npu")])
def test_every_word_of_a_figure_goes_through_the_catalog(name, monkeypatch):
    monkeypatch.setenv("HELPERS_LANG", "zh_CN")
    monkeypatch.setattr(language, "_catalog", lambda chosen: Translated())
    monkeypatch.setattr(gallery, "LABELS", ("A", "B"))
    monkeypatch.setattr(style, "fonts", lambda: ["DejaVu Sans"] * 2)  # whether the machine has a font or not
    figure, alt = OTHERS[name]() if name in OTHERS else FIGURES[name](5)
    left = {text: words for text in _texts(figure, alt) if (words := _english(text) - STAYS)}
    assert not left


def test_without_a_chinese_font_figures_are_english(monkeypatch):
    monkeypatch.setenv("HELPERS_LANG", "zh_CN")
    monkeypatch.setattr(style, "fonts", lambda: ["DejaVu Sans"])
    assert all(text.isascii() for text in re.findall(r"[^\W\d_]+", " ".join(_texts(*FIGURES["panels"](2)))))


def _texts(figure, alt):
    return [alt, *(text.get_text() for text in figure.findobj(Text))]


def _english(text):
    """The English words of a text, without labels that the reader gave."""
    text = " ".join(text.split())
    for label in THEIRS:
        text = text.replace(label, "")
    return set(re.findall(r"\b[A-Za-z]*[a-z]{2}[A-Za-z]*\b", text))
