"""Checks of 00_start_here: whose samples are whose, and a first all_reduce."""

from helpers.launcher.language import local, marked

from .ranks import call, on_ranks
from .verdict import attempt, exercise, number


@exercise("Every sample has exactly one owner, and no rank has to wait for another's longer piece.")
def slices(function):
    """`function(rank, world_size, samples)` gives (start, stop), the rank's piece of all samples.

    Right if every sample has exactly one owner and the pieces differ by one sample at most.
    """
    for samples, world_size in ((1437, 1), (1437, 2), (1437, 4), (1437, 8), (8, 3), (2, 3)):
        pieces = []
        for rank in range(world_size):
            answer, problem = attempt(function, rank, world_size, samples)
            yield problem and f"For rank {rank} of {world_size} and {samples} samples {problem}."
            piece = _piece(answer)
            if piece is None:
                what = {"rank": rank, "world_size": world_size, "answer": answer}
                yield local("For rank {rank} of {world_size} it returned {answer!r}, not (start, stop).", **what)
            pieces.append(piece)
        yield _trouble(pieces, samples, world_size)


@exercise("Every rank holds the same mean. Gradients are averaged over the ranks in just this way.")
def mean_of_squares(function):
    """`function()` gives, on every rank, the mean of rank² over all ranks; tried with 2 and 3 ranks.

    The ranks run on the CPU, whatever the machine has, so that there are always enough of them.
    """
    for world_size in (2, 3):
        answers, problem = on_ranks(call, world_size, function)
        yield problem and f"With {world_size} ranks, {problem}"
        yield _misreading([number(lambda answer=answer: answer)[0] for answer in answers], world_size)


def _piece(answer):
    """(start, stop) of a pair, a slice or a range, else None."""
    if isinstance(answer, (slice, range)) and answer.step in (None, 1):
        answer = (answer.start or 0, answer.stop)
    if isinstance(answer, (tuple, list)) and len(answer) == 2 and all(type(end) is int for end in answer):
        return tuple(answer)
    return None


def _trouble(pieces, samples, world_size):
    ranks = marked("1 rank") if world_size == 1 else f"{world_size} ranks"
    case = f"With {ranks} and {samples} samples"
    owners = [0] * samples
    for rank, (start, stop) in enumerate(pieces):
        if not 0 <= start <= stop <= samples:
            last = samples - 1
            return f"{case}, rank {rank} gets {start} to {stop}; the samples have numbers 0 to {last}."
        for sample in range(start, stop):
            owners[sample] += 1
    if 0 in owners:
        count, first = owners.count(0), owners.index(0)
        return (
            f"{case}, {count} of them belong to nobody; the first is sample {first}. "
            f"What becomes of the remainder of {samples} divided by {world_size}?"
        )
    if max(owners) > 1:
        sample, count = next((sample, count) for sample, count in enumerate(owners) if count > 1)
        return f"{case}, sample {sample} has {count} owners. In Python `stop` is not in the slice."
    sizes = [stop - start for start, stop in pieces]
    least, most = min(sizes), max(sizes)
    if most - least > 1:
        return (
            f"{case}, the pieces have {least} to {most} samples. All wait for the rank with the longest: spread the "
            "remainder, one sample a rank."
        )
    return None


def _misreading(values, world_size):
    """What the ranks' answers tell of the mistake, or None when they are right."""
    squares = [rank**2 for rank in range(world_size)]
    total = sum(squares)
    case = local("With {ranks}", ranks=local("{world_size} ranks", world_size=world_size))

    def are(*expected):
        return all(abs(value - other) < 1e-5 for value, other in zip(values, expected, strict=True))

    if None in values:
        rank = values.index(None)
        return f"{case}, rank {rank} does not return one number. Is there a `return`?"
    if are(*[total / world_size] * world_size):
        return None
    if are(*squares):
        return f"{case}, each rank still has its own rank²: nothing has gone from one rank to another."
    if are(*[square / world_size for square in squares]):
        return f"{case}, each rank has divided its own number, but nothing was added up over the ranks."
    if are(*[total] * world_size):
        return f"{case}, everybody has {total}: that is the sum of rank². How many numbers went into it?"
    if are(*[(world_size - 1) / 2] * world_size):
        return f"{case}, everybody has the mean of the ranks; the mean of their squares is asked for."
    whole, mean = total // world_size, total / world_size**2
    if are(*[whole] * world_size):
        return f"{case}, everybody has {whole}: the digits after the point are lost."
    if are(*[mean] * world_size):
        return f"{case}, everybody has {mean:g}: something has been divided by {world_size} twice."
    number, got = f"{values[0]:g}", ", ".join(f"{value:g}" for value in values)
    if max(values) - min(values) > 1e-5:
        return f"{case}, the ranks end with different numbers: {got}. All need the result, and all divide."
    return f"{case}, everybody has {number}; the {world_size} squares add up to {total}."
