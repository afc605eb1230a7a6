"""The look of every figure, and what becomes of a figure: a PNG, an SVG, HTML or a notebook's output.

The style is in force inside `look()` only; the reader's own matplotlib settings stay as they are.
Figures are made without pyplot, so they neither need nor change a backend.
"""

import base64
import io
import logging
import os
import sys
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from pathlib import Path

from ..language import _
from ..records.words import clean, name, number, percent, times  # noqa: F401  figures are written with them

WIDTH = 9.0  # inches
CSS_PIXELS = 96  # an inch on a screen: 9 pt text is 12 CSS pixels high
DPI = 1.5 * CSS_PIXELS  # of PNGs, sharp on screens with more than one dot a CSS pixel

# On off-white, also in a dark notebook: text of 12 : 1 and 7 : 1 can be read on a projector. `TAG` is for words upon a
# coloured bar.
INK, SOFT, GRID = "#333333", "#595959", "#d9d9d9"
TAG = {"color": INK, "bbox": {"facecolor": "#f2f2f2", "edgecolor": "none", "pad": 1.5}}
# Colours that people with any kind of colour vision tell apart: Okabe and Ito, "Color universal
# design" (2008). A hatch or a line style always says the same, for prints without colour.
ORANGE, SKY, GREEN, YELLOW = "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, RED, PURPLE, GREY = "#0072b2", "#d55e00", "#cc79a7", "#a6a6a6"
# Fonts of Linux, macOS and Windows for Chinese labels.
CJK = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei")
CJK += ("WenQuanYi Zen Hei", "PingFang SC", "PingFang HK", "Heiti TC", "Hiragino Sans", "Microsoft YaHei", "SimHei")


@lru_cache
def fonts() -> list:
    """The families that text is set in, in the order in which they are searched for a character."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    # Not every Chinese font has a bold face: matplotlib takes the usual one, and need not say so below each figure.
    logging.getLogger("matplotlib.font_manager").addFilter(lambda record: "font weight" not in record.getMessage())
    return ["DejaVu Sans", *(font for font in CJK if font in installed)]


@contextmanager
def readable():
    """While this lasts, texts are English if no font has the characters of the reader's language: no boxes in figures.

    The functions that make figures have it as a decorator, `@readable()`.
    """
    before = os.environ.get("HELPERS_LANG", "")
    if len(fonts()) == 1:
        os.environ["HELPERS_LANG"] = "en"
    try:
        yield
    finally:
        os.environ["HELPERS_LANG"] = before


def look():
    """A context manager: inside it figures are made and saved in this style.

    It starts from matplotlib's defaults, so that figures are the same whatever the reader has set.
    """
    from matplotlib import style

    return style.context(["default", Path(__file__).with_name("kit.mplstyle"), {"font.family": fonts()}])


def canvas(height, **options):
    """An empty figure, WIDTH × `height` inches; call it inside `look()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=CSS_PIXELS, **options)
    FigureCanvasAgg(figure)
    return figure


def panel(figure, left, top, width, height):
    """Axes at a place given in inches from the figure's upper left corner."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))


def write_at(figure, x, y, text, **style):
    """Text with its upper left corner at inches from the figure's upper left corner."""
    wide, high = figure.get_size_inches()
    return figure.text(x / wide, 1 - y / high, text, **{"va": "top", "ha": "left", **style})


def power(base, exponent) -> str:
    """A power as a tick is written: 2⁻¹⁰. (Text in figures is plain: a `$` in a label is no formula.)"""
    return f"{base}" + f"{exponent:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def sentence(about, *parts) -> str:
    """A sentence of an alt text, such as "DDP ×2: 1.82×, accuracy 90.0%."."""
    text = _("{text}: {more}").format(text=clean(about), more=_(", ").join(parts))
    return _("{text}.").format(text=text)


def beside(axes, y, text, **style):
    """A text at height `y` in the margin to the right of a panel."""
    at = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(text, (1, y), (8, 0), va="center", **at, **style)


def png(figure) -> bytes:
    """The figure as PNG, without date and in few colours: a notebook carries it in its text."""
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    with look():
        figure.savefig(raw, format="png", dpi=DPI)
    few = Image.open(raw).quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(small, "png", optimize=True)
    return small.getvalue()


def svg(figure, alt) -> str:
    """The figure as a text of SVG that names `alt` as its description; no fonts or links needed."""
    out = io.StringIO()
    with look():
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type", "Format")))
    body = out.getvalue().split("<svg ", 1)[1]
    return f'<?xml version="1.0" encoding="utf-8"?>\n<svg role="img" aria-label="{escape(alt)}" {body}'


def html(figure, alt) -> str:
    """The figure as HTML that needs no other file."""
    width, height = _pixels(figure)
    picture = f"data:image/png;base64,{_text_of(png(figure))}"
    return f'<figure><img src="{picture}" alt="{escape(alt)}" width="{width}" height="{height}"></figure>'


def show(figure, alt):
    """Display a figure in the notebook, with `alt` for readers who cannot see it."""
    from IPython.display import display

    width, height = _pixels(figure)
    about = {"image/png": {"alt": alt, "width": width, "height": height}}
    display({"image/png": _text_of(png(figure)), "text/plain": alt}, raw=True, metadata=about)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot:  # a figure of the reader's own pyplot would be shown a second time at the cell's end
        pyplot.close(figure)


def _text_of(picture):
    return base64.b64encode(picture).decode()


def _pixels(figure):
    """Width and height in CSS pixels."""
    return [round(inches * CSS_PIXELS) for inches in figure.get_size_inches()]
