"""The central figure of a comparison: how much faster is a step, does the run gain, is it as accurate?"""

from ..launcher.language import listed, marked
from ..records.words import mark, name, number, percent, samples_of, times
from . import style
from .layout import DASHED, bar, name_rows, sheet, ticks, whisker
from .style import beside
from .tables import settings

LOOKS = {"baseline": (style.GREY, ""), "data_parallel": (style.ORANGE, "///"), "ddp": (style.SKY, "")}  # by strategy
ROW = 0.54  # inches


def speed_up(comparison) -> tuple:
    """Measured, ideal and predicted speed-up of each run, beside that of the whole run and its accuracy.

    Every number stands in a column of its own beside the marks, so no label can cover another.
    """
    what, how = settings(comparison.records)
    rows = comparison.rows()
    dashed = marked("Dashed: as many times the baseline as there are devices.")
    about = (
        f"Speed-up: {samples_of(rows)}/s of the timed steps, and of the whole run with start, data and evaluation.",
        marked("Whisker: 95% interval of the speed-up, from the steps of both runs."),
        *[dashed] * any(_ideal(row, rows) for row in rows),
    )
    notes = [
        style.said(" ".join(about)),
        *dict.fromkeys(f"{mark(row)}: {row['note']}" for row in rows if mark(row)),
    ]
    title = marked(f"Speed-up over {name(rows[0])}: {what}")
    with sheet(title, ROW * len(rows), how=how, notes=notes, panels=3, ratios=(5, 1, 1)) as (figure, panels):
        name_rows(panels[0], [name(row) for row in rows], 2.1, 3, 9.5, panels[1:])
        for axes, words in zip(panels, (marked("speed-up"), marked("whole run"), _goal(rows)), strict=True):
            axes.set_title(words, pad=17)
            axes.grid(axis="x")
        _steps(panels[0], rows)
        _whole_run(panels[1], rows)
        _accuracy(panels[2], rows)
    alt = f"Speed-up in {samples_of(rows)}/s over {name(rows[0])}: {what}, {how}."
    return figure, " ".join([alt, *map(_words, rows)])


def _words(row):
    """The main numbers of a run."""
    if row["status"] != "completed":
        return listed([row["status"]], about=name(row))
    words = [times(row["speed_up"]) if row["speed_up"] else marked("too few steps to time")]
    if row["predicted"]:
        words.append(f"predicted {times(row['predicted'])}")
    by_loss = row["accuracy"] is None
    words.append(f"final loss {number(row['final_loss'])}" if by_loss else f"accuracy {percent(row['accuracy'])}")
    return listed(words, about=name(row))


def _steps(axes, rows):
    measured = [row["speed_up_high"] or row["speed_up"] for row in rows if row["speed_up"]]
    most = 1.12 * max(1, *measured, *(_ideal(row, rows) for row in rows))
    most = max(most, *(1.08 * row["predicted"] for row in rows if 0 < (row["predicted"] or 0) < 1.5 * most), 0)
    axes.set_xlim(0, most)
    ticks(axes.xaxis, "{:g}×", 5)
    axes.axvline(1, color=style.INK, linewidth=1.2)
    axes.annotate(
        marked("baseline 1×"),
        (1, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center" if 0.13 < 1 / most < 0.87 else "left",
        size=9,
        annotation_clip=False,
    )
    for y, row in enumerate(rows):
        if _ideal(row, rows):
            _draw_ideal(axes, y, row, most, labelled=row["devices"] != rows[y - 1]["devices"])
        if row["status"] != "completed":
            beside(axes, y, row["status"], color=style.RED, weight="bold")
        elif row["speed_up"] is None:
            beside(axes, y, marked("too few\nsteps"), color=style.SOFT, size=9)
        else:
            bar(axes, y, row["speed_up"], LOOKS.get(row["strategy"], (style.GREEN, "xx")), height=0.44)
            if row["speed_up_low"]:
                whisker(axes, y, row["speed_up"], row["speed_up_low"], row["speed_up_high"])
            beside(axes, y - 0.04, times(row["speed_up"]), weight="bold", size=12)
        if row["predicted"]:
            beyond = row["predicted"] > most  # an arrow at the edge: it would squeeze the bars
            axes.plot(
                0.97 * most if beyond else row["predicted"],
                y + 0.34,
                ">" if beyond else "D",
                clip_on=False,
                markersize=6,
                markerfacecolor="none",
                markeredgecolor=style.RED,
                markeredgewidth=1.5,
            )
            words = marked(f"{'▷' if beyond else '◇'} predicted {times(row['predicted'])}")
            beside(axes, y + 0.34, words, color=style.RED, size=9)


def _ideal(row, rows):
    """The speed-up that more devices than the baseline's could give at best; 0 where nothing or more has changed."""
    alone = rows[0]["devices"] == 1  # a baseline on several devices has a row's devices, or is no baseline of them
    return row["devices"] if alone and row["devices"] > 1 and not (row["speed_up"] and not row["efficiency"]) else 0


def _draw_ideal(axes, y, row, most, labelled):
    axes.plot([row["devices"]] * 2, [y - 0.5, y + 0.5], color=style.SOFT, linestyle=DASHED, linewidth=1.2)
    if labelled:
        shift, side = (-3, "right") if row["devices"] > 0.5 * most else (3, "left")
        axes.annotate(
            marked(f"ideal {row['devices']}×"),
            (row["devices"], y - 0.37),
            xytext=(shift, 0),
            ha=side,
            va="center",
            textcoords="offset points",
            size=9,
            color=style.SOFT,
        )


def _whole_run(axes, rows):
    known = {y: row for y, row in enumerate(rows) if row["status"] == "completed"}
    axes.set_xlim(0, 1.15 * max(1, *(row["whole_run_speed_up"] for row in known.values())))
    axes.axvline(1, color=style.INK, linewidth=1.2)
    ticks(axes.xaxis, "{:g}×", 2)
    for y, row in known.items():
        axes.plot(row["whole_run_speed_up"], y, "o", color=style.SOFT, markersize=6, clip_on=False)
        beside(axes, y - 0.15, times(row["whole_run_speed_up"]))
        beside(axes, y + 0.2, f"{number(row['total_s'])} s", color=style.SOFT, size=9)


def _goal(rows):
    return marked("final loss") if all(row["accuracy"] is None for row in rows) else marked("accuracy")


def _accuracy(axes, rows):
    """Accuracy on a scale of 0 to 100%; where no run has one, the final training loss."""
    by_loss = _goal(rows) == "final loss"
    for y, row in enumerate(rows):
        value = row["final_loss"] if by_loss else row["accuracy"]
        if row["status"] == "completed" and value is not None:
            axes.plot(value if by_loss else 100 * value, y, "s", color=style.GREEN, markersize=6, clip_on=False)
            beside(axes, y, number(value) if by_loss else percent(value))
    axes.set_xlim(0, None if by_loss else 100)
    if not by_loss:
        axes.set_xticks([0, 50, 100], ["0", "50", "100%"])
