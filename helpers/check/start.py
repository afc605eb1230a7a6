"""Checks of 00_start_here: whose samples are whose, and a first all_reduce."""

from ..launcher.launch import RankError, RankTimeout, launch
from .verdict import attempt, not_yet, right

PATIENCE = 20  # s; a launch takes a tenth of that where ranks are spawned, and far less where they are forked

WAITING = "A collective waits until every rank has called it: does one of them leave it out?"


def slices(function) -> bool:
    """`function(rank, world_size, samples)` gives (start, stop), the rank's piece of all samples.

    Right if every sample has exactly one owner and the pieces differ by one sample at most.
    """
    for samples, world_size in ((1437, 1), (1437, 2), (1437, 4), (1437, 8), (8, 3), (2, 3)):
        pieces = []
        for rank in range(world_size):
            answer, problem = attempt(function, rank, world_size, samples)
            if problem:
                return not_yet(f"For rank {rank} of {world_size} and {samples} samples {problem}.")
            piece = _piece(answer)
            if piece is None:
                return not_yet(f"For rank {rank} of {world_size} it returned {answer!r}, not (start, stop).")
            pieces.append(piece)
        hint = _trouble(pieces, samples, world_size)
        if hint:
            return not_yet(hint)
    return right("Every sample has exactly one owner, and no rank has to wait for another's longer piece.")


def mean_of_squares(function) -> bool:
    """`function()` gives, on every rank, the mean of rank² over all ranks; tried with 2 and 3 ranks.

    The ranks run on the CPU, whatever the machine has, so that there are always enough of them.
    """
    for world_size in (2, 3):
        try:
            answers = launch(function, world_size, timeout=PATIENCE, threads=1, env={"HELPERS_DEVICE": "cpu"})
        except RankTimeout:
            return not_yet(f"With {world_size} ranks the run was stopped after {PATIENCE} seconds. {WAITING}")
        except RankError as error:
            return not_yet(f"With {world_size} ranks, {_failure(error)}")
        except (TypeError, ValueError) as error:
            return not_yet(f"It could not be launched: {error}")
        hint = _misreading([_number(answer) for answer in answers], world_size)
        if hint:
            return not_yet(hint)
    return right("Every rank holds the same mean. Gradients are averaged over the ranks in just this way.")


def _piece(answer):
    """(start, stop) of a pair, a slice or a range, else None."""
    if isinstance(answer, (slice, range)) and answer.step in (None, 1):
        answer = (answer.start or 0, answer.stop)
    if isinstance(answer, (tuple, list)) and len(answer) == 2 and all(type(end) is int for end in answer):
        return tuple(answer)
    return None


def _trouble(pieces, samples, world_size):
    case = f"With {world_size} rank{'s' * (world_size > 1)} and {samples} samples"
    owners = [0] * samples
    for rank, (start, stop) in enumerate(pieces):
        if not 0 <= start <= stop <= samples:
            return f"{case}, rank {rank} gets {start} to {stop}; the samples have numbers 0 to {samples - 1}."
        for sample in range(start, stop):
            owners[sample] += 1
    if 0 in owners:
        return (
            f"{case}, {owners.count(0)} of them belong to nobody; the first is sample {owners.index(0)}. "
            f"What becomes of the remainder of {samples} divided by {world_size}?"
        )
    if max(owners) > 1:
        twice = next(sample for sample, count in enumerate(owners) if count > 1)
        return f"{case}, sample {twice} has {owners[twice]} owners. In Python `stop` is not in the slice."
    sizes = [stop - start for start, stop in pieces]
    if max(sizes) - min(sizes) > 1:
        return (
            f"{case}, the pieces have {min(sizes)} to {max(sizes)} samples. All wait for the rank with the "
            "longest: spread the remainder, one sample a rank."
        )
    return None


def _failure(error):
    if "waiting for a peer that had gone" in str(error):
        return f"rank {error.rank} waited for one that had already returned. {WAITING}"
    why = error.traceback.strip().splitlines()[-1:] or ["it was killed"]
    return f"rank {error.rank} failed: {why[0]}"


def _number(answer):
    """The answer as a number, from a tensor of one element too, or None."""
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):
        return None


def _misreading(values, world_size):
    """What the ranks' answers tell of the mistake, or None when they are right."""
    squares = [rank**2 for rank in range(world_size)]
    total = sum(squares)
    case = f"With {world_size} ranks"

    def are(*expected):
        return all(abs(value - other) < 1e-5 for value, other in zip(values, expected, strict=True))

    if None in values:
        return f"{case}, rank {values.index(None)} does not return one number. Is there a `return`?"
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
    if are(*[total // world_size] * world_size):
        return f"{case}, everybody has {total // world_size}: the digits after the point are lost."
    if are(*[total / world_size**2] * world_size):
        return f"{case}, everybody has {total / world_size**2:g}: something has been divided by {world_size} twice."
    got = ", ".join(f"{value:g}" for value in values)
    if max(values) - min(values) > 1e-5:
        return f"{case}, the ranks end with different numbers: {got}. All need the result, and all divide."
    return f"{case}, everybody has {got.split(', ')[0]}; the {world_size} squares add up to {total}."
