"""Figures of what compiling costs: when it is won back, and which steps it made slow."""

import math
from statistics import median

from ..plots import style
from ..plots.drawing import AXES, NAMES, fitted, heights, line_style, name_ends, write_foot, write_title
from ..plots.style import clean, number

FAR = 8  # crossings further apart than this factor need a logarithmic axis
KEY = "Diamond and dotted line: a step in which something was compiled."
PANEL = 1.75  # inches of a run's steps


def break_even(series) -> tuple:
    """Training time over the number of steps: compiling first, then faster steps. Where the lines cross, it pays.

    Args:
        series: [{"name", "compile_s", "step_s"}, …] in seconds; the first is eager, which the others are
            compared with. One without times (None) is left out.

    Raises:
        ValueError: there is nothing to compare with, or no plan has times.
    """
    timed = [each for each in series if each["step_s"] and each["compile_s"] is not None]
    if not timed or timed[0] is not series[0] or len(timed) < 2:
        raise ValueError("give eager first and at least one plan after it, each with compile_s and step_s in seconds")
    eager, *others = timed
    left_out = [clean(each["name"]) for each in series if each not in timed]
    after = [crossing(eager, each) for each in others]
    pays = sorted(steps for steps in after if steps)
    wide = bool(pays) and pays[-1] > FAR * pays[0]
    last = _last(eager, others, pays, wide)
    notes = [
        "Circle: from this step on the plan has taken less time than eager, compiling included." if pays else "",
        f"Left out, since they have no times: {', '.join(left_out)}." if left_out else "",
    ]
    with style.look():
        figure = style.canvas(1)
        words = ["", *(_pays(steps) for steps in after)]
        names = [fitted(figure, each["name"], NAMES, 1) for each in timed]
        names = [f"{name}\n{said}" if said else name for name, said in zip(names, words, strict=True)]
        pitch, high = heights(names)
        high = max(high, 3.3)
        write_foot(figure, 0.52 + high + 0.5, notes)
        write_title(figure, "When is compiling won back?")
        axes = style.panel(figure, 0.85, 0.52, AXES, high)
        _scales(axes, last, wide)
        for place, each in enumerate(timed):
            x = _steps(last, wide)
            axes.plot(x, [_spent(each, n) for n in x], **line_style(place), markevery=[-1], clip_on=False)
        axes.set_ylim(None if wide else 0)
        _crossings(axes, [(steps, _spent(eager, steps)) for steps in after if steps])
        name_ends(axes, [(last, _spent(each, last), "", name) for each, name in zip(timed, names, strict=True)], pitch)
    told = [_told(each, steps, eager) for each, steps in zip(others, after, strict=True)]
    head = f"Training time over steps, compiling included. {clean(eager['name'])}: {number(eager['step_s'])} s a step."
    return figure, " ".join([head, *told, *filter(None, notes[1:])])


def crossing(eager, plan):
    """The number of steps after which `plan` is no slower than `eager`, compiling included; None: never."""
    gained = eager["step_s"] - plan["step_s"]
    if gained <= 0:
        return None
    return math.ceil(max(0, plan["compile_s"] - eager["compile_s"]) / gained)


def _spent(each, steps):
    return each["compile_s"] + steps * each["step_s"]


def _last(eager, others, pays, wide):
    """The last step to draw: beyond all crossings, or so far that compiling is no more than half of the time."""
    if pays:
        return (6 if wide else 1.5) * pays[-1]
    return max(10.0, *(2 * each["compile_s"] / eager["step_s"] for each in others))


def _steps(last, wide):
    if not wide:
        return [0, last]
    return [last ** (k / 100) for k in range(101)]


def _scales(axes, last, wide):
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set(xlabel="training steps", ylabel="seconds, compiling included")
    if wide:
        axes.set(xscale="log", yscale="log", xlim=(1, last))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(numticks=7))
            axis.set_minor_locator(NullLocator())
    else:
        axes.set(xlim=(0, last))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid()


def _crossings(axes, places):
    """Circles where lines cross, with the number of steps wherever it covers nothing."""
    boxes, figure = [], axes.figure
    left, right = ((-9, 8), "right"), ((9, -15), "left")
    for place, (x, y) in enumerate(sorted(places, reverse=True)):
        axes.plot(x, y, "o", markersize=11, fillstyle="none", color=style.INK, markeredgewidth=1.6, zorder=5)
        for shift, side in (left, right) if place % 2 or len(places) == 1 else (right, left):
            text = axes.annotate(
                _counted(x), (x, y), shift, textcoords="offset points", ha=side, size=9, weight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}, zorder=6,
            )  # fmt: skip
            box = text.get_window_extent(figure.canvas.get_renderer()).padded(3)
            inside = axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1)
            inside = inside and axes.bbox.containsy(box.y0) and axes.bbox.containsy(box.y1)
            if inside and not any(box.overlaps(other) for other in boxes):
                boxes.append(box)
                break
            text.remove()  # it stands beside the line's name too


def _pays(steps):
    if steps is None:
        return "never pays"
    return f"pays after {_counted(steps)}" if steps else "pays at once"


def _counted(steps):
    return f"{steps:,} step{'s' * (steps != 1)}"


def _told(each, steps, eager):
    ratio = eager["step_s"] / each["step_s"]
    told = f"{clean(each['name'])}: {number(each['compile_s'])} s to compile, {number(each['step_s'])} s a step"
    return f"{told} ({ratio:.2f}×), {_pays(steps)}."


def step_times(samples, events) -> tuple:
    """The time of each step, a panel a run, with marks at the steps in which something was compiled.

    Args:
        samples: {name: [seconds, one a step]}.
        events: {name: [index of a step with a compilation, from 0 on]}; a run may be missing.

    Raises:
        ValueError: there is no step, an event of a run that is not there, or no step of that index.
    """
    if not samples or not all(samples.values()):
        raise ValueError("each run needs the time of at least one step: {name: [seconds, …]}")
    for name, found in events.items():
        wrong = [index for index in found if index not in range(len(samples.get(name, ())))]
        if name not in samples or wrong:
            raise ValueError(f"events of {name!r} that no step has: {wrong or found}; steps are counted from 0")
    everything = [1000 * seconds for run in samples.values() for seconds in run]
    longest = max(map(len, samples.values()))
    with style.look():
        figure = style.canvas(1)
        write_foot(figure, PANEL * len(samples) + 0.35, [KEY])
        alt = ["Time of each training step, on a logarithmic axis, with marks where something was compiled."]
        for place, (name, seconds) in enumerate(samples.items()):
            top, compiled = 0.4 + PANEL * place, sorted(set(events.get(name, ())))
            font = {"size": 10, "weight": "bold"}
            style.write_at(figure, 0.75, top - 0.27, fitted(figure, name, 8, 1, **font), **font)
            axes = style.panel(figure, 0.75, top, style.WIDTH - 3.4, PANEL - 0.6)
            air = 0.5 + 0.02 * longest
            axes.set(yscale="log", xlim=(1 - air, longest + air), ylabel="ms a step")
            axes.set_ylim(0.6 * min(everything), 1.8 * max(everything))
            _run(axes, [1000 * each for each in seconds], compiled)
            said = _run_told(seconds, compiled)
            axes.annotate(
                "\n".join(fitted(figure, each, 2.35, 2) for each in said), (1, 0.5), (10, 0), "axes fraction",
                textcoords="offset points", va="center", size=9, annotation_clip=False,
            )  # fmt: skip
            alt.append(f"{clean(name)}: {', '.join(said)}.")
        axes.set_xlabel("step")
    return figure, " ".join(alt)


def _run(axes, milliseconds, compiled):
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    for index in compiled:
        axes.axvline(index + 1, color=style.RED, linestyle=(0, (1, 2)), linewidth=1.2)
    size = 1.5 if len(milliseconds) > 200 else 3
    axes.plot(range(1, len(milliseconds) + 1), milliseconds, "o-", color=style.INK, linewidth=0.8, markersize=size)
    axes.plot(
        [index + 1 for index in compiled], [milliseconds[index] for index in compiled], "D", markersize=7,
        markerfacecolor=style.ORANGE, markeredgecolor=style.INK, markeredgewidth=1, clip_on=False, zorder=4,
    )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(axis="y")


def _run_told(seconds, compiled):
    """Sentences without full stops: the usual step, and what compiling made of others."""
    plain = [each for index, each in enumerate(seconds) if index not in compiled]
    if not compiled:
        return [f"median {number(1000 * median(seconds))} ms", "nothing was compiled"]
    told = [f"other steps: median {number(1000 * median(plain))} ms"] if plain else []
    some = ", ".join(str(index + 1) for index in compiled[:6]) + ", …" * (len(compiled) > 6)
    several = len(compiled) > 1
    told.append(f"compiled {len(compiled)} times, in steps {some}" if several else f"compiled once, in step {some}")
    total = sum(seconds[index] for index in compiled)
    return [*told, f"{'these steps' if several else 'that step'} took {number(total)} s"]
