"""Growth: launches of 1 to 16 ranks, sets of 10,000 to 1,000,000 images."""

from helpers.data.mapped import FROM

from . import growth_launch, growth_sets

UNIT = "s"
OWN = "own memory / size of the largest set"
TARGETS = {OWN: ("<=", 0.1)}


def run():
    rows, ratios = {}, {}
    for part in (growth_launch, growth_sets):
        found = part.run()
        rows, ratios = {**rows, **found[0]}, {**ratios, **found[1]}
    return rows, ratios


def reasons(rows, ratios):
    """What a missed target is due to."""
    return {OWN: "order and augmentation of an epoch are drawn for all images at its start"}


def notes(rows, ratios):
    """What the rows mean."""
    return [
        "Memory of launches is the sum of PSS over ranks, fork server and the launching process. Files were in the "
        f"system's memory when they were read. Sets of {FROM / 1e6:.0f} MB and more are mapped.",
    ]
