"""Checks of 00_start_here: whose samples are whose, and a first all_reduce."""

from .ranks import call, on_ranks
from .verdict import attempt, exercise, number, same


@exercise
def slices(function, say):
    """`function(rank, world_size, samples)` gives (start, stop), the rank's piece of all samples.

    Right if every sample has exactly one owner and the pieces differ by one sample at most.
    """
    for samples, n in ((1437, 1), (1437, 2), (1437, 4), (1437, 8), (8, 3), (2, 3)):
        case, pieces = say("case", n=n, samples=samples), []
        for rank in range(n):
            answer, problem = attempt(function, rank, n, samples)
            yield case, problem and say("raised", rank=rank, problem=problem)
            pieces.append(_piece(answer))
            yield case, pieces[-1] is None and say("no pair", rank=rank, answer=answer)
            start, stop = pieces[-1]
            inside = 0 <= start <= stop <= samples
            yield case, not inside and say("outside", rank=rank, start=start, stop=stop, last=samples - 1)
        owners = [sum(start <= sample < stop for start, stop in pieces) for sample in range(samples)]
        odd = next((sample for sample in range(samples) if owners[sample] != 1), None)
        yield case, 0 in owners and say("nobody", count=owners.count(0), first=owners.index(0), samples=samples, n=n)
        yield case, odd is not None and say("shared", sample=odd, owners=owners[odd])
        sizes = [stop - start for start, stop in pieces]
        yield case, max(sizes) - min(sizes) > 1 and say("uneven", least=min(sizes), most=max(sizes))


def _piece(answer):
    """(start, stop) of a pair, a slice or a range, else None."""
    if isinstance(answer, (slice, range)) and answer.step in (None, 1):
        answer = (answer.start or 0, answer.stop)
    pair = isinstance(answer, (tuple, list)) and len(answer) == 2 and all(type(end) is int for end in answer)
    return tuple(answer) if pair else None


@exercise
def mean_of_squares(function, say):
    """`function()` gives, on every rank, the mean of rank² over all ranks; tried with 2 and 3 ranks.

    The ranks run on the CPU, whatever the machine has, so that there are always enough of them.
    """
    for n in (2, 3):
        answers, problem = on_ranks(call, n, function)
        case = say("case", n=n)
        yield case, problem
        values = [number(lambda answer=answer: answer)[0] for answer in answers]
        yield case, None in values and say("no number", rank=values.index(None))
        values = [round(value, 5) for value in values]  # fp32
        squares = [rank**2 for rank in range(n)]
        total = sum(squares)
        if same(values, [round(total / n, 5)] * n):
            continue
        guesses = {
            "own": squares,
            "divided": [round(square / n, 5) for square in squares],
            "sum": [total] * n,
            "mean of ranks": [(n - 1) / 2] * n,
            "whole": [total // n] * n,
            "twice": [round(total / n**2, 5)] * n,
        }
        otherwise = "different" if len(set(values)) > 1 else "otherwise"
        key = next((key for key, guess in guesses.items() if same(values, guess)), otherwise)
        yield case, say(key, first=values[0], got=", ".join(f"{value:g}" for value in values), n=n, total=total)
