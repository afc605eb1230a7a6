"""The picture of one step: a row for each rank and stream."""

from ..launcher.language import listed, local, marked
from ..plots import style
from ..plots.layout import inches_of, name_rows, sheet, ticks
from ..records.words import number, percent
from .spans import BACKWARD, COMMUNICATION, FORWARD, GRADIENTS, INPUT, OPTIMIZER, WAIT

ROOM = 6.9  # inches of the time axis, about
ORDER = ("input", marked("main"), "backward", "communication")


def looks() -> dict:
    """{kind: (colour, hatch)}; asked for while drawing, as the colours depend on the ground."""
    return {
        INPUT: (style.PURPLE, ".."),
        FORWARD: (style.SKY, ""),
        BACKWARD: (style.BLUE, ""),
        GRADIENTS: (style.YELLOW, "--"),
        OPTIMIZER: (style.GREEN, "\\\\"),
        COMMUNICATION: (style.ORANGE, "//"),
        WAIT: (style.GREY, "xx"),
    }


def draw(timeline, step, title=None) -> tuple:
    """(figure, alt) of a step."""
    begin = min(ends[step] for ends in timeline.ends)
    end = max(ends[step + 1] for ends in timeline.ends)
    shown = [span for span in timeline.spans if span.end > begin and span.start < end]
    lanes = _lanes(shown)
    found = {(span.rank, span.row, lanes.get(id(span), 0)) for span in shown}
    order = {row: place for place, row in enumerate((*ORDER, *sorted({row for _, row, _ in found} - {*ORDER})))}
    rows = sorted(found, key=lambda place: (place[0], order[place[1]], place[2]))
    kinds = [kind for kind in looks() if any(span.kind == kind for span in shown)]
    title = title or f"Inside one step of {timeline.ranks} rank{'s' * (timeline.ranks > 1)}"
    key = [(kind, *looks()[kind]) for kind in kinds]
    notes = [" ".join([f"Step {step + 1} of {timeline.steps} profiled ones.", said(timeline)]), timeline.conditions]
    with sheet(title, 0.3 * len(rows), key=key, notes=notes) as (figure, [axes]):
        name_rows(axes, ["" if lane else f"rank {rank}, {row}" for rank, row, lane in rows])
        axes.set(xlim=(0, 1e3 * (end - begin)), xlabel=marked("ms from the start of the step"))
        ticks(axes.xaxis, "{:,g}", 10)
        for place, (rank, row, lane) in enumerate(rows):
            for span in shown:
                if (span.rank, span.row, lanes.get(id(span), 0)) == (rank, row, lane):
                    _bar(axes, place, span, begin, end)
            if place and rank != rows[place - 1][0]:
                axes.axhline(place - 0.5, color=style.SOFT, linewidth=0.8)
    return figure, alt(timeline, step, end - begin)


def _lanes(spans):
    """{id of a collective: 0 or 1}: two that overlap are on rows of their own, so that both can be seen."""
    lanes, until = {}, {}
    for span in sorted((span for span in spans if span.kind == COMMUNICATION), key=lambda span: span.start):
        lanes[id(span)] = lane = int(until.get((span.rank, 0), 0) > span.start)
        until[span.rank, lane] = span.end
    return lanes


def _bar(axes, place, span, begin, end):
    colour, hatch = looks()[span.kind]
    left, right = max(span.start, begin), min(span.end, end)
    axes.barh(
        place,
        1e3 * (right - left),
        0.72,
        1e3 * (left - begin),
        color=colour,
        hatch=hatch,
        edgecolor=style.INK,
        linewidth=0.5,
    )
    if span.kind not in (COMMUNICATION, WAIT):
        return
    words = [f"{span.name} {span.number}, {size(span.bytes)}", f"{span.name} {span.number}", str(span.number)]
    if span.kind == WAIT:
        words = [style.said("for {what}", what=span.name)]
    room = ROOM * (right - left) / (end - begin) - 0.1
    text = next((text for text in words if inches_of(text, 9, "normal") < room), None)
    if text:
        axes.text(
            5e2 * (left + right - 2 * begin),
            place,
            text,
            ha="center",
            va="center_baseline",
            size=9,
            color=style.TAG["color"],
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6},
        )


def size(count) -> str:
    """Bytes in words."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{number(count / factor, 2)} {unit}"
    return f"{count} B"


def said(timeline) -> str:
    """The overlap in a sentence."""
    overlap = timeline.overlap()
    if not overlap:
        return marked("There is no communication.")
    return (
        f"Hidden behind computing: {percent(overlap['median'])} of the communication "
        f"(middle half of {overlap['n']} steps {percent(overlap['q1'])} to {percent(overlap['q3'])})."
    )


def alt(timeline, step, seconds) -> str:
    """The figure in words."""
    row = timeline.rows()[0]
    parts = listed(f"{local(name)} {number(row[f'{name} (ms)'], 2)} ms" for name in (FORWARD, BACKWARD, OPTIMIZER))
    long = number(1e3 * seconds)
    about = f"Timeline of a step of {long} ms on {timeline.ranks} rank(s); on rank 0, medians: {parts}."
    return " ".join([about, said(timeline)])


def memory_looks() -> dict:
    """{kind of memory: (colour, hatch)}."""
    from .memory import KINDS

    return dict(
        zip(
            KINDS,
            (
                (style.BLUE, ""),
                (style.GREEN, "\\\\"),
                (style.YELLOW, "--"),
                (style.PURPLE, ".."),
                (style.SKY, "||"),
                (style.ORANGE, "//"),
                (style.GREY, "xx"),
            ),
            strict=True,
        )
    )


def draw_memory(memory, title=None) -> tuple:
    """(figure, alt) of the memory of a step over time, by kind."""
    looks = memory_looks()
    kinds = [kind for kind, most in memory.most().items() if most]
    times = [1e3 * when for when, _ in memory.curve]
    when, _ = memory.peak
    words = style.said("peak {size} in {phase}", size=size(memory.peak_bytes), phase=memory.peak_phase)
    title = title or marked("What fills the memory in a step")
    key = [(kind, *looks[kind]) for kind in kinds]
    with sheet(title, 2.6, key=key, notes=[memory_said(memory), memory.conditions]) as (figure, [axes]):
        below = [0.0] * len(times)
        for kind in kinds:
            above = [low + 1e-6 * point[kind] for low, (_, point) in zip(below, memory.curve, strict=True)]
            colour, hatch = looks[kind]
            axes.fill_between(
                times, below, above, step="post", facecolor=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.4
            )
            below = above
        peak = 1e-6 * memory.peak_bytes
        axes.plot(1e3 * when, peak, "v", color=style.RED, markersize=8, clip_on=False, zorder=5)
        begins = {
            name: 1e3 * min((start for kind, start, _ in memory.phases if kind == name), default=0)
            for name in (FORWARD, BACKWARD)
        }
        wide = times[-1] * inches_of(words, 10, "normal") / ROOM + 0.02 * times[-1]
        left = 1e3 * when + wide < times[-1] and not any(0 < x - 1e3 * when < wide for x in begins.values())
        axes.annotate(
            words,
            (1e3 * when, peak),
            (10 if left else -10, 3),
            textcoords="offset points",
            va="bottom",
            ha="left" if left else "right",
            color=style.RED,
        )
        for name in (FORWARD, BACKWARD):
            begin = begins[name]
            end = 1e3 * max((end for kind, _, end in memory.phases if kind == name), default=0)
            axes.axvline(begin, color=style.SOFT, linewidth=0.8)
            if inches_of(f" {style.said(name)} ", 9, "normal") < ROOM * (end - begin) / times[-1]:
                axes.text(begin, 1.22 * peak, f" {style.said(name)}", color=style.SOFT, va="center", size=9)
        axes.set(xlim=(0, times[-1]), ylim=(0, 1.28 * peak), ylabel="MB", xlabel="ms from the start of the step")
        ticks(axes.xaxis, "{:,g}", 10)
    return figure, " ".join([f"Memory over one step, stacked by what it holds: {words}.", memory_said(memory)])


def memory_said(memory) -> str:
    """What is in use at the peak, in a sentence."""
    parts = [(row["kind"], size(row["bytes at the peak"])) for row in memory.rows() if row["bytes at the peak"]]
    parts = style.said(", ").join(f"{style.said(kind)} {most}" for kind, most in parts)
    return f"In use at the peak: {parts}."
