"""The central plot of a comparison: how much faster is a step, does the run gain, is it as accurate?"""

import textwrap

from . import style
from .style import beside, mark, number, percent, times

FILLS = {  # by strategy: colour and hatch
    "baseline": (style.GREY, ""), "data_parallel": (style.ORANGE, "///"), "ddp": (style.SKY, ""),
}  # fmt: skip
ROW, HEAD, SIDE, GAP = 0.54, 1.1, 1.0, 0.22  # inches: a run, above the runs, a small panel, between panels


def draw(title, settings, rows):
    """The figure of `rows`, those of Comparison.rows() each with its "name".

    Every number stands in a column of its own beside the marks, so no label can cover another.
    """
    dashed = any(row["devices"] > 1 for row in rows)
    notes = [
        "Whisker: middle half of the timed steps."
        + " Dashed: as many times the baseline as there are devices." * dashed,
        *dict.fromkeys(f"{mark(row)}: {row['note']}" for row in rows if mark(row)),
    ]
    foot = [line for note in notes for line in textwrap.wrap(style.clean(note), 118)]
    with style.look():
        figure = style.canvas(HEAD + ROW * len(rows) + 0.42 + 0.17 * len(foot))
        style.write_at(figure, 0.1, 0.1, style.clean(title, 80), size=13, weight="bold")
        style.write_at(figure, 0.1, 0.38, style.clean(settings, 122), color=style.SOFT, size=9)
        bottom = HEAD + ROW * len(rows) + 0.36
        style.write_at(figure, 0.1, bottom, "\n".join(foot), color=style.SOFT, size=9, linespacing=1.25)
        left = style.names(figure, rows, HEAD, ROW)
        numbers = 1.25 if any(row["predicted"] for row in rows) else 0.62
        width = style.WIDTH - left - numbers - 2 * (GAP + SIDE + 0.62)
        _steps(_panel(figure, rows, left, width, "speed-up of a step"), rows)
        left += width + numbers + GAP
        _whole_run(_panel(figure, rows, left, SIDE, "of the whole run"), rows)
        left += SIDE + 0.62 + GAP
        _accuracy(_panel(figure, rows, left, SIDE, _goal(rows)), rows)
    return figure


def _panel(figure, rows, left, width, title):
    axes = style.panel(figure, left, HEAD, width, ROW * len(rows))
    axes.set(ylim=(len(rows) - 0.5, -0.5), yticks=[])
    axes.grid(axis="x")
    style.write_at(figure, left, HEAD - 0.42, title, weight="bold", size=9.5)
    return axes


def _steps(axes, rows):
    measured = [row["speed_up_q3"] for row in rows if row["speed_up"]]
    most = 1.12 * max(1, *measured, *(row["devices"] for row in rows))
    predicted = [row["predicted"] or 0 for row in rows]
    near = [1.08 * factor for factor in predicted if factor < 1.5 * most]  # farther ones get an arrow
    most = max(most, *near)
    axes.set_xlim(0, most)
    axes.axvline(1, color=style.INK, linewidth=1.2)
    axes.annotate(
        "baseline 1×", (1, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
        ha="center" if 0.13 < 1 / most < 0.87 else "left", size=9, annotation_clip=False,
    )  # fmt: skip
    _factors(axes)
    for y, row in enumerate(rows):
        _ideal(axes, y, row, most, labelled=row["devices"] != rows[y - 1]["devices"])
        if row["status"] != "completed":
            beside(axes, y, row["status"], color=style.RED, weight="bold")
        elif row["speed_up"] is None:
            beside(axes, y, "too few\nsteps", color=style.SOFT, size=9)
        else:
            value = row["speed_up"]
            colour, hatch = FILLS.get(row["strategy"], (style.GREEN, "xx"))
            axes.barh(y, value, height=0.44, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.8)
            spread = [[value - row["speed_up_q1"]], [row["speed_up_q3"] - value]]
            axes.errorbar(value, y, xerr=spread, color=style.INK, capsize=3.5, linewidth=1.4)
            beside(axes, y - 0.04, times(value), weight="bold", size=12)
        if row["predicted"]:
            beyond = row["predicted"] > most
            axes.plot(
                0.97 * most if beyond else row["predicted"], y + 0.34, ">" if beyond else "D", clip_on=False,
                markersize=6, markerfacecolor="white", markeredgecolor=style.RED, markeredgewidth=1.5,
            )  # fmt: skip
            said = f"{'▷' if beyond else '◇'} predicted {times(row['predicted'])}"
            beside(axes, y + 0.34, said, color=style.RED, size=9)


def _ideal(axes, y, row, most, labelled):
    if row["devices"] == 1 or (row["speed_up"] and not row["efficiency"]):  # more than the devices has changed
        return
    place, dashes = [row["devices"]] * 2, (0, (4, 2))
    axes.plot(place, [y - 0.5, y + 0.5], color=style.SOFT, linestyle=dashes, linewidth=1.2)
    if labelled:
        shift, side = (-3, "right") if row["devices"] > 0.5 * most else (3, "left")
        axes.annotate(
            f"ideal {row['devices']}×", (row["devices"], y - 0.37), xytext=(shift, 0), ha=side, va="center",
            textcoords="offset points", size=9, color=style.SOFT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def _whole_run(axes, rows):
    known = {y: row for y, row in enumerate(rows) if row["status"] == "completed"}
    axes.set_xlim(0, 1.15 * max(1, *(row["whole_run_speed_up"] for row in known.values())))
    axes.axvline(1, color=style.INK, linewidth=1.2)
    _factors(axes)
    for y, row in known.items():
        axes.plot(row["whole_run_speed_up"], y, "o", color=style.SOFT, markersize=6, clip_on=False)
        beside(axes, y - 0.15, times(row["whole_run_speed_up"]))
        beside(axes, y + 0.2, f"{number(row['total_s'])} s", color=style.SOFT, size=9)


def _goal(rows):
    return "final loss" if all(row["accuracy"] is None for row in rows) else "test accuracy"


def _accuracy(axes, rows):
    """Accuracy on a scale of 0 to 100%; where no run has one, the final training loss."""
    by_loss = _goal(rows) == "final loss"
    for y, row in enumerate(rows):
        value = row["final_loss"] if by_loss else row["accuracy"]
        if row["status"] != "completed" or value is None:
            continue
        axes.plot(value if by_loss else 100 * value, y, "s", color=style.GREEN, markersize=6, clip_on=False)
        beside(axes, y, number(value) if by_loss else percent(value))
    axes.set_xlim(0, None if by_loss else 100)
    if not by_loss:
        axes.set_xticks([0, 50, 100], ["0", "50", "100%"])


def _factors(axes):
    from matplotlib.ticker import MaxNLocator

    few = 5 if axes.get_position().width > 0.2 else 2
    axes.xaxis.set_major_locator(MaxNLocator(nbins=few, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×" if value else "0")
