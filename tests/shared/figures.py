"""What a figure says and whether it can be read: nothing leaves it, no label covers another."""

from itertools import combinations

from matplotlib.text import Text


def labels(figure):
    """(text, box) of everything that is written in the figure."""
    figure.canvas.draw()
    unseen = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        unseen |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in unseen]
    # Text's own method: that of an Annotation adds its arrow.
    return [(text.get_text(), Text.get_window_extent(text)) for text in texts]


def assert_readable(figure):
    found = labels(figure)
    assert len(found) > 1
    inside = figure.bbox.padded(1)
    for text, box in found:
        assert inside.containsx(box.x0) and inside.containsx(box.x1), f"{text!r} leaves the figure"
        assert inside.containsy(box.y0) and inside.containsy(box.y1), f"{text!r} leaves the figure"
    for (text, box), (other, other_box) in combinations(found, 2):
        assert not box.padded(-1).overlaps(other_box.padded(-1)), f"{text!r} covers {other!r}"
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
