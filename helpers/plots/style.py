"""The look of every figure, and the words for numbers, shared by plots, tables and reports.

The style is in force inside `look()` only; the reader's own matplotlib settings stay as they are.
Figures are made without pyplot, so they neither need nor change a backend.
"""

import base64
import io
import math
import sys
import textwrap
from html import escape

WIDTH = 9.0  # inches
CSS_PIXELS = 96  # an inch on a screen: 9 pt text is 12 CSS pixels high
DPI = 1.5 * CSS_PIXELS  # of PNGs, sharp on screens with more than one dot a CSS pixel
ROUNDED = 5  # of 255, to which PNGs round red, green and blue: black and white stay, and nobody sees it

INK, SOFT, GRID = "#1a1a1a", "#555555", "#dddddd"
# Colours that people with any kind of colour vision tell apart: Okabe and Ito, "Color universal
# design" (2008). A hatch or a line style always says the same, for prints without colour.
ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE, GREY = (
    "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#a6a6a6"
)  # fmt: skip
# Noto Sans CJK and the fonts that come with macOS and Windows, for labels in Chinese or Japanese.
CJK = ("Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei")


def look():
    """A context manager: inside it figures are made and saved in this style.

    It starts from matplotlib's defaults, so that figures are the same whatever the reader has set.
    """
    from matplotlib import font_manager, style

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return style.context(["default", {
        "font.family": ["DejaVu Sans", *(font for font in CJK if font in installed)], "font.size": 9.5,
        "text.color": INK, "text.parse_math": False,  # a "$" in a label is a "$"
        "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "axes.labelsize": 9, "axes.axisbelow": True,
        "axes.spines.left": False, "axes.spines.top": False, "axes.spines.right": False,
        "xtick.color": SOFT, "xtick.labelsize": 9, "ytick.color": SOFT, "ytick.labelsize": 9,
        "ytick.major.size": 0, "grid.color": GRID, "grid.linewidth": 0.8, "hatch.linewidth": 0.7,
        "svg.hashsalt": "helpers", "svg.fonttype": "path",  # equal bytes, and equal looks, everywhere
    }])  # fmt: skip


def canvas(height):
    """An empty white figure, WIDTH × `height` inches; call it inside `look()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=CSS_PIXELS, facecolor="white")
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


def names(figure, rows, top, height):
    """Write the runs' names to the left of a panel whose rows begin at `top` and are `height` inches high.

    Returns where the panel may begin (inches from the left).
    """
    ends = []
    for y, row in enumerate(rows):
        name = label(row)
        size = 10 if name.count("\n") < 2 else 9
        place = top + height * (y + 0.5)
        text = write_at(figure, 0.1, place, name, va="center", linespacing=1.1, size=size)
        ends.append(extent(figure, text).x1)
    return max(ends) + 0.15


def beside(axes, y, text, **style):
    """A text at height `y` in the margin to the right of a panel."""
    axes.annotate(
        text, (1, y), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
        va="center", annotation_clip=False, **style,
    )  # fmt: skip


def extent(figure, artist):
    """The box that a text takes, in inches from the lower left corner."""
    box = artist.get_window_extent(figure.canvas.get_renderer())
    return box.transformed(figure.dpi_scale_trans.inverted())


def png(figure) -> bytes:
    """The figure as PNG, opaque white, without a date."""
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    with look():
        figure.savefig(raw, format="rgba", dpi=DPI)
    size = tuple(int(inches * DPI) for inches in figure.get_size_inches())
    drawn = _few_colours(raw.getbuffer(), size)
    if drawn is None:
        whole = Image.frombytes("RGBA", size, raw.getbuffer()).convert("RGB")
        drawn = whole.quantize(128, dither=Image.Dither.NONE)
    drawn.save(small, "png", compress_level=8)  # 9 takes more than twice as long for a twentieth of it
    return small.getvalue()


def _few_colours(rgba, size):
    """The picture with a palette of the colours it has; None if these are more than a palette holds.

    A palette halves the file, which a committed notebook carries in its text; rounding, which is not seen, saves more.
    """
    import numpy
    from PIL import Image

    pixels = numpy.frombuffer(rgba, numpy.uint32)
    begins = numpy.flatnonzero(numpy.diff(pixels, prepend=~pixels[:1]))  # most have the colour of that before them
    exact, which = numpy.unique(pixels[begins], return_inverse=True)
    rounded = (exact.view(numpy.uint8).reshape(-1, 4)[:, :3] + 2.0) // ROUNDED * ROUNDED
    colours, places = numpy.unique(rounded.astype(numpy.uint8), axis=0, return_inverse=True)
    if len(colours) > 256:
        return None
    drawn = numpy.repeat(places.astype(numpy.uint8)[which], numpy.diff(begins, append=len(pixels)))
    picture = Image.frombytes("P", size, drawn.tobytes())
    picture.putpalette(colours.tobytes())
    return picture


def svg(figure, alt) -> str:
    """The figure as a text of SVG that names `alt` as its description; no fonts or links needed."""
    out = io.StringIO()
    with look():
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type", "Format")))
    body = out.getvalue()
    body = body[body.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}'


def html(figure, alt, kind="png") -> str:
    """The figure as HTML that needs no other file; as "png" it is a third of the size, as "svg" sharp at any."""
    data = png(figure) if kind == "png" else svg(figure, alt).encode()
    mime = "image/png" if kind == "png" else "image/svg+xml"
    width, height = _pixels(figure)
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return f'<figure><img src="{source}" alt="{escape(alt)}" width="{width}" height="{height}"></figure>'


def _pixels(figure):
    """Width and height in CSS pixels."""
    return [round(inches * CSS_PIXELS) for inches in figure.get_size_inches()]


def show(figure, alt):
    """Display a figure in the notebook, with `alt` for readers who cannot see it."""
    from IPython.display import display

    width, height = _pixels(figure)
    display(
        {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": alt}, raw=True,
        metadata={"image/png": {"alt": alt, "width": width, "height": height}},
    )  # fmt: skip
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot:  # a figure of the reader's own pyplot would be shown a second time at the cell's end
        pyplot.close(figure)


# -- words --------------------------------------------------------------------------------


def number(value, digits=3) -> str:
    """A number to `digits` significant digits; "–" for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):  # the loss of a run that diverged
        return str(value)
    if abs(value) >= 1e9:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def times(factor) -> str:
    """A speed-up, such as "1.82×"."""
    if factor is None:
        return "–"
    if 0.1 <= factor < 10:
        return f"{factor:.2f}×"
    return f"{number(factor, 3 if factor >= 10 else 1)}×"  # hardly any speed needs no digits


def percent(share) -> str:
    """A share of one as a percentage, such as "97.2%"."""
    return "–" if share is None else f"{share * 100:.1f}%"


def clean(text, width=None) -> str:
    """Text from a record on one line, without control characters, at most `width` characters long."""
    text = str(text)
    if not text.isprintable() or "  " in text or text != text.strip():
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if width is None or len(text) <= width else text[: width - 1].rstrip() + "…"


def mark(row) -> str:
    """What has to stand beside a run's name, because it stands in for something else; or ""."""
    if not row["note"] or row["status"] != "completed":
        return ""
    return "CPU threads" if row["strategy"] == "data_parallel" else "see note"


def name(row) -> str:
    """A run's name with its mark, such as "DataParallel ×2 (CPU threads)"."""
    return clean(row["label"]) + (f" ({mark(row)})" if mark(row) else "")


def label(row, width=24) -> str:
    """The same on at most two lines of `width` characters and one for the mark."""
    lines = textwrap.wrap(clean(row["label"]), width, max_lines=2, placeholder=" …")
    return "\n".join(lines + [f"({mark(row)})"] * bool(mark(row)))
