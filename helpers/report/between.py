"""What can be said of several machines: each run beside the baseline of its own machine."""

from ..plots.style import clean, number, percent, times
from .causes import Said
from .pairs import ids
from .sentences import CLOSE, overlap

SAME = ("global_batch", "epochs", "steps", "lr", "precision", "compiler")  # of runs that are set side by side


def shared(sites) -> list:
    """Runs that several machines have made: [(label, what, [(site, row, record, ladder)])], one site after another.

    Of each machine the newest ladder of the same training counts; a ladder without a baseline has nothing to compare.
    """
    found = {}
    for site in sites if len(sites) > 1 else ():
        known = set()  # ladders that have nothing to add to a newer one
        for ladder in site.ladders:
            kind = frozenset((run["label"], id(run["config"])) for run in ladder.runs)
            if kind in known or not ladder.comparison:
                continue
            if all(row["images_per_s"] for row in ladder.rows()):
                known.add(kind)
            for row, record in zip(ladder.rows(), ladder.records, strict=True):
                settings = [record["config"].get(name) for name in SAME]
                key = (row["label"], ladder.what, str(settings))
                seen = found.setdefault(key, [])
                if row["images_per_s"] and site not in [other for other, *_ in seen]:
                    seen.append((site, row, record, ladder))
    return [(label, what, seen) for (label, what, _), seen in found.items() if len(seen) > 1]


def between(sites) -> list:
    """Sentences (Said) about the runs that several machines have made."""
    said = []
    for label, what, seen in shared(sites):
        name, is_baseline = clean(label, 60), all(record is ladder.records[0] for _, _, record, ladder in seen)
        if is_baseline:
            told = ", ".join(f"{number(row['images_per_s'])} images/s on {site.name}" for site, row, *_ in seen)
            text = f"{what}, {name}: {told}. All other speeds are told beside the baseline of their own machine."
        else:
            verdicts = [_verdict(row, ladder.rows()[0]) for _, row, _, ladder in seen]
            told = "; ".join(
                f"{verdict}{times(row['speed_up'])} {clean(ladder.records[0]['label'], 30)}'s speed on {site.name}"
                + (f", accuracy {percent(row['accuracy'])}" if row["accuracy"] is not None else "")
                for verdict, (site, row, _, ladder) in zip(verdicts, seen, strict=True)
            )
            text = f"{what}, {name}: {told}."
            text += " What pays on one machine does not on another." * (len({"faster, " == v for v in verdicts}) > 1)
        said.append(Said(text, tuple(run for *_, record, ladder in seen for run in ids(record, ladder.records[0]))))
    return said


def _verdict(row, base):
    if overlap(row, base) or abs(row["speed_up"] - 1) <= CLOSE:
        return "no difference beyond the noise, "
    return "faster, " if row["speed_up"] > 1 else "slower, "
