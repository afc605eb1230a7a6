"""Contenders that take turns: each round has a sample of all of them, and each round another begins.

A machine that gets slower does so for all alike, so what is compared is the ratio within a round.
"""

import statistics
import time

from helpers import measure


def order(names, number):
    """`names` as round `number` (from 0) takes them: everybody is first, last and after everybody else in turn.

    The order is rotated by the round's number, and turned around in every other lap of rotations.
    """
    names = list(names)
    lap, shift = divmod(number, len(names))
    turned = names[shift:] + names[:shift]
    return turned[::-1] if lap % 2 else turned


def measured(contenders, rounds, warm=1):
    """{name: seconds of `rounds` calls} of `contenders` {name: function}, called in turn after `warm` rounds."""
    samples = {name: [] for name in contenders}
    for number in range(warm + rounds):
        for name in order(contenders, number):
            began = time.perf_counter()
            contenders[name]()
            if number >= warm:
                samples[name].append(time.perf_counter() - began)
    return samples


def medians(play, casts):
    """{name: [casts] medians} of `play`, a function from a cast's number to {name: seconds by round}.

    Each cast has processes of its own: where memory comes to lie makes all steps of a process quicker or slower by
    some percent, which no number of rounds of the same processes averages out.
    """
    found = [play(number) for number in range(casts)]
    return {name: [statistics.median(cast[name]) for cast in found] for name in found[0]}


def ratio(above, below, factor=1.0):
    """measure.summary of factor · above / below, round by round; a list of samples each, in the same order."""
    return measure.summary(factor * a / b for a, b in zip(above, below, strict=True))
