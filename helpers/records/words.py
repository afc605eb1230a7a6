"""How numbers, and texts from records, are written in tables, figures and sentences."""

import math

from ..language import N_, _

# The parts of names that helpers.config gives to runs; a reader's own names stay as they are.
IN_LABELS = (N_("baseline"), N_("channels last"), N_("offload"))
SAMPLES = (N_("images"), N_("sequences"), N_("samples"))


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
    return f"{factor:.2f}×" if 0.1 <= factor < 10 else f"{number(factor, 3 if factor >= 10 else 1)}×"


def percent(share) -> str:
    """A share of one as a percentage, such as "97.2%"."""
    return "–" if share is None else f"{share * 100:.1f}%"


def samples_of(rows) -> str:
    """What the samples of all rows are, such as "images"; "samples" if they are not the same."""
    found = {clean(row["samples_are"], 20) for row in rows}
    return _(found.pop() if len(found) == 1 else "samples")


def clean(text, width=None) -> str:
    """Text from a record on one line, without control characters, at most `width` characters long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return text if width is None or len(text) <= width else text[: width - 1].rstrip() + "…"


def mark(row) -> str:
    """What has to stand beside a run's name, because it stands in for something else; or ""."""
    if not row["note"] or row["status"] != "completed":
        return ""
    return _("CPU threads") if row["strategy"] == "data_parallel" else _("see note")


def name(row) -> str:
    """A run's name with its mark, such as "DataParallel ×2 (CPU threads)"."""
    label = " · ".join(_(part) for part in clean(row["label"]).split(" · "))
    return f"{label} ({mark(row)})" if mark(row) else label
