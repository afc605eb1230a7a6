"""Pictures of one step: a row for each rank and stream, and the memory over time."""

from ..language import N_, _
from ..plots import style
from ..plots.layout import inches_of, name_rows, sheet, ticks
from ..records.words import number, percent
from .kinds import BACKWARD, COMMUNICATION, FORWARD, GRADIENTS, INPUT, MEMORY, OPTIMIZER, WAIT

WIDE = 6.9  # inches of the time axis, about
ROWS = (INPUT, N_("main"), BACKWARD, COMMUNICATION)  # in this order; streams of a GPU come below
LOOKS = {  # of the phases: colour and hatch
    INPUT: (style.PURPLE, ".."),
    FORWARD: (style.SKY, ""),
    BACKWARD: (style.BLUE, ""),
    GRADIENTS: (style.YELLOW, "--"),
    OPTIMIZER: (style.GREEN, "\\\\"),
    COMMUNICATION: (style.ORANGE, "//"),
    WAIT: (style.GREY, "xx"),
}


def memory_looks() -> dict:
    """{kind of memory: (colour, hatch)}."""
    colours = style.BLUE, style.GREEN, style.YELLOW, style.PURPLE, style.SKY, style.ORANGE, style.GREY
    return dict(zip(MEMORY, zip(colours, ("", "\\\\", "--", "..", "||", "//", "xx"), strict=True), strict=True))


def size_in_words(count) -> str:
    """Bytes with a unit, such as "310 kB", to two digits at least."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            size = count / factor
            return f"{number(size, max(2, len(f'{size:.0f}')))} {unit}"
    return f"{count} B"


@style.readable()
def draw_step(timeline, step, title=None) -> tuple:
    """(figure, alt) of a step of a Timeline."""
    begin = min(ends[step] for ends in timeline.ends)
    end = max(ends[step + 1] for ends in timeline.ends)
    spans = [span for span in timeline.spans if span.end > begin and span.start < end]
    bars = [((span.rank, span.row, lane), span) for span, lane in zip(spans, _lanes(spans), strict=True)]
    order = {row: place for place, row in enumerate(dict.fromkeys((*ROWS, *sorted(span.row for span in spans))))}
    rows = sorted({place for place, _span in bars}, key=lambda place: (place[0], order[place[1]], place[2]))
    many = "s" if timeline.ranks > 1 else ""
    title = title or _("Inside one step of {ranks} rank{s}").format(ranks=timeline.ranks, s=many)
    key = [(_(kind), *look) for kind, look in LOOKS.items() if any(span.kind == kind for span in spans)]
    about = _("Step {step} of {steps} profiled ones.").format(step=step + 1, steps=timeline.steps)
    notes = [f"{about} {_overlap(timeline)}", timeline.conditions]
    with sheet(title, 0.3 * len(rows), key=key, notes=notes) as (figure, [axes]):
        words = _("rank {rank}, {row}")
        name_rows(axes, ["" if lane else words.format(rank=rank, row=_(row)) for rank, row, lane in rows])
        axes.set(xlim=(0, 1e3 * (end - begin)), xlabel=_("ms from the start of the step"))
        ticks(axes.xaxis, "{:,g}", 10)
        for place, span in bars:
            _bar(axes, rows.index(place), span, begin, end)
        for y, (above, below) in enumerate(zip(rows, rows[1:], strict=False)):
            if above[0] != below[0]:
                axes.axhline(y + 0.5, color=style.SOFT, linewidth=0.8)
    first = timeline.rows()[0]
    parts = _(", ").join(f"{_(name)} {number(first[f'{name} (ms)'], 2)} ms" for name in (FORWARD, BACKWARD, OPTIMIZER))
    alt = _("Timeline of a step of {long} ms on {ranks} rank(s); on rank 0, medians: {parts}.")
    alt = alt.format(long=number(1e3 * (end - begin)), ranks=timeline.ranks, parts=parts)
    return figure, f"{alt} {_overlap(timeline)}"


def _lanes(spans):
    """A number for each span: of two collectives that overlap the later one is drawn below the other."""
    until = {}
    for span in spans:  # in the order of their starts on each rank
        lane = int(span.kind == COMMUNICATION and until.get(span.rank, 0) > span.start)
        if span.kind == COMMUNICATION and not lane:
            until[span.rank] = span.end
        yield lane


def _bar(axes, y, span, begin, end):
    colour, hatch = LOOKS[span.kind]
    left, right = max(span.start, begin), min(span.end, end)
    look = {"color": colour, "hatch": hatch, "edgecolor": style.INK, "linewidth": 0.5}
    axes.barh(y, 1e3 * (right - left), 0.72, 1e3 * (left - begin), **look)
    words = []
    if span.kind == COMMUNICATION:
        name = f"{span.name} {span.number}"
        words = [f"{name}, {size_in_words(span.bytes)}", name, str(span.number)]
    elif span.kind == WAIT:
        words = [_("for {what}").format(what=span.name)]
    room = WIDE * (right - left) / (end - begin) - 0.1
    text = next((text for text in words if inches_of(text, 9, "normal") < room), "")
    box = {"facecolor": colour, "edgecolor": "none", "pad": 0.6}
    middle = 5e2 * (left + right - 2 * begin)
    if text:
        axes.text(middle, y, text, ha="center", va="center_baseline", size=9, color=style.TAG["color"], bbox=box)


def _overlap(timeline):
    """The overlap in a sentence."""
    overlap = timeline.overlap()
    if not overlap:
        return _("There is no communication.")
    shares = {key: percent(overlap[key]) for key in ("median", "low", "high")}
    words = _("Hidden behind computing: {median} of the communication (95% interval of {n} steps {low} to {high}).")
    return words.format(n=overlap["n"], **shares)


@style.readable()
def draw_memory(memory, title=None) -> tuple:
    """(figure, alt) of a Memory: the bytes in use over the step, by kind."""
    looks, last, (when, at_peak) = memory_looks(), 1e3 * memory.curve[-1][0], memory.peak
    kinds = [kind for kind, most in memory.most().items() if most]
    words = _("peak {size} in {phase}")
    words = words.format(size=size_in_words(memory.peak_bytes), phase=_(memory.peak_phase))
    parts = _(", ").join(f"{_(kind)} {size_in_words(size)}" for kind, size in at_peak.items() if size)
    parts = _("In use at the peak: {parts}.").format(parts=parts)
    key = [(_(kind), *looks[kind]) for kind in kinds]
    title = title or _("What fills the memory in a step")
    with sheet(title, 2.6, key=key, notes=[parts, memory.conditions]) as (figure, [axes]):
        series = [[1e-6 * point[kind] for _when, point in memory.curve] for kind in kinds]
        layers = axes.stackplot([1e3 * at for at, _point in memory.curve], series, step="post")
        for layer, kind in zip(layers, kinds, strict=True):
            colour, hatch = looks[kind]
            layer.set(facecolor=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.4)
        x, y = 1e3 * when, 1e-6 * memory.peak_bytes
        axes.plot(x, y, "v", color=style.RED, markersize=8, clip_on=False, zorder=5)
        begins = {name: 1e3 * begin for name, begin, _end in memory.phases[::-1] if name in (FORWARD, BACKWARD)}
        wide = last * inches_of(words, 10, "normal") / WIDE
        left = x + wide > 0.95 * last or any(x < begin < x + wide for begin in begins.values())
        place = {"textcoords": "offset points", "va": "bottom", "ha": "right" if left else "left"}
        axes.annotate(words, (x, y), (-10 if left else 10, 3), color=style.RED, **place)
        for name, begin in begins.items():
            axes.axvline(begin, color=style.SOFT, linewidth=0.8)
            later = min((other for other in begins.values() if other > begin), default=last)
            if inches_of(f" {_(name)} ", 9, "normal") < WIDE * (later - begin) / last:
                axes.text(begin, 1.22 * y, f" {_(name)}", color=style.SOFT, va="center", size=9)
        axes.set(xlim=(0, last), ylim=(0, 1.28 * y), ylabel="MB", xlabel=_("ms from the start of the step"))
        ticks(axes.xaxis, "{:,g}", 10)
    alt = _("Memory over one step, stacked by what it holds: {words}.").format(words=words)
    return figure, f"{alt} {parts}"
