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
    alt = [sentence(title, _("speed over fp32 at the same local batch"))]
    for label, of in ratios.items():
        alt.append(sentence(label, *(_("{speed} at {batch}").format(speed=times(r), batch=b) for b, r in of.items())))
    return figure, " ".join(alt)
