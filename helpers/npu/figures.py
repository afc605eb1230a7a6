"""Figures of the move to NPUs: who worked where, what was compiled, and whether the training is still the same.

The functions return (figure, alt). None of them shows speed, of which an emulated card has none to show;
`on` names the cards in the title ("emulated NPU").
"""

from ..plots import style
from ..plots.layout import DASHED, fitted, lines, rows
from ..records.words import clean, number

EMULATED = "emulated NPU"
PROCESSES = ((style.SKY, ""), (style.ORANGE, "//"), (style.GREEN, "xx"), (style.PURPLE, ".."))  # colour, hatch


# -- bars ---------------------------------------------------------------------------------


def cards(runs, predicted=None, on=EMULATED) -> tuple:
    """Operators that each process ran on each card, a group of bars a run.

    Args:
        runs: {label: [{card: operators} of process 0, of process 1, …]}.
        predicted: {label: card on which process 1 was expected}; marked.

    Raises:
        ValueError: no process has used a card.
    """
    used = sorted({int(card) for processes in runs.values() for of in processes for card in of})
    if not used:
        raise ValueError("no process has used a card: nothing to draw")
    predicted, named, frames = predicted or {}, [], []
    for label, processes in runs.items():
        for card in range(used[-1] + 1):
            if predicted.get(label) == card:
                frames.append(len(named))
            bars = [(of.get(card, 0), PROCESSES[rank % len(PROCESSES)]) for rank, of in enumerate(processes)]
            total = sum(value for value, _ in bars)
            named.append((f"{fitted(label, 2.7, 1, 10)}: npu:{card}", bars, f"{total:,}" if total else "idle"))
    count = max(map(len, runs.values()))
    key = [(f"process {rank}", *PROCESSES[rank % len(PROCESSES)]) for rank in range(count)]
    title = f"Operators on each card ({on})"
    notes = ["Dashed frame: the card on which process 1 was predicted."] if predicted else []
    figure = rows(title, "operators", named, key=key, notes=notes, integer=True)
    [axes] = figure.axes
    most = max(sum(value for value, _ in bars) for _, bars, _ in named)
    for y in frames:
        axes.barh(y, most, 0.78, color="none", edgecolor=style.INK, linestyle=DASHED, linewidth=1.2)
    return figure, " ".join([f"{title}.", *(_cards_words(label, of, predicted) for label, of in runs.items())])


def _cards_words(label, processes, predicted):
    words = [
        f"process {rank} on " + (" and ".join(f"npu:{card} ({of[card]:,})" for card in sorted(of)) or "none")
        for rank, of in enumerate(processes)
    ]
    guess = f" (process 1 predicted on npu:{predicted[label]})" if label in predicted else ""
    return f"{clean(label)}: {', '.join(words)}{guess}."


def counted(found, whole, title, unit, predicted=None, on=EMULATED) -> tuple:
    """How many of `whole` things each version counted, a bar each; the line is all of them.

    Args:
        found: {label: number}.
        predicted: {label: number}, written beside.

    Raises:
        ValueError: there is no row.
    """
    if not found:
        raise ValueError("no row to draw: give {label: number}")
    title, named = f"{clean(title)} ({on})", []
    for label, value in found.items():
        guess = f", predicted {predicted[label]:,}" if label in (predicted or {}) else ""
        look = (style.SKY, "") if value == whole else (style.ORANGE, "//")
        named.append((label, [(value, look)], f"{value:,} of {whole:,}{guess}"))
    figure = rows(title, unit, named, line=whole, integer=True)
    return figure, f"{title}, {clean(unit)}: {'; '.join(f'{clean(row[0])} {row[2]}' for row in named)}."


# -- lines --------------------------------------------------------------------------------


def losses(runs, title="Loss", on=EMULATED) -> tuple:
    """The loss after each step, a line a run; of equal runs the first shows below the others.

    Args:
        runs: {label: [loss of step 0, 1, …]}.

    Raises:
        ValueError: no run has a loss.
    """
    title = f"{clean(title)} ({on})"
    figure = lines(title, _numbered(runs), "step", "loss", number)
    first, *others = runs.values()
    off = max((abs(a - b) for other in others for a, b in zip(first, other, strict=False)), default=0)
    words = [f"{clean(label)}: from {number(v[0])} to {number(v[-1])} in {len(v)} steps." for label, v in runs.items()]
    last = f"The lines are {'equal' if off == 0 else f'at most {number(off)} apart'} where they have the same steps."
    return figure, " ".join([f"{title}, a line a run.", *words, last])


def kernels(runs, predicted=None, on=EMULATED) -> tuple:
    """Kernels compiled so far, step by step, a line a run.

    Args:
        runs: {label: [kernels compiled until the end of step 0, 1, …]}.
        predicted: (label, step, number): how many kernels that step was expected to compile.

    Raises:
        ValueError: no run has a step.
    """
    title = f"Kernels compiled until the end of each step ({on})"
    marks, words = [], []
    for label, values in runs.items():
        new = {step: b - a for step, (a, b) in enumerate(zip([0, *values[:-1]], values, strict=True)) if b > a}
        words.append(f"{clean(label)}: " + ", ".join(f"{n:,} in step {step}" for step, n in new.items()) + ".")
    if predicted:
        label, step, expected = predicted
        marks = [(step, runs[label][step - 1] + expected, f"predicted: {expected:,} more")]
        words.append(f"Predicted: {expected:,} new ones in step {step} ({clean(label)}).")
    figure = lines(title, _numbered(runs), "step", "kernels", "{:,}".format, marks=marks, low=0, stairs=True)
    return figure, " ".join([f"{title}. New ones:", *words])


def learning_rates(runs, predicted=None, on=EMULATED) -> tuple:
    """The learning rate of every epoch, a line a run.

    Args:
        runs: {label: [rate in epoch 0, 1, …]}.
        predicted: {epoch: rate}; marked.

    Raises:
        ValueError: no run has an epoch.
    """
    title = f"Learning rate over the epochs ({on})"
    marks = [(epoch, rate, f"predicted: {rate:g}") for epoch, rate in (predicted or {}).items()]
    figure = lines(title, _numbered(runs), "epoch", "learning rate", "{:.3g}".format, marks=marks, log=10, stairs=True)
    words = []
    for label, values in runs.items():
        changes = [f"{rate:g} from epoch {n}" for n, rate in enumerate(values) if n and rate != values[n - 1]]
        words.append(f"{clean(label)}: {values[0]:g} at first, {', '.join(changes) or 'and never another'}.")
    words += [f"Predicted: {rate:g} in epoch {epoch}." for epoch, rate in (predicted or {}).items()]
    return figure, " ".join([f"{title}, a line a run.", *words])


def scales(runs, on=EMULATED) -> tuple:
    """The loss scale of every step, a line a run; a cross is a step that was left out.

    Args:
        runs: {label: [(scale, whether the step was left out), …]}.

    Raises:
        ValueError: no run has a step.
    """
    title = f"Loss scale over the steps ({on})"
    marks = [(n, scale, "") for steps in runs.values() for n, (scale, left_out) in enumerate(steps) if left_out]
    series = _numbered({label: [scale for scale, _ in steps] for label, steps in runs.items()})
    notes = ["Cross: the gradients overflowed, and the step is left out."]
    figure = lines(title, series, "step", "scale", "{:,.0f}".format, marks=marks, log=2, notes=notes, stairs=True)
    words = [
        f"{clean(label)}: {steps[0][0]:,.0f} at first, {steps[-1][0]:,.0f} at last, "
        f"steps left out: {[n for n, (_, left_out) in enumerate(steps) if left_out]}."
        for label, steps in runs.items()
    ]
    return figure, " ".join([f"{title}, a line a run.", *words])


def _numbered(runs):
    return {label: dict(enumerate(values)) for label, values in runs.items()}
