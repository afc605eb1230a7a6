"""The central figure of a comparison: how much faster is a step, does the run gain, is it as accurate?"""

from ..language import _
from ..records.speedup import shows
from ..records.words import mark, name, number, percent, samples_of, times
from . import style
from .layout import DASHED, bar, name_rows, sheet, ticks, whisker
from .panels import panel
from .style import beside, readable, sentence
from .tables import settings

LOOKS = {"baseline": (style.GREY, ""), "data_parallel": (style.ORANGE, "///"), "ddp": (style.SKY, "")}  # by strategy
ROW = 0.54  # inches


@readable()
def speed_up(comparison) -> tuple:
    """Measured, ideal and predicted speed-up of each run, beside that of the whole run and its accuracy.

    Every number stands in a column of its own beside the marks, so no label can cover another.
    """
    what, how = settings(comparison.records)
    rows = comparison.rows()
    samples, base = samples_of(rows), name(rows[0])
    about = [
        _("Speed-up: {rows}/s of the timed steps, and of the whole run with start, data and evaluation."),
        _("Whisker: 95% interval of the ratio, both runs' noise in it; where it holds 1×, a difference is not shown."),
    ]
    if any(_ideal(row, rows) for row in rows):
        about.append(_("Dashed: as many times the baseline as there are devices."))
    notes = [
        " ".join(about).format(rows=samples),
        *dict.fromkeys(f"{mark(row)}: {_(row['note'])}" for row in rows if mark(row)),
    ]
    title = _("Speed-up over {rows}: {what}").format(rows=base, what=what)
    with sheet(title, ROW * len(rows), how=how, notes=notes, panels=3, ratios=(5, 1, 1)) as (figure, panels):
        name_rows(panels[0], [name(row) for row in rows], 2.1, 3, 9.5, panels[1:])
        panels[0].set_title(_("speed-up"), pad=17)
        _steps(panels[0], rows)
        goal = ("accuracy", _("accuracy"), percent, None)
        if all(row["accuracy"] is None for row in rows):  # speed never stands alone
            goal = ("final_loss", _("final loss"), number, None)
        for axes, column in zip(panels[1:], (("whole_run_speed_up", _("whole run"), times, 1), goal), strict=True):
            axes.set_title(column[1], pad=17)
            panel(axes, [{**row, "kind": "ours"} for row in rows], column)
    alt = _("Speed-up in {rows}/s over {name}: {what}, {how}.").format(rows=samples, name=base, what=what, how=how)
    return figure, " ".join([alt, *map(_words, rows)])


def _words(row):
    """The main numbers of a run."""
    if row["status"] != "completed":
        return sentence(name(row), _(row["status"]))
    words = [times(row["speed_up"]) if row["speed_up"] else _("too few steps to time")]
    if _undecided(row):
        words.append(_("not shown"))
    if row["predicted"]:
        words.append(_("predicted {predicted}").format(predicted=times(row["predicted"])))
    if row["accuracy"] is None:
        words.append(_("final loss {loss}").format(loss=number(row["final_loss"])))
    else:
        words.append(_("accuracy {accuracy}").format(accuracy=percent(row["accuracy"])))
    return sentence(name(row), *words)


def _undecided(row):
    """Whether it cannot be told from the baseline; the baseline itself can."""
    return row["speed_up_low"] != row["speed_up_high"] and not shows(row)


def _steps(axes, rows):
    measured = [row["speed_up_high"] or row["speed_up"] for row in rows if row["speed_up"]]
    most = 1.12 * max(1, *measured, *(_ideal(row, rows) for row in rows))
    most = max(most, *(1.08 * row["predicted"] for row in rows if 0 < (row["predicted"] or 0) < 1.5 * most), 0)
    axes.set_xlim(0, most)
    ticks(axes.xaxis, "{:g}×", 5)
    axes.grid(axis="x")
    axes.axvline(1, color=style.INK, linewidth=1.2)
    offset = {"textcoords": "offset points", "annotation_clip": False, "size": 9}
    side = "center" if 0.13 < 1 / most < 0.87 else "left"
    axes.annotate(_("baseline 1×"), (1, 1), (0, 2), ("data", "axes fraction"), ha=side, **offset)
    for y, row in enumerate(rows):
        ideal = _ideal(row, rows)
        if ideal:
            axes.plot([ideal] * 2, [y - 0.5, y + 0.5], color=style.SOFT, linestyle=DASHED, linewidth=1.2)
        if ideal and row["devices"] != rows[y - 1]["devices"]:
            shift, side = (-3, "right") if ideal > 0.5 * most else (3, "left")
            words = _("ideal {devices}×").format(devices=ideal)
            axes.annotate(words, (ideal, y - 0.37), (shift, 0), ha=side, va="center", color=style.SOFT, **offset)
        if row["status"] != "completed":
            beside(axes, y, _(row["status"]), color=style.RED, weight="bold")
        elif row["speed_up"] is None:
            beside(axes, y, _("too few\nsteps"), color=style.SOFT, size=9)
        else:
            bar(axes, y, row["speed_up"], LOOKS.get(row["strategy"], (style.GREEN, "xx")), height=0.44)
            whisker(axes, y, row["speed_up"], row["speed_up_low"], row["speed_up_high"])
            beside(axes, y - 0.04, times(row["speed_up"]), weight="bold", size=12)
            if _undecided(row):
                beside(axes, y - 0.32, _("not shown"), color=style.SOFT, size=9)
        if row["predicted"]:  # one far off is words alone: it would squeeze the bars
            axes.plot(row["predicted"], y + 0.34, "D", color=style.RED, fillstyle="none", markeredgewidth=1.5)
            words = _("{beyond} predicted {predicted}").format(beyond="◇", predicted=times(row["predicted"]))
            beside(axes, y + 0.34, words, color=style.RED, size=9)


def _ideal(row, rows):
    """The speed-up that more devices than the baseline's could give at best; 0 where nothing or more has changed."""
    alone = rows[0]["devices"] == 1  # a baseline on several devices has a row's devices, or is no baseline of them
    return row["devices"] if alone and row["devices"] > 1 and not (row["speed_up"] and not row["efficiency"]) else 0
