"""Figures of the move to NPUs: who worked on which card, the loss scale, and what a lost schedule costs.

The functions return (figure, alt). None of them shows speed, of which an emulated card has none to show;
`on` names the cards in the title ("emulated NPU").
"""

from statistics import median

from helpers.launcher.language import listed, local, marked
from helpers.plots import style
from helpers.plots.layout import DASHED, fitted, lines, sheet
from helpers.records.words import clean

EMULATED = marked("emulated NPU")
PROCESSES = ((style.SKY, ""), (style.ORANGE, "//"), (style.GREEN, "xx"), (style.PURPLE, ".."))  # colour, hatch


def cards(runs, predicted=None, on=EMULATED, count=None) -> tuple:
    """Which process worked on which card, a strip of cards a run.

    Args:
        runs: {label: [{card: operators} of process 0, of process 1, …]}.
        predicted: {label: card on which process 1 was expected}; marked.
        count: cards of the host (default: up to the last that was used).

    Raises:
        ValueError: no process has used a card.
    """
    used = sorted({int(card) for processes in runs.values() for of in processes for card in of})
    if not used:
        raise ValueError("no process has used a card: nothing to draw")
    predicted, count = predicted or {}, count or used[-1] + 1
    key = [(f"process {rank}", *PROCESSES[rank]) for rank in range(max(map(len, runs.values())))]
    title = f"Cards that each process used ({on})"
    notes = marked("Dashed frame: the card predicted for process 1. Below each card: operators.")
    with sheet(title, 0.9 * len(runs) + 0.25, key=key, notes=[notes] if predicted else ()) as (figure, [axes]):
        for y, (label, processes) in enumerate(runs.items()):
            for card in range(count):
                _card(axes, card, y, processes, predicted.get(label) == card)
        axes.set(xlim=(-0.5, count - 0.5), ylim=(len(runs) - 0.4, -0.5))
        axes.set_yticks(range(len(runs)), [fitted(label, 2.2, 2, 10) for label in runs])
        axes.set_xticks(range(count), [f"npu:{card}" for card in range(count)])
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure, " ".join([f"{title}.", *(_cards_words(label, of, predicted) for label, of in runs.items())])


def _card(axes, card, y, processes, expected):
    """One box: the colours of the processes that worked there, and how many operators they ran."""
    here = [(rank, of[card]) for rank, of in enumerate(processes) if of.get(card)]
    look = {"height": 0.46, "edgecolor": style.INK}
    axes.barh(y, 0.9, left=card - 0.45, color="none", linewidth=0.8, **look)
    for place, (rank, _) in enumerate(here):
        colour, hatch = PROCESSES[rank]
        width = 0.9 / len(here)
        axes.barh(y, width, left=card - 0.45 + place * width, color=colour, hatch=hatch, linewidth=0.8, **look)
    if expected:
        axes.barh(y, 0.98, 0.56, left=card - 0.49, color="none", edgecolor=style.INK, linestyle=DASHED, linewidth=1.2)
    text = " + ".join(f"{operators:,}" for _, operators in here) or marked("idle")
    axes.text(card, y + 0.32, text, ha="center", va="top", size=9)


def _cards_words(label, processes, predicted):
    words = []
    for rank, of in enumerate(processes):
        cards = local(" and ").join(f"npu:{card} ({of[card]:,})" for card in sorted(of)) or local("none")
        words.append(local("process {rank} on {cards}", rank=rank, cards=cards))
    card = f"npu:{predicted.get(label)}"
    guess = local(f" (process 1 predicted on {card})") if label in predicted else ""
    return listed([listed(words) + guess], about=clean(label))


def accuracy(runs, fall) -> tuple:
    """Validation accuracy after each epoch, in percent: a thin line a seed, and the median over seeds.

    Args:
        runs: {label: [[accuracy after epoch 0, 1, …] of a seed, …]}.
        fall: the epoch whose learning rate is the first lower one.

    Raises:
        ValueError: no run has an epoch.
    """
    title = marked("Validation accuracy with and without the schedule (recorded)")
    medians = {label: [median(epoch) for epoch in zip(*seeds, strict=True)] for label, seeds in runs.items()}
    seeds = max(map(len, runs.values()), default=0)
    notes = [
        f"Thick: median of {seeds} seeds; thin: each seed.",
        f"With the schedule, the learning rate falls to a tenth before epoch {fall}.",
    ]
    figure = lines(
        title,
        _numbered(medians),
        "epoch",
        marked("accuracy, %"),
        "{:.1f}".format,
        notes=notes,
        thin={label: [dict(enumerate(of)) for of in each] for label, each in runs.items()},
    )
    words = []
    for label, values in medians.items():
        last = [of[-1] for of in runs[label]]
        spread = local("{low} to {high}", low=f"{min(last):.1f}", high=f"{max(last):.1f}")
        words.append(listed([f"{values[-1]:.1f} % ({spread}) after epoch {len(values) - 1}"], about=clean(label)))
    about = local("{text}.", text=listed([title, f"median of {seeds} seeds and their range"]))
    return figure, " ".join([about, *words])


def scales(runs, on=EMULATED) -> tuple:
    """The loss scale of every step, a line a run; a cross is a step that was left out.

    Args:
        runs: {label: [(scale, whether the step was left out), …]}.

    Raises:
        ValueError: no run has a step.
    """
    title = f"Loss scale over the steps ({on})"
    marks = [(n, scale) for steps in runs.values() for n, (scale, left_out) in enumerate(steps) if left_out]
    series = _numbered({label: [scale for scale, _ in steps] for label, steps in runs.items()})
    notes = [marked("Cross: the gradients overflowed, and the step is left out.")]
    look = {"marks": marks, "log": 2, "notes": notes, "stairs": True}
    figure = lines(title, series, marked("step"), marked("scale"), "{:,.0f}".format, **look)
    words = []
    for label, steps in runs.items():
        told = [f"{steps[0][0]:,.0f} at first", f"{steps[-1][0]:,.0f} at last"]
        told.append(f"steps left out: {[n for n, (_, left_out) in enumerate(steps) if left_out]}")
        words.append(listed(told, about=clean(label)))
    return figure, " ".join([local("{text}.", text=listed([title, marked("a line a run")])), *words])


def _numbered(runs):
    return {label: dict(enumerate(values)) for label, values in runs.items()}
