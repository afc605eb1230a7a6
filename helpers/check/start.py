"""Checks of 00_start_here: whose samples are whose, and a first all_reduce."""

from ..launcher.language import local
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
            who = {"rank": rank, "world_size": world_size}
            yield problem and local(
                "For rank {rank} of {world_size} and {samples} samples {problem}.",
                **who,
                samples=samples,
                problem=problem,
            )
            piece = _piece(answer)
            if piece is None:
                yield local(
                    "For rank {rank} of {world_size} it returned {answer!r}, not (start, stop).", **who, answer=answer
                )
            pieces.append(piece)
        yield _trouble(pieces, samples, world_size)


@exercise("Every rank holds the same mean. Gradients are averaged over the ranks in just this way.")
def mean_of_squares(function):
    """`function()` gives, on every rank, the mean of rank² over all ranks; tried with 2 and 3 ranks.

    The ranks run on the CPU, whatever the machine has, so that there are always enough of them.
    """
    for world_size in (2, 3):
        answers, problem = on_ranks(call, world_size, function)
        yield problem and local("With {world_size} ranks, {problem}", world_size=world_size, problem=problem)
        yield _misreading([number(lambda answer=answer: answer)[0] for answer in answers], world_size)


def _piece(answer):
    """(start, stop) of a pair, a slice or a range, else None."""
    if isinstance(answer, (slice, range)) and answer.step in (None, 1):
        answer = (answer.start or 0, answer.stop)
    if isinstance(answer, (tuple, list)) and len(answer) == 2 and all(type(end) is int for end in answer):
        return tuple(answer)
    return None


def _trouble(pieces, samples, world_size):
    ranks = local("1 rank") if world_size == 1 else local("{world_size} ranks", world_size=world_size)
    case = local("With {ranks} and {samples} samples", ranks=ranks, samples=samples)
    owners = [0] * samples
    for rank, (start, stop) in enumerate(pieces):
        if not 0 <= start <= stop <= samples:
            return local(
                "{case}, rank {rank} gets {start} to {stop}; the samples have numbers 0 to {last}.",
                case=case, rank=rank, start=start, stop=stop, last=samples - 1,
            )  # fmt: skip
        for sample in range(start, stop):
            owners[sample] += 1
    if 0 in owners:
        return local(
            "{case}, {count} of them belong to nobody; the first is sample {first}. "
            "What becomes of the remainder of {samples} divided by {world_size}?",
            case=case, count=owners.count(0), first=owners.index(0), samples=samples, world_size=world_size,
        )  # fmt: skip
    if max(owners) > 1:
        twice = next(sample for sample, count in enumerate(owners) if count > 1)
        return local(
            "{case}, sample {sample} has {count} owners. In Python `stop` is not in the slice.",
            case=case, sample=twice, count=owners[twice],
        )  # fmt: skip
    sizes = [stop - start for start, stop in pieces]
    if max(sizes) - min(sizes) > 1:
        return local(
            "{case}, the pieces have {least} to {most} samples. All wait for the rank with the "
            "longest: spread the remainder, one sample a rank.",
            case=case, least=min(sizes), most=max(sizes),
        )  # fmt: skip
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
        return local("{case}, rank {rank} does not return one number. Is there a `return`?", case=case, rank=rank)
    if are(*[total / world_size] * world_size):
        return None
    if are(*squares):
        return local("{case}, each rank still has its own rank²: nothing has gone from one rank to another.", case=case)
    if are(*[square / world_size for square in squares]):
        return local(
            "{case}, each rank has divided its own number, but nothing was added up over the ranks.", case=case
        )
    if are(*[total] * world_size):
        return local(
            "{case}, everybody has {total}: that is the sum of rank². How many numbers went into it?",
            case=case, total=total,
        )  # fmt: skip
    if are(*[(world_size - 1) / 2] * world_size):
        return local("{case}, everybody has the mean of the ranks; the mean of their squares is asked for.", case=case)
    if are(*[total // world_size] * world_size):
        whole = total // world_size
        return local("{case}, everybody has {whole}: the digits after the point are lost.", case=case, whole=whole)
    if are(*[total / world_size**2] * world_size):
        return local(
            "{case}, everybody has {mean:g}: something has been divided by {world_size} twice.",
            case=case, mean=total / world_size**2, world_size=world_size,
        )  # fmt: skip
    got = ", ".join(f"{value:g}" for value in values)
    if max(values) - min(values) > 1e-5:
        return local(
            "{case}, the ranks end with different numbers: {got}. All need the result, and all divide.",
            case=case, got=got,
        )  # fmt: skip
    return local(
        "{case}, everybody has {number}; the {world_size} squares add up to {total}.",
        case=case, number=got.split(", ")[0], world_size=world_size, total=total,
    )  # fmt: skip
