"""How numbers, and texts from records, are written in tables, figures and sentences."""

import math

from ..launcher.language import marked

IN_LABELS = (  # parts of the names that helpers.config gives to runs; a reader's own names stay as they are
    marked("baseline"),
    marked("{n} hosts"),
    marked("channels last"),
    marked("offload"),
    marked("recompute {what}"),
    marked("{n} micro-batches"),
)


def number(value, digits=3) -> str:
    """A number to `digits` significant digits; "–" for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):  # the loss of a run that diverged
        return str(value)
    if abs(value) >= 1e9:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def times(factor) -> str:
    """A speed-up, such as "1.82×"."""
    if factor is None:
        return "–"
    if 0.1 <= factor < 10:
        return f"{factor:.2f}×"
    return f"{number(factor, 3 if factor >= 10 else 1)}×"  # a speed near 0 needs no digits


def interval(low, high) -> str:
    """The ends of a speed-up's interval, such as "1.78–1.90"; "" where there is none."""
    return "" if low is None else f"{times(low)}–{times(high)}".replace("×", "")


def percent(share) -> str:
    """A share of one as a percentage, such as "97.2%"."""
    return "–" if share is None else f"{share * 100:.1f}%"


def samples_of(rows) -> str:
    """What the samples of all rows are, such as "images"; "samples" if they are not the same."""
    found = {clean(row["samples_are"], 20) for row in rows}
    return found.pop() if len(found) == 1 else marked("samples")


def clean(text, width=None) -> str:
    """Text from a record on one line, without control characters, at most `width` characters long."""
    text = str(text)
    if not text.isprintable() or "  " in text or text != text.strip():
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if width is None or len(text) <= width else text[: width - 1].rstrip() + "…"


def mark(row) -> str:
    """What has to stand beside a run's name, because it stands in for something else; or ""."""
    if not row["note"] or row["status"] != "completed":
        return ""
    return marked("CPU threads") if row["strategy"] == "data_parallel" else marked("see note")


def name(row) -> str:
    """A run's name with its mark, such as "DataParallel ×2 (CPU threads)"."""
    label, known = clean(row["label"]), mark(row)
    if known == "CPU threads":
        return marked(f"{label} (CPU threads)")
    return marked(f"{label} (see note)") if known else label
