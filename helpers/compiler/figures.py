"""Figures of the compiler: what it could gain, what each plan gained, what it cost, and when that is won back.

The functions return (figure, alt).
"""

import math
from statistics import median

from ..launcher.language import listed, local, marked
from ..plots import style
from ..plots.layout import fitted, line_names, line_style, name_ends, rows, sheet, ticks, whisker
from ..records.words import clean, number, percent, times
from .trials import DROPPED

FILLS = {  # kinds of work: colour, hatch
    marked("convolution"): (style.SKY, ""),
    marked("depthwise convolution"): (style.SKY, "xx"),
    marked("matmul"): (style.GREEN, ""),
    marked("normalisation"): (style.ORANGE, "//"),
    marked("pointwise"): (style.ORANGE, ""),
    marked("pooling/softmax/loss"): (style.PURPLE, "\\\\"),
    marked("other"): (style.GREY, ".."),
    marked("bookkeeping"): ("none", ""),
}
FUSED = ("normalisation", "pointwise")


# -- what it could gain -------------------------------------------------------------------


def profile(profiles) -> tuple:
    """The share of a training step of each kind of work, a bar a model, and the bound on fusion beside it.

    Args:
        profiles: {name of the model: operators.Profile}.

    Raises:
        ValueError: there is no profile.
    """
    if not profiles:
        raise ValueError("no profile to draw: give {name: operators.profile(model, images, labels)}")
    seen = {kind for p in profiles.values() for kind, share in p.share.items() if share >= 0.0005}
    key = [(kind, *look) for kind, look in FILLS.items() if kind in seen]
    notes = [
        "Outlined: normalisation and pointwise work, which a compiler can fuse. At most: how much faster a step "
        "would be if they took no time (Amdahl); a better memory layout or better convolutions can give more."
    ]
    bounds = [
        f"at most {times(p.pointwise_bound)}" if math.isfinite(p.pointwise_bound) else marked("no bound")
        for p in profiles.values()
    ]
    named = [
        (name, [(100 * p.share.get(kind, 0), look) for kind, look in FILLS.items()], bound)
        for (name, p), bound in zip(profiles.items(), bounds, strict=True)
    ]
    title = marked("Where a training step spends its time")
    figure = rows(title, marked("% of the step"), named, key=key, notes=notes, high=0.66, thick=0.46)
    words = []
    for y, (each, (name, p), bound) in enumerate(zip(named, profiles.items(), bounds, strict=True)):
        _outline(figure.axes[0], y, [value for value, _ in each[1]])
        fused = percent(sum(p.share.get(kind, 0) for kind in FUSED))
        largest = max(p.share, key=p.share.get)
        most = f"most is {local(largest)} ({percent(p.share[largest])})"
        words.append(listed([most, listed([f"{fused} can be fused", bound])], "; ", clean(name)))
    return figure, " ".join([marked("Share of a training step by kind of work, and the bound on fusing it."), *words])


def _outline(axes, y, shares):
    """Write the larger shares into their bars, and outline those that can be fused."""
    first = sum(shares[: list(FILLS).index(FUSED[0])])
    fused = sum(shares[list(FILLS).index(kind)] for kind in FUSED)
    for place, share in enumerate(shares):
        if share > 8:
            axes.text(
                sum(shares[:place]) + share / 2, y, f"{share:.0f}%", ha="center", va="center", size=9, **style.TAG
            )
    if fused:
        axes.barh(y, fused, 0.46, first, fill=False, edgecolor=style.INK, linewidth=2.2, zorder=3)
    right = first + fused / 2 > 50
    axes.text(
        first + fused if right else first,
        y + 0.37,
        style.said(f"can be fused: {fused:.0f}%"),
        size=9,
        color=style.SOFT,
        va="center",
        ha="right" if right else "left",
    )


# -- what each plan gained ----------------------------------------------------------------


def plans(tried, title) -> tuple:
    """The speed-up of each plan of a tuner over eager, what it cost to compile, and why others were dropped.

    Args:
        tried: the rows of `model.tuner.rows()`.

    Raises:
        ValueError: there are no rows.
    """
    if not tried:
        raise ValueError("no plan to draw: give the rows of model.tuner, after some training steps")
    timed = [row for row in tried if row["speed_up"] is not None and row["status"] not in DROPPED]
    timed.sort(key=lambda row: -row["speed_up"])
    unknown = marked("no reason was given")
    reasons = [
        f"{clean(row['plan'])} – {style.said(row['status'])}: {style.said(clean(row['why']).rstrip('.') or unknown)}."
        for row in tried
        if row not in timed
    ]
    notes = [marked("Whisker: middle half of the rounds.") if timed else marked("No plan has been timed.")]
    notes += [f"✗ {reason}" for reason in reasons]
    looks = {"chosen": (style.BLUE, ""), "baseline": (style.GREY, "")}
    named = [
        (
            "✓ " * (row["status"] == "chosen") + row["plan"],
            [(row["speed_up"], looks.get(row["status"], (style.SKY, "//")))],
            style.said(", ").join(map(style.said, _gain(row))),
        )
        for row in timed
    ]
    if timed:
        figure = _gains(title, named, timed, notes)
    else:
        with sheet(title, notes=notes, panels=0) as (figure, _):
            pass
    words = [listed(_gain(row), about=clean(row["plan"])) for row in timed]
    about = listed([marked("speed-up of a training step over eager")], about=clean(title))
    return figure, " ".join([about, *words, *reasons, *notes[: not timed]])


def _gain(row):
    words = [times(row["speed_up"])]
    if row["status"] != "baseline" and row["compile_s"]:
        pays = _pays(None) if row["break_even"] is None else f"pays at step {math.ceil(row['break_even']):,}"
        words += [f"{number(row['compile_s'])} s to compile", pays]
    return words + [marked("chosen")] * (row["status"] == "chosen")


def recorded(tables, plan="inductor") -> tuple:
    """The speed-up of one plan over eager in the same format, a bar a recorded case.

    Args:
        tables: {name of the case: the rows of its tuner}.

    Raises:
        ValueError: no case has this plan timed.
    """
    found = {name: next((row for row in rows if row["plan"] == plan), None) for name, rows in tables.items()}
    found = {name: row for name, row in found.items() if row and row["speed_up"]}
    if not found:
        raise ValueError(f"{plan} was timed in none of the {len(tables)} case(s)")
    undecided = marked("undecided")
    said = {name: times(row["speed_up"]) + ("" if clear(row) else f", {undecided}") for name, row in found.items()}
    named = [
        (name, [(row["speed_up"], (style.BLUE if clear(row) else style.GREY, ""))], said[name])
        for name, row in found.items()
    ]
    title = f"Speed of a training step with {plan}, over eager in the same format"
    notes = ["Whisker: middle half of the rounds. Grey, undecided: it includes 1×, so faster and slower are possible."]
    figure = _gains(title, named, found.values(), notes)
    return figure, " ".join([f"{title}.", *(listed([words], about=clean(name)) for name, words in said.items())])


def _gains(title, named, timed, notes):
    """Bars of speed-ups over eager, with the middle half of each."""
    most = max(row["speed_up_q3"] for row in timed)
    figure = rows(title, marked("speed-up over eager"), named, notes=notes, line=1, most=most)
    for y, row in enumerate(timed):
        whisker(figure.axes[0], y, row["speed_up"], row["speed_up_q1"], row["speed_up_q3"])
    return figure


def clear(row) -> bool:
    """Whether the middle half of a plan's rounds lies on one side of eager."""
    return row["speed_up_q1"] > 1 or row["speed_up_q3"] < 1


# -- when that is won back ----------------------------------------------------------------


def break_even(series) -> tuple:
    """Seconds won over eager against training steps: less than none after compiling. Where a line crosses 0, it pays.

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
    left_out = ", ".join(clean(each["name"]) for each in series if each not in timed)
    after = [crossing(eager, each) for each in others]
    pays = sorted(steps for steps in after if steps)
    # Beyond all crossings, or so far that compiling is no more than half of the time.
    far = max(2 * each["compile_s"] / eager["step_s"] for each in others)
    last = 1.5 * pays[-1] if pays else max(10.0, far)
    notes = [
        marked("Circle: from this step on the plan has taken less time than eager, compiling included.") * bool(pays),
        f"Left out, since they have no times: {left_out}." if left_out else "",
    ]
    words = ["", *map(_pays, after)]
    names, _ = line_names([each["name"] for each in timed], lines=1)
    names = [f"{name}\n{said}" if said else name for name, said in zip(names, words, strict=True)]
    high = max(3.3, 0.34 * len(names))
    with sheet(marked("When is compiling won back?"), high, notes=notes) as (figure, [axes]):
        axes.set(xlabel=marked("training steps"), ylabel=marked("seconds won over eager"), xlim=(0, last))
        for place, each in enumerate(timed):
            axes.plot([0, last], [_won(eager, each, n) for n in (0, last)], **line_style(place))
        ticks(axes.xaxis, "{:,.0f}")
        axes.grid()
        for steps in filter(None, after):
            axes.plot(steps, 0, "o", markersize=11, fillstyle="none", color=style.INK, zorder=5)
        name_ends(axes, [(last, _won(eager, each, last), "") for each in timed], names, high)
    alt = [marked("Seconds won over eager, compiling included.")]
    alt.append(listed([f"{number(eager['step_s'])} s a step"], about=clean(eager["name"])))
    for each, steps in zip(others, after, strict=True):
        took = f"{number(each['step_s'])} s a step ({eager['step_s'] / each['step_s']:.2f}×)"
        told = [f"{number(each['compile_s'])} s to compile", took, _pays(steps)]
        alt.append(listed(told, about=clean(each["name"])))
    return figure, " ".join([*alt, *filter(None, notes[1:])])


def crossing(eager, plan):
    """The number of steps after which `plan` is no slower than `eager`, compiling included; None: never."""
    gained = eager["step_s"] - plan["step_s"]
    if gained <= 0:
        return None
    return math.ceil(max(0, plan["compile_s"] - eager["compile_s"]) / gained)


def _won(eager, plan, steps):
    return eager["compile_s"] - plan["compile_s"] + steps * (eager["step_s"] - plan["step_s"])


def _pays(steps):
    if steps is None:
        return marked("never pays")
    return f"pays after {steps:,} step{'s' * (steps != 1)}" if steps else marked("pays at once")


# -- which steps it made slow -------------------------------------------------------------


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
    air = 0.5 + 0.02 * longest
    alt = [marked("Time of each training step, on a logarithmic axis, with marks where something was compiled.")]
    notes = [marked("Diamond and dotted line: a step in which something was compiled.")]
    title = marked("Time of each training step")
    with sheet(title, 1.15, notes=notes, panels=len(samples), stacked=True) as (figure, panels):
        for axes, (name, seconds) in zip(panels, samples.items(), strict=True):
            compiled = sorted(set(events.get(name, ())))
            axes.set_title(fitted(name, 6, 1, 9.5, "bold"))
            axes.set(yscale="log", xlim=(1 - air, longest + air), ylabel="ms a step")
            axes.set_ylim(0.6 * min(everything), 1.8 * max(everything))
            _run(axes, [1000 * each for each in seconds], compiled)
            words = _run_words(seconds, compiled)
            axes.annotate(
                "\n".join(fitted(each, 2.35, 2) for each in words),
                (1, 0.5),
                (10, 0),
                "axes fraction",
                textcoords="offset points",
                va="center",
                size=9,
                annotation_clip=False,
            )
            alt.append(listed(words, about=clean(name)))
        panels[-1].set_xlabel(marked("step"))
    return figure, " ".join(alt)


def _run(axes, milliseconds, compiled):
    from matplotlib.ticker import LogLocator

    size = 1.5 if len(milliseconds) > 200 else 3
    axes.plot(range(1, len(milliseconds) + 1), milliseconds, "o-", color=style.INK, linewidth=0.8, markersize=size)
    for index in compiled:
        axes.axvline(index + 1, color=style.RED, linestyle=(0, (1, 2)), linewidth=1.2)
        axes.plot(
            index + 1,
            milliseconds[index],
            "D",
            markersize=7,
            markerfacecolor=style.ORANGE,
            clip_on=False,
            markeredgecolor=style.INK,
            zorder=4,
        )
    ticks(axes.xaxis, "{:,.0f}", 8, integer=True, min_n_ticks=1)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(axis="y")


def _run_words(seconds, compiled):
    """The usual step, and what compiling made of others."""
    if not compiled:
        return [f"median {number(1000 * median(seconds))} ms", marked("nothing was compiled")]
    plain = [each for index, each in enumerate(seconds) if index not in compiled]
    words = [f"other steps: median {number(1000 * median(plain))} ms"] if plain else []
    some = ", ".join(str(index + 1) for index in compiled[:6]) + ", …" * (len(compiled) > 6)
    total = number(sum(seconds[index] for index in compiled))
    if len(compiled) == 1:
        return [*words, f"compiled once, in step {some}", f"that step took {total} s"]
    return [*words, f"compiled {len(compiled)} times, in steps {some}", f"these steps took {total} s"]
