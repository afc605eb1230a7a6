"""Figures of the compiler: what it could gain, what each plan gained, what it cost, and when that is won back.

The functions return (figure, alt).
"""

import math
from statistics import median

from helpers.compiler.trials import DROPPED
from helpers.language import N_, _, shown
from helpers.plots import style
from helpers.plots.layout import fitted, line_names, line_style, name_ends, rows, sheet, ticks, whisker
from helpers.records.speedup import SPEED_UP, shows
from helpers.records.words import clean, number, percent, times

FILLS = {  # kinds of work: colour, hatch
    N_("convolution"): (style.SKY, ""),
    N_("matmul"): (style.GREEN, ""),
    N_("normalisation"): (style.ORANGE, "//"),
    N_("pointwise"): (style.ORANGE, ""),
    N_("pooling/softmax/loss"): (style.PURPLE, "\\\\"),
    N_("other"): (style.GREY, ".."),
    N_("bookkeeping"): ("none", ""),
}
FUSED = ("normalisation", "pointwise")


@style.readable()
def profile(profiles) -> tuple:
    """The share of a training step of each kind of work, a bar a model, and the bound on fusion beside it.

    Args:
        profiles: {name of the model: operators.Profile}.
    """
    seen = lambda kind: any(p.share.get(kind, 0) >= 0.0005 for p in profiles.values())  # noqa: E731
    key = [(_(kind), *look) for kind, look in FILLS.items() if seen(kind)]
    note = _(
        "Outlined: normalisation and pointwise work, which a compiler can fuse. At most: how much faster a step would "
        "be if they took no time (Amdahl); a better memory layout or better convolutions can give more."
    )
    named, alt = [], [_("Share of a training step by kind of work, and the bound on fusing it.")]
    for name, p in profiles.items():
        bound = _("no bound")
        if math.isfinite(p.pointwise_bound):
            bound = _("at most {pointwise_bound}").format(pointwise_bound=times(p.pointwise_bound))
        named.append((name, [(100 * p.share.get(kind, 0), look) for kind, look in FILLS.items()], bound))
        largest = max(p.share, key=p.share.get)
        most = _("most is {largest} ({share})").format(largest=_(largest), share=percent(p.share[largest]))
        fused = _("{fused} can be fused").format(fused=percent(sum(p.share.get(kind, 0) for kind in FUSED)))
        alt.append(f"{clean(name)}: {most}; {fused}, {bound}.")
    title, unit = _("Where a training step spends its time"), _("% of the step")
    figure = rows(title, unit, named, key=key, notes=[note], high=0.66, thick=0.46)
    for y, (_name, bars, _bound) in enumerate(named):
        _outline(figure.axes[0], y, [value for value, _look in bars])
    return figure, " ".join(alt)


def _outline(axes, y, shares):
    """Write the larger shares into their bars, and outline those that can be fused."""
    for place, share in enumerate(shares):
        if share > 8:
            at = sum(shares[:place]) + share / 2
            axes.text(at, y, f"{share:.0f}%", ha="center", va="center", size=9, **style.TAG)
    places = [list(FILLS).index(kind) for kind in FUSED]
    first, fused = sum(shares[: places[0]]), sum(shares[place] for place in places)
    if fused:
        axes.barh(y, fused, 0.46, first, fill=False, edgecolor=style.INK, linewidth=2.2, zorder=3)
    at, side = (first + fused, "right") if first + fused / 2 > 50 else (first, "left")
    words = _("can be fused: {fused}%").format(fused=f"{fused:.0f}")
    axes.text(at, y + 0.37, words, size=9, color=style.SOFT, va="center", ha=side)


@style.readable()
def plans(tried, title) -> tuple:
    """The speed-up of each plan of a tuner over eager, what it cost to compile, and why others were dropped.

    Args:
        tried: the rows of `model.tuner.rows()`.
    """
    timed = [row for row in tried if row["speed_up"] is not None and row["status"] not in DROPPED]
    timed.sort(key=lambda row: -row["speed_up"])
    dropped = [row for row in tried if row not in timed]
    reasons = [f"{clean(row['plan'])} – {_(row['status'])}: {clean(shown(row['why'])).rstrip('.')}." for row in dropped]
    notes = [_("Whisker: 95% interval of the speed-up.") if timed else _("No plan has been timed.")]
    notes += [f"✗ {reason}" for reason in reasons]
    looks = {"chosen": (style.BLUE, ""), "baseline": (style.GREY, "")}
    named = []
    for row in timed:
        name = "✓ " * (row["status"] == "chosen") + row["plan"]
        named.append((name, [(row["speed_up"], looks.get(row["status"], (style.SKY, "//")))], _gain(row)))
    alt = [f"{clean(title)}: {_('speed-up of a training step over eager')}."]
    alt += [f"{clean(row['plan'])}: {_gain(row)}." for row in timed]
    return _gains(title, named, timed, notes), " ".join([*alt, *reasons, *notes[: not timed]])


def _gain(row):
    words = [times(row["speed_up"])]
    if row["status"] != "baseline" and row["compile_s"]:
        pays = _("never pays")
        if row["break_even"] is not None:
            pays = _("pays at step {break_even}").format(break_even=f"{math.ceil(row['break_even']):,}")
        words += [_("{compile_s} s to compile").format(compile_s=number(row["compile_s"])), pays]
    return _(", ").join(words + [_("chosen")] * (row["status"] == "chosen"))


@style.readable()
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
    named = []
    for name, row in found.items():
        words = times(row["speed_up"]) + ("" if shows(row) else _(", ") + _("not shown"))
        named.append((name, [(row["speed_up"], (style.BLUE if shows(row) else style.GREY, ""))], words))
    title = _("Speed of a training step with {plan}, over eager in the same format").format(plan=plan)
    note = _("Whisker: 95% interval of the speed-up. Grey, not shown: it includes 1×.")
    if any("speed_up_q1" in row for row in found.values()):
        note = _(
            "Whisker: middle half of the rounds, as this record has no intervals. Grey, not shown: it includes 1×."
        )
    alt = [f"{title}.", *(f"{clean(name)}: {words}." for name, _bars, words in named)]
    return _gains(title, named, list(found.values()), [note]), " ".join(alt)


def _gains(title, named, timed, notes):
    """Bars of speed-ups over eager, with the interval of each."""
    if not timed:
        with sheet(title, 0.01, notes=notes) as (figure, [axes]):  # words alone
            axes.set_axis_off()
            return figure
    most = max(row["speed_up_high"] or row["speed_up"] for row in timed)
    figure = rows(title, _("speed-up over eager"), named, notes=notes, line=1, most=most)
    for y, row in enumerate(timed):
        whisker(figure.axes[0], y, *(row[name] for name in SPEED_UP))
    return figure


@style.readable()
def break_even(series) -> tuple:
    """Seconds won over eager against training steps: less than none after compiling. Where a line crosses 0, it pays.

    Args:
        series: [{"name", "compile_s", "step_s"}, …] in seconds; the first is eager, which the others are compared with.
    """
    eager, *others = series
    after = [crossing(eager, each) for each in others]
    pays = [steps for steps in after if steps]
    # Beyond all crossings, or so far that compiling is no more than half of the time.
    last = 1.5 * max(pays) if pays else max(10.0, *(2 * each["compile_s"] / eager["step_s"] for each in others))
    won = lambda each, n: eager["compile_s"] - each["compile_s"] + n * (eager["step_s"] - each["step_s"])  # noqa: E731
    names, _high = line_names([each["name"] for each in series], lines=1)
    names = names[:1] + [f"{name}\n{_pays(steps)}" for name, steps in zip(names[1:], after, strict=True)]
    note = _("Circle: from this step on the plan has taken less time than eager, compiling included.") if pays else ""
    high = max(3.3, 0.34 * len(names))
    with sheet(_("When is compiling won back?"), high, notes=[note]) as (figure, [axes]):
        axes.set(xlabel=_("training steps"), ylabel=_("seconds won over eager"), xlim=(0, last))
        for place, each in enumerate(series):
            axes.plot([0, last], [won(each, n) for n in (0, last)], **line_style(place))
        ticks(axes.xaxis, "{:,.0f}")
        axes.grid()
        for steps in pays:
            axes.plot(steps, 0, "o", markersize=11, fillstyle="none", color=style.INK, zorder=5)
        name_ends(axes, [(last, won(each, last), "") for each in series], names, high)
    alt = [_("Seconds won over eager, compiling included.")]
    for each, steps in zip(others, after, strict=True):
        compile_s = _("{compile_s} s to compile").format(compile_s=number(each["compile_s"]))
        alt.append(f"{clean(each['name'])}: {compile_s}, {_pays(steps)}.")
    return figure, " ".join(alt)


def crossing(eager, plan):
    """The number of steps after which `plan` is no slower than `eager`, compiling included; None: never."""
    gained = eager["step_s"] - plan["step_s"]
    return math.ceil(max(0, plan["compile_s"] - eager["compile_s"]) / gained) if gained > 0 else None


def _pays(steps):
    if steps is None:
        return _("never pays")
    after = _("pays after {steps} step{s}").format(steps=f"{steps:,}", s="s" * (steps != 1))
    return after if steps else _("pays at once")


@style.readable()
def step_times(samples, events) -> tuple:
    """The time of each step, a panel a run, with marks at the steps in which something was compiled.

    Args:
        samples: {name: [seconds, one a step]}.
        events: {name: [index of a step with a compilation, from 0 on]}; a run may be missing.
    """
    everything = [1000 * seconds for run in samples.values() for seconds in run]
    longest = max(map(len, samples.values()))
    alt = [_("Time of each training step, on a logarithmic axis, with marks where something was compiled.")]
    title, notes = (
        _("Time of each training step"),
        [_("Diamond and dotted line: a step in which something was compiled.")],
    )
    with sheet(title, 1.15, notes=notes, panels=len(samples), stacked=True) as (figure, panels):
        for axes, (name, seconds) in zip(panels, samples.items(), strict=True):
            compiled = sorted(set(events.get(name, ())))
            axes.set_title(fitted(name, 6, 1, 9.5, "bold"))
            axes.set(yscale="log", ylabel="ms a step", ylim=(0.6 * min(everything), 1.8 * max(everything)))
            axes.set_xlim(0.5 - 0.02 * longest, longest + 0.5 + 0.02 * longest)
            words = _run(axes, seconds, compiled)
            at = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False, "va": "center"}
            axes.annotate("\n".join(fitted(each, 2.35, 2) for each in words), (1, 0.5), (10, 0), size=9, **at)
            alt.append(f"{clean(name)}: {', '.join(words)}.")
        panels[-1].set_xlabel(_("step"))
    return figure, " ".join(alt)


def _run(axes, seconds, compiled):
    """Draw a run; returns in words the usual step, and what compiling made of others."""
    from matplotlib.ticker import LogLocator

    milliseconds, size = [1000 * each for each in seconds], 1.5 if len(seconds) > 200 else 3
    axes.plot(range(1, len(milliseconds) + 1), milliseconds, "o-", color=style.INK, linewidth=0.8, markersize=size)
    look = {"color": style.ORANGE, "markeredgecolor": style.INK, "markersize": 7, "clip_on": False, "zorder": 4}
    for index in compiled:
        axes.axvline(index + 1, color=style.RED, linestyle=(0, (1, 2)), linewidth=1.2)
        axes.plot(index + 1, milliseconds[index], "D", **look)
    ticks(axes.xaxis, "{:,.0f}", 8, integer=True, min_n_ticks=1)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(axis="y")
    if not compiled:
        return [_("median {seconds} ms").format(seconds=number(median(milliseconds))), _("nothing was compiled")]
    plain = [each for index, each in enumerate(milliseconds) if index not in compiled]
    words = [_("other steps: median {plain} ms").format(plain=number(median(plain)))] if plain else []
    some = ", ".join(str(index + 1) for index in compiled[:6]) + ", …" * (len(compiled) > 6)
    total = number(sum(seconds[index] for index in compiled))
    return [*words, _("compiled in step {some}").format(some=some), _("took {total} s").format(total=total)]
