"""Checks of 11_when_it_breaks: find where ranks part, stop together, notice drift, save safely, share the cores.

Three of them run the reader's function on real ranks, on the CPU and so on any machine.
"""

import io
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.launcher.group import distributed

from .ranks import on_ranks
from .verdict import attempt, exercise, formula

SOON = 10  # s that a collective may take in these checks: a right answer needs a hundredth of one

DIARIES = (  # (the collectives of each rank, the first position at which they part)
    ((("broadcast", "all_reduce"), ("broadcast", "all_reduce")), None),
    ((("broadcast", "all_reduce", "gather", "barrier"), ("broadcast", "barrier", "gather", "all_reduce")), 1),
    ((("all_reduce", "barrier"), ("all_reduce", "barrier"), ("barrier", "all_reduce")), 0),
    ((("all_reduce",) * 3, ("all_reduce",) * 2), 2),
    ((("all_reduce",) * 2, ("all_reduce",) * 4, ("all_reduce",) * 4), 2),
    (((), ("all_reduce",)), 0),
    (((), ()), None),
)


@exercise
def parted(answer, say):
    """`answer(diaries)`: where the ranks' lists of collectives part first, counted from 0, or None."""
    for diaries, wanted in DIARIES:
        got, problem = attempt(answer, [list(diary) for diary in diaries])
        told = " | ".join(" ".join(diary) or say("nothing") for diary in diaries)
        case = say("case", n=len(diaries), told=told)
        yield case, problem
        if got == wanted and not isinstance(got, bool):
            continue
        yield case, wanted is None and say("never", got=got)
        if got is None:
            yield case, wanted >= min(map(len, diaries)) and say("ended")
            yield case, say("all" if diaries[0] == diaries[1] else "differs")
        later = isinstance(got, int) and got > wanted
        yield case, say("from one" if got == wanted + 1 else "later" if later else "otherwise", got=got)


@exercise
def everybody(answer, say):
    """`answer(has_batch)`, called by all ranks before each step: True while every rank still has a batch."""
    for cases in (((3, 1), (2, 2)), ((2, 4, 1),)):  # of each launch: how many batches each rank has
        found, problem = on_ranks(_try_everybody, len(cases[0]), answer, cases)
        yield say("case", batches=cases[0]), problem
        for batches, *said in zip(cases, *found, strict=True):
            case, steps = say("case", batches=", ".join(map(str, batches))), range(max(batches) + 1)
            if said != [[step < min(batches) for step in steps]] * len(batches):
                yield case, any(None in of_rank for of_rank in said) and say("none")
                yield case, said == [[step < of_rank for step in steps] for of_rank in batches] and say("own")
                yield case, said == [[step < max(batches) for step in steps]] * len(batches) and say("any")
                yield case, any(of_rank != said[0] for of_rank in said) and say("disagree")
                yield case, say("otherwise" if any(said[0]) else "never", found=said[0], least=min(batches))


def _try_everybody(answer, cases):
    """On a rank: for each case what the answer said before each step, until nobody has a batch any more."""
    with distributed("cpu", timeout=SOON) as world:
        said = [[answer(step < of[world.rank]) for step in range(max(of) + 1)] for of in cases]
        dist.barrier()  # nobody leaves while another may still wait for it
        return [[None if one is None else bool(one) for one in case] for case in said]


CHANGES = {  # by the number of ranks: (what is changed, on which rank, its last weights)
    2: (("equal", None, None), ("nudged", 1, [1.0, 2.001, 4.0]), ("swapped", 1, [1.0, 4.0, 2.0])),
    3: (("nudged", 2, [1.0, 2.001, 4.0]),),
}


@exercise
def alike(answer, say):
    """`answer(parameters)`, called on every rank: True on all if all hold equal weights, else False on all."""
    for ranks, changes in CHANGES.items():
        found, problem = on_ranks(_try_alike, ranks, answer, changes)
        yield problem
        for (change, odd, _), *of_ranks in zip(changes, *found, strict=True):
            case, said = say(change, odd=odd), [one for one, _ in of_ranks]
            yield case, not all(kept for _, kept in of_ranks) and say("changed")
            if said != [odd is None] * ranks:
                yield case, None in said and say("none")
                told = ", ".join(say("says", rank=rank, said=one) for rank, one in enumerate(said))
                yield case, say("some" if len(set(said)) > 1 else "strict" if odd is None else "lax", told=told)


def _try_alike(answer, changes):
    """On a rank: for each change (what the answer said, whether it left the weights as they were)."""
    with distributed("cpu", timeout=SOON) as world:
        found = []
        for _, odd, changed in changes:
            last = changed if world.rank == odd else [1.0, 2.0, 4.0]
            weights = [torch.arange(6.0).reshape(2, 3), torch.tensor(last)]
            parameters = [torch.nn.Parameter(w.clone()) for w in weights]
            said = answer(parameters)
            found.append((None if said is None else bool(said), all(map(torch.equal, weights, parameters))))
        dist.barrier()
        return found


@exercise
def save_together(answer, say):
    """`answer(state, path, rank)`, called on every rank: a whole file of rank 0's, there when any rank returns."""
    with tempfile.TemporaryDirectory() as folder:
        found, problem = on_ranks(_try_save, 2, answer, str(Path(folder, "model.pt")))
        yield say("case"), problem
        (calls_0, inside_0), (calls_1, inside_1) = found
        yield say("case"), calls_0 and calls_1 and say("both")
        yield say("case"), not calls_0 and say("nobody")
        yield say("case"), inside_0 != 0 and say("before")
        yield say("case"), inside_1 != 0 and say("early")
        found, problem = on_ranks(_try_cut, 1, answer, str(Path(folder, "cut.pt")))
        yield say("cut"), problem or (found != [1.0] and say("half"))


def _try_save(answer, path):
    """On a rank: (how often it called torch.save, whose weights are in the file when its call returns)."""
    calls, save = [], torch.save
    torch.save = lambda *given, **named: calls.append(1) or save(*given, **named)  # in this rank's process only
    with distributed("cpu", timeout=SOON) as world:
        if world.is_main:
            save({"weights": torch.tensor(-1.0)}, path)  # an older checkpoint
        dist.barrier()
        if world.is_main:
            time.sleep(0.3)  # rank 0 comes late
        answer({"weights": torch.tensor(float(world.rank))}, path, world.rank)
        inside = _weights_in(path)
        dist.barrier()
        return len(calls), inside


class _Cut(Exception):
    """The power fails while a file is written."""


def _try_cut(answer, path):
    """The weights in the file after the power failed while the answer wrote it; the old ones are 1."""
    save = torch.save
    save({"weights": torch.tensor(1.0)}, path)

    def cut(state, file, *args, **names):
        whole = io.BytesIO()
        save(state, whole)
        half = whole.getvalue()[: whole.tell() // 2]
        Path(file).write_bytes(half) if isinstance(file, (str, os.PathLike)) else file.write(half)
        raise _Cut

    torch.save = cut
    with distributed("cpu", timeout=SOON):
        try:
            answer({"weights": torch.tensor(2.0)}, path, 0)
        except _Cut:
            pass
    return _weights_in(path)


def _weights_in(path):
    """The number in a checkpoint, or None when the file cannot be read."""
    try:
        return torch.load(path, weights_only=True)["weights"].item()
    except Exception:  # what torch says of a file that is not whole varies
        return None


threads_for = formula(
    "threads_for",
    "`answer(cores, ranks)`: CPU threads for each rank of a host.",
    ((8, 2), (16, 4), (2, 2), (6, 4), (4, 8), (64, 8), (1, 1)),  # cores, ranks on the host
    lambda cores, ranks: max(1, cores // ranks),
    whole=lambda value, *case: type(value) is not int,
    none=lambda value, *case: value < 1,
    many=lambda value, cores, ranks: value > max(1, cores // ranks),
)
