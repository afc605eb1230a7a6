"""Checks of 01_baseline: a typical step, images per second, and accuracy over batches of unequal size."""

from statistics import mean, median

from .verdict import exercise, number

# In the order of measuring: slow first steps, and one that was disturbed.
ODD = [0.9, 0.4, 0.12, 0.1, 0.8, 0.11, 0.13]
EVEN = [0.9, 0.8, 0.12, 0.1, 0.7, 0.16]


@exercise("One disturbed step cannot move it, and the first steps have no say in it.")
def median_step(function):
    """`function(times, warmup)` gives the median of `times` (a list, seconds) without its first `warmup`."""
    for times, warmup in ((ODD, 2), (EVEN, 2), (ODD, 0), ([0.3, 0.2], 1)):
        given = list(times)
        value, problem = number(function, given, warmup)
        yield f"For {times} with {warmup} steps of warm-up", problem
        if given != times:
            yield "It changed the list that it was given, and whoever reads it next is misled."
        kept = times[warmup:]
        if not _same(value, median(kept)):
            yield _hint_median(value, times, kept, warmup)


@exercise("All images divided by all seconds: a slow step counts for as long as it lasted.")
def images_per_second(function):
    """`function(step_times, batch)` gives the images of all steps per second of all steps together."""
    for times, batch in (([0.1, 0.1, 0.4], 60), ([0.5], 64), ([0.2, 0.05, 0.1, 0.25], 32)):
        value, problem = number(function, list(times), batch)
        yield f"For steps of {times} s with {batch} images each", problem
        if not _same(value, batch * len(times) / sum(times)):
            yield _hint_rate(value, times, batch)


@exercise("Every test image counts once, whatever batch it was in.")
def accuracy(function):
    """`function(batches)` gives the share of right answers; `batches` has (right, size) of each batch."""
    cases = ([(240, 256), (52, 104)], [(3, 4), (4, 4)], [(9, 10), (0, 0), (0, 1)], [(0, 5), (5, 15), (2, 2)])
    for batches in cases:
        value, problem = number(function, list(batches))
        empty = ". A rank may be left with an empty batch" if (0, 0) in batches else ""
        yield f"With the batches {batches}", problem and f"{problem}{empty}"
        if not _same(value, sum(r for r, _ in batches) / sum(n for _, n in batches)):
            yield _hint_accuracy(value, batches)


def _same(value, other):
    return abs(value - other) <= 1e-6 * abs(other) + 1e-9


def _hint_median(value, times, kept, warmup):
    case = f"For {times} with {warmup} steps of warm-up it gives {value:.4g}."
    ranked, middle = sorted(kept), len(kept) // 2
    even = len(kept) % 2 == 0
    if _same(value, mean(times)):
        return f"{case} That is the mean of all steps: the first are in it, and one slow step moves it."
    if _same(value, mean(kept)):
        return f"{case} The warm-up is left out, but this is a mean: one disturbed step moves it."
    if _same(value, median(times)):
        return f"{case} That is the median of all steps: the first {warmup} must not count."
    if even and any(_same(value, ranked[at]) for at in (middle - 1, middle)):
        return f"{case} An even number of steps has two in the middle; the median is halfway between."
    if _same(value, kept[middle]) or (even and _same(value, (kept[middle - 1] + kept[middle]) / 2)):
        return f"{case} It stands in the middle of the list, which is in order of time. Sort by size first."
    return f"{case} Leave out the first {warmup}, sort the rest, and take the one in the middle."


def _hint_rate(value, times, batch):
    case = f"For steps of {times} s with {batch} images each it gives {value:.4g}."
    if _same(value, mean(batch / t for t in times)):
        return (
            f"{case} That is the mean of the steps' rates. Half an hour at 60 km/h and two hours at 15 km/h "
            "are not 37.5 km/h on average: what lasts longer counts for more."
        )
    if _same(value, batch / median(times)):
        return f"{case} That is the rate of the typical step. All steps are asked for, the slow ones too."
    if _same(value, len(times) / sum(times)):
        return f"{case} Those are steps per second. How many images are in a step?"
    if _same(value, batch / sum(times)):
        return f"{case} The time is that of {len(times)} steps, the images are those of one."
    if _same(value, sum(times) / (batch * len(times))):
        return f"{case} Those are seconds per image: turn it over."
    return f"{case} How many images were there in all, and how many seconds?"


def _hint_accuracy(value, batches):
    shares = [r / n for r, n in batches if n]
    hits, images = (sum(column) for column in zip(*batches, strict=True))
    case = f"For {batches} it gives {value:.4g}."
    if _same(value, mean(shares)) or _same(value, sum(shares) / len(batches)):
        return f"{case} That is the mean of the batches' accuracies: a small batch weighs as much as a large."
    if _same(value, 100 * hits / images):
        return f"{case} The number is right as a percentage; give the share, between 0 and 1."
    if _same(value, hits):
        return f"{case} Those are the right answers; divide them by the number of images."
    if _same(value, hits // images):
        return f"{case} A whole-number division loses the digits after the point."
    return f"{case} There are {hits} right answers among {images} images."
