"""From which batch size on does a precision pay? Its speed over fp32, measured at each batch."""

from ..language import _
from .layout import lines
from .style import clean, readable, sentence, times


@readable()
def speed_over_batch(series, title) -> tuple:
    """Speed over fp32 at the same batch, a line a label, with the 95% intervals of the ratio.

    Args:
        series: {label: [{"batch": int, "ratio": float, "low": float, "high": float}, …]}, ratios of speeds.
        title: what was measured.

    Raises:
        ValueError: there is no point to draw.
    """
    series = {clean(label): sorted(points, key=lambda p: p["batch"]) for label, points in series.items() if points}
    ratios = {label: {p["batch"]: p["ratio"] for p in points} for label, points in series.items()}
    figure = lines(
        title,
        ratios,
        _("local batch"),
        _("speed over fp32"),
        times,
        band={label: {p["batch"]: (p["low"], p["high"]) for p in points} for label, points in series.items()},
        line=1,
        low=0,
        doubling=True,
        notes=[_("Light band: 95% interval of the ratio. The bold line at 1× is fp32 at the same batch.")],
    )
    about = sentence(clean(title), _("speed over fp32 at the same local batch"))
    return figure, " ".join([about, *(_words(label, points) for label, points in series.items())])


def _words(label, points):
    slower = [place for place, p in enumerate(points) if p["low"] <= 1]
    pays = points[slower[-1] + 1 :] if slower else points
    words = [_("{speed} at {batch}").format(speed=times(p["ratio"]), batch=p["batch"]) for p in points]
    if pays:
        words.append(_("clearly faster than fp32 from {batch} on").format(batch=pays[0]["batch"]))
    else:
        words.append(_("not clearly faster than fp32 at the largest batch"))
    return sentence(label, *words)
