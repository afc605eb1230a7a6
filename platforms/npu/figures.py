"""Figures of the move to NPUs: who worked on which card, the loss scale, and what a lost schedule costs.

The functions return (figure, alt). None of them shows speed, of which an emulated card has none to show;
`on` names the cards in the title ("emulated NPU").
"""

from statistics import median

from helpers.language import N_, _
from helpers.plots import style
from helpers.plots.layout import DASHED, fitted, lines, sheet
from helpers.records.words import clean

EMULATED = N_("emulated NPU")
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
    predicted = {label: card for label, card in (predicted or {}).items() if card is not None}
    count = count or used[-1] + 1
    most = max(map(len, runs.values()))
    key = [(_("process {rank}").format(rank=rank), *PROCESSES[rank]) for rank in range(most)]
    title = _("Cards that each process used ({on})").format(on=_(on))
    notes = [_("Dashed frame: the card predicted for process 1. Below each card: operators.")] if predicted else ()
    with sheet(title, 0.9 * len(runs) + 0.25, key=key, notes=notes) as (figure, [axes]):
        for y, (label, processes) in enumerate(runs.items()):
            for card in range(count):
                _card(axes, card, y, processes, predicted.get(label) == card)
        axes.set(xlim=(-0.5, count - 0.5), ylim=(len(runs) - 0.4, -0.5))
        axes.set_yticks(range(len(runs)), [fitted(label, 2.2, 2, 10) for label in runs])
        axes.set_xticks(range(count), [f"npu:{card}" for card in range(count)])
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure, _alt(title, {label: _cards_words(label, of, predicted) for label, of in runs.items()})


def _card(axes, card, y, processes, expected):
    """One box: the colours of the processes that worked there, and how many operators they ran."""
    here = [(rank, of[card]) for rank, of in enumerate(processes) if of.get(card)]
    look = {"height": 0.46, "edgecolor": style.INK}
    axes.barh(y, 0.9, left=card - 0.45, color="none", linewidth=0.8, **look)
    width = 0.9 / max(1, len(here))
    for place, (rank, _operators) in enumerate(here):
        colour, hatch = PROCESSES[rank]
        axes.barh(y, width, left=card - 0.45 + place * width, color=colour, hatch=hatch, linewidth=0.8, **look)
    if expected:
        axes.barh(y, 0.98, 0.56, left=card - 0.49, color="none", edgecolor=style.INK, linestyle=DASHED, linewidth=1.2)
    text = " + ".join(f"{operators:,}" for _rank, operators in here) or _("idle")
    axes.text(card, y + 0.32, text, ha="center", va="top", size=9)


def _cards_words(label, processes, predicted):
    words = []
    for rank, of in enumerate(processes):
        used = _(" and ").join(f"npu:{card} ({of[card]:,})" for card in sorted(of)) or _("none")
        words.append(_("process {rank} on {cards}").format(rank=rank, cards=used))
    guess = _(" (process 1 predicted on {card})").format(card=f"npu:{predicted[label]}") if label in predicted else ""
    return _(", ").join(words) + guess


def accuracy(runs, fall) -> tuple:
    """Validation accuracy after each epoch, in percent: a thin line a seed, and the median over seeds.

    Args:
        runs: {label: [[accuracy after epoch 0, 1, …] of a seed, …]}.
        fall: the epoch whose learning rate is the first lower one.

    Raises:
        ValueError: no run has an epoch.
    """
    title = _("Validation accuracy with and without the schedule (recorded)")
    medians = {label: [median(epoch) for epoch in zip(*seeds, strict=True)] for label, seeds in runs.items()}
    seeds = max(map(len, runs.values()), default=0)
    notes = [
        _("Thick: median of {seeds} seeds; thin: each seed.").format(seeds=seeds),
        _("With the schedule, the learning rate falls to a tenth before epoch {fall}.").format(fall=fall),
    ]
    thin = {label: [dict(enumerate(of)) for of in each] for label, each in runs.items()}
    named = title, _numbered(medians), _("epoch"), _("accuracy, %")
    figure = lines(*named, "{:.1f}".format, notes=notes, thin=thin)
    words = {}
    for label, values in medians.items():
        last = [of[-1] for of in runs[label]]
        words[label] = _("{value:.1f} % ({low:.1f} to {high:.1f}) after epoch {epoch}").format(
            value=values[-1], low=min(last), high=max(last), epoch=len(values) - 1
        )
    about = _("median of {seeds} seeds and their range").format(seeds=seeds)
    return figure, _alt(title + _(", ") + about, words)


def scales(runs, on=EMULATED) -> tuple:
    """The loss scale of every step, a line a run; a cross is a step that was left out.

    Args:
        runs: {label: [(scale, whether the step was left out), …]}.

    Raises:
        ValueError: no run has a step.
    """
    title = _("Loss scale over the steps ({on})").format(on=_(on))
    marks = [(n, scale) for steps in runs.values() for n, (scale, left_out) in enumerate(steps) if left_out]
    series = _numbered({label: [scale for scale, _left_out in steps] for label, steps in runs.items()})
    notes = [_("Cross: the gradients overflowed, and the step is left out.")]
    look = {"marks": marks, "log": 2, "notes": notes, "stairs": True}
    figure = lines(title, series, _("step"), _("scale"), "{:,.0f}".format, **look)
    words = {}
    for label, steps in runs.items():
        told = [
            _("{steps} at first").format(steps=f"{steps[0][0]:,.0f}"),
            _("{steps} at last").format(steps=f"{steps[-1][0]:,.0f}"),
            _("steps left out: {n}").format(n=[n for n, (_scale, left_out) in enumerate(steps) if left_out]),
        ]
        words[label] = _(", ").join(told)
    return figure, _alt(title + _(", ") + _("a line a run"), words)


def _numbered(runs):
    return {label: dict(enumerate(values)) for label, values in runs.items()}


def _alt(about, words):
    """The alt text: what the figure shows, then a sentence for each label."""
    told = [_("{text}: {more}").format(text=_(clean(label)), more=more) for label, more in words.items()]
    return " ".join(_("{text}.").format(text=sentence) for sentence in (about, *told))
