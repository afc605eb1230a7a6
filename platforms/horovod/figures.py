"""Figures of a Horovod job: what each rank does when, which gradient leaves when, and how far apart ranks are.

The functions return (figure, alt).
"""

from helpers import measure
from helpers.language import N_, _
from helpers.plots import style
from helpers.plots.layout import DASHED, bar, line_style, lines, name_rows, sheet
from helpers.records.words import clean, number, percent

STAGES = {  # of a step, as the ranks note them: colour and hatch
    N_("split"): (style.YELLOW, ".."),
    N_("compute"): (style.SKY, ""),
    N_("intervene"): (style.ORANGE, "//"),
    N_("update"): (style.PURPLE, "\\\\"),
}
ROUNDING = 0.005  # ms; a timeline has whole microseconds
PHASES = {"wait": (style.GREY, ".."), "reduce": (style.ORANGE, "//")}  # of a tensor


@style.readable()
def stages(ranks, title=N_("Stages of data parallel steps")) -> tuple:
    """What each rank does when: {label: [(name of STAGES, begin, end), …]} in ms on one clock; a row a stage."""
    spans = [span for of in ranks.values() for span in of]
    if not spans:
        raise ValueError("no stage to draw: give {rank: [(stage, begin, end), …]} in milliseconds")
    begin = min(b for _, b, _ in spans)
    most = max(e for _, _, e in spans) - begin
    used = [name for name in STAGES if any(name == stage for stage, _, _ in spans)]
    thick = 0.8 / len(used)  # of the rank's group of rows
    key, words = [(_(name), *STAGES[name]) for name in used], []
    with sheet(_(title), (0.17 * len(used) + 0.25) * len(ranks), key=key) as (figure, [axes]):
        name_rows(axes, list(ranks), 2.4, 1)
        axes.set(xlim=(0, 1.005 * most), xlabel="ms")
        for y, (label, of) in enumerate(ranks.items()):
            for name, b, e in of:
                bar(axes, y + thick * (used.index(name) + 0.5) - 0.4, e - b, STAGES[name], b - begin, thick)
            axes.axhline(y + 0.5, color=style.GRID, linewidth=0.8)
            sums = {name: sum(e - b for stage, b, e in of if stage == name) for name in used}
            words.append(f"{clean(label)}: " + ", ".join(f"{_(name)} {number(ms)} ms" for name, ms in sums.items()))
    about = _("{title}, {ms} ms in all.").format(title=clean(_(title)), ms=number(most))
    return figure, " ".join([about, *(f"{line}." for line in words)])


@style.readable()
def departures(tensors, backward, title=N_("When the gradients leave")) -> tuple:
    """When gradients were ready and when they were reduced, a row a message, below the bar of the backward pass.

    Args:
        tensors: {name: (handed in, began, ended)} in ms on one clock. Those that began together were one message.
        backward: (begin, end) of the backward pass on the same clock.
    """
    if not tensors:
        raise ValueError("no gradient to draw: give {name: (ready, began, ended)} in milliseconds")
    begin, over = backward
    messages = []
    for name in sorted(tensors, key=lambda name: tensors[name][1]):
        if not messages or tensors[name][1] - tensors[messages[-1][0]][1] > ROUNDING:
            messages.append([])
        messages[-1].append(name)
    messages = [sorted(of, key=lambda name: tensors[name]) for of in messages]
    more = _("{name} and {n} more")
    labels = [more.format(name=of[0], n=len(of) - 1) if len(of) > 1 else of[0] for of in messages]
    last = max(over, *(ended for *_, ended in tensors.values())) - begin
    key = [(_("backward runs"), *STAGES["compute"]), (_("ready, waits"), *PHASES["wait"])]
    key += [("all-reduce", *PHASES["reduce"])]
    with sheet(_(title), 0.27 * (len(labels) + 1), key=key) as (figure, [axes]):
        name_rows(axes, [_("backward"), *labels], 2.6, 1)
        axes.set(xlim=(min(0, *(ready - begin for ready, *_ in tensors.values())), 1.01 * last), xlabel="ms")
        bar(axes, 0, over - begin, STAGES["compute"], 0, 0.62)
        for y, names in enumerate(messages, 1):
            began, ended = tensors[names[0]][1] - begin, max(tensors[name][2] for name in names) - begin
            ready = [tensors[name][0] - begin for name in names]
            bar(axes, y, began - min(ready), PHASES["wait"], min(ready), 0.62)
            bar(axes, y, ended - began, PHASES["reduce"], began, 0.62)
            axes.plot(ready, [y] * len(ready), "|", color=style.INK, markersize=11)
        axes.axvline(over - begin, color=style.INK, linewidth=1, linestyle=DASHED)
    early = sum(ended <= over for *_, ended in tensors.values())
    alt = _(
        "{title}. Backward takes {ms} ms. {tensors} gradients leave in {messages} messages; {early} of the gradients "
        "have been reduced before backward is over."
    )
    values = {"ms": number(over - begin), "tensors": len(tensors), "messages": len(messages), "early": early}
    return figure, alt.format(title=clean(_(title)), **values)


@style.readable()
def drift(runs, title=N_("How far apart the ranks' weights are"), y=N_("largest difference")) -> tuple:
    """A value after each step, a line a run: {label: [value before step 0, after step 0, …]}."""
    series = {label: dict(enumerate(of)) for label, of in runs.items()}
    figure = lines(_(title), series, _("step"), _(y), number, low=0)
    ends = _("{label}: {first} at first, {last} at last.")
    words = [ends.format(label=clean(label), first=number(of[0]), last=number(of[-1])) for label, of in runs.items()]
    return figure, " ".join([_("{title}, a line a run.").format(title=clean(_(title))), *words])


@style.readable()
def over_rate(sweeps, title) -> tuple:
    """Accuracy over the learning rate, a panel an optimizer and a line a batch; medians, and the middle half.

    `sweeps`: {optimizer: {line: {rate: accuracies of several seeds}}}.
    """
    if not sweeps or not all(points for of in sweeps.values() for points in of.values()):
        raise ValueError("no rate to draw: give {optimizer: {line: {rate: [accuracy, …]}}}")
    words = []
    with sheet(_(title), 2.7, panels=len(sweeps)) as (figure, axes):
        for each, (optimizer, of) in zip(axes, sweeps.items(), strict=True):
            each.set_title(clean(optimizer))
            each.set(xscale="log", xlabel=_("learning rate"), ylim=(0, 1))
            each.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            each.grid(axis="y")
            rates = sorted({rate for points in of.values() for rate in points})
            each.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=45)
            each.minorticks_off()
            for place, (line, points) in enumerate(of.items()):
                spread = {rate: measure.summary(found) for rate, found in sorted(points.items())}
                look = line_style(place) | {"markevery": 1, "label": line}
                each.plot(list(spread), [found["median"] for found in spread.values()], **look)
                low, high = ([found[end] for found in spread.values()] for end in ("q1", "q3"))
                each.fill_between(list(spread), low, high, color=look["color"], alpha=0.2, linewidth=0)
                top = max(spread, key=lambda rate: spread[rate]["median"])
                best = _("{optimizer}, {line}: best {accuracy} at {rate:g}.")
                values = {"optimizer": clean(optimizer), "line": clean(line), "rate": top}
                words.append(best.format(accuracy=percent(spread[top]["median"]), **values))
        axes[0].legend(loc="lower left", frameon=False)
    return figure, " ".join([f"{clean(title)}.", *words])
