"""Growth: launches of 1 to 16 ranks, reports of 10 to 100,000 records, sets of 10,000 to 1,000,000 images."""

from helpers.data.store import LARGE

from . import growth_launch, growth_reports, growth_sets

UNIT = "s"
REPORT, OWN = "report of 100,000", "own memory / size of the largest set"
TARGETS = {REPORT: ("<=", 5), OWN: ("<=", 0.1)}


def run():
    rows, ratios = {}, {}
    for part in (growth_launch, growth_reports, growth_sets):
        found = part.run()
        rows, ratios = {**rows, **found[0]}, {**ratios, **found[1]}
    return rows, ratios


def reasons(rows, ratios):
    """Which part of the time is not the records'."""
    small = rows["report of 10"]["median"]
    return {
        REPORT: f"a report of 10 records takes {small:.1f} s; the rest is looking at each file and reading the index",
        OWN: "order and augmentation of an epoch are drawn for all images at its start",
    }


def notes(rows, ratios):
    """What the rows mean."""
    first = ratios["report of 100,000, the first ever"]["median"]
    return [
        "A report is the whole command until its page is written, with the index of what was read before. The first of "
        f"100,000 records takes {first:.0f} s, since each file is read once, by one process a core; stopped, it goes "
        "on where it was. Of more than 2,000 the page has the newest comparisons; CSV and JSON, which need every file, "
        "are written when asked for.",
        "Memory of launches is the sum of PSS over ranks, fork server and the launching process. Files were in the "
        f"system's memory when they were read. Sets of {LARGE / 1e6:.0f} MB and more are mapped.",
    ]
