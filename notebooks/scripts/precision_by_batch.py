"""From which batch size on does a precision pay? Its speed over fp32, measured at each batch."""

from helpers.language import _
from helpers.plots.layout import lines
from helpers.plots.style import clean, readable, sentence, times
from helpers.records import speedup


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


def speed_by_batch(records, model) -> dict:
    """Speed relative to plain fp32 at the same batch, of the runs of `model`.

    Returns {"bf16-mixed · channels last": [{"batch", "ratio", "low", "high"}, …], …}, ordered by batch;
    low and high are the ends of the ratio's 95% interval.
    """
    runs = [record for record in records if record["config"]["model"] == model]
    plain = {record["config"]["local_batch"]: record for record in runs if _variant(record) == "fp32"}
    series = {}
    for record in sorted(runs, key=lambda record: record["config"]["local_batch"]):
        batch = record["config"]["local_batch"]
        if _variant(record) != "fp32" and batch in plain and (found := speedup.of_records(record, plain[batch])):
            series.setdefault(_variant(record), []).append({"batch": batch, **found._asdict()})
    return series


def _variant(record):
    config = record["config"]
    return config["precision"] + " · channels last" * config["channels_last"]
