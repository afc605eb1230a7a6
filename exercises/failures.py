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
from .verdict import attempt, exercise

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


@exercise("You have found the first call that not all ranks made. That is the line to look at in the script.")
def parted(answer):
    """`answer(diaries)`: where the ranks' lists of collectives part first, counted from 0, or None."""
    for diaries, wanted in DIARIES:
        got, problem = attempt(answer, [list(diary) for diary in diaries])
        if problem is None and (got != wanted or isinstance(got, bool)):
            problem = _wrong_place(got, wanted, diaries)
        yield f"{len(diaries)} ranks, {' | '.join(' '.join(d) or '(nothing)' for d in diaries)}", problem


def _wrong_place(got, wanted, diaries):
    lengths = [len(diary) for diary in diaries]
    if wanted is None:
        return f"you say {got!r}, but these ranks never part."
    if got is None and wanted >= min(lengths):
        return "you say that they never part, but one rank has ended its list while another goes on, and waits for it."
    if got is None and diaries[0] == diaries[1]:
        return "you say that they never part. Have you looked at all ranks?"
    if got is None:
        return "you say that they never part. Look at the calls one by one: which is the first that differs?"
    if got == wanted + 1:
        return f"you say {got}. Count from 0, as lists do."
    if isinstance(got, int) and got > wanted:
        return f"you say {got}, but they have parted before. What comes after the first difference is its consequence."
    return f"you say {got!r}. Compare the first calls of all ranks, then the second ones, and so on."


BATCHES = (((3, 1), (2, 2)), ((2, 4, 1),))  # of each launch: how many batches each rank has


@exercise("All ranks make the same number of steps, even where nobody knows beforehand how many there will be.")
def everybody(answer):
    """`answer(has_batch)`, called by all ranks before each step: True while every rank still has a batch."""
    for cases in BATCHES:
        ranks = len(cases[0])
        found, problem = on_ranks(_try_everybody, ranks, answer, cases)
        yield f"{ranks} ranks", problem
        for batches, *said in zip(cases, *found, strict=True):
            yield f"ranks with {', '.join(map(str, batches))} batches", _wrong_steps(said, batches)


def _try_everybody(answer, cases):
    """On a rank: for each case what the answer said before each step, until nobody has a batch any more."""
    with distributed("cpu", timeout=SOON) as world:
        said = [[answer(step < of[world.rank]) for step in range(max(of) + 1)] for of in cases]
        dist.barrier()  # nobody leaves while another may still wait for it
        return [[None if one is None else bool(one) for one in case] for case in said]


def _wrong_steps(found, batches):
    steps = range(max(batches) + 1)
    if found == [[step < min(batches) for step in steps]] * len(batches):
        return None
    if any(one is None for said in found for one in said):
        return "your function returned None. Return True or False."
    if found == [[step < of_rank for step in steps] for of_rank in batches]:
        return "each rank answers for itself. The others have to hear of it: which collective tells all ranks?"
    if found == [[step < max(batches) for step in steps]] * len(batches):
        return "it says True as long as any rank has a batch. The one that has none cannot make the step."
    if any(said != found[0] for said in found):
        return "the ranks do not agree: one goes on and waits for one that has stopped. All need the same result."
    if not any(found[0]):
        return "it never says True, not even while every rank has a batch."
    return f"it says {found[0]} before the steps of all ranks; the shortest rank has {min(batches)}."


NUDGED, SWAPPED = [1.0, 2.001, 4.0], [1.0, 4.0, 2.0]
CHANGES = {  # by the number of ranks: (which rank has other weights, which, in words)
    2: (
        (None, None, "equal weights on 2 ranks"),
        (1, NUDGED, "one weight of rank 1 is 0.001 off"),
        (1, SWAPPED, "two weights of rank 1 are swapped"),
    ),
    3: ((2, NUDGED, "one weight of rank 2 of 3 is 0.001 off"),),
}


@exercise("Call it once an epoch: what drifts apart in silence becomes an error with a date.")
def alike(answer):
    """`answer(parameters)`, called on every rank: True on all if all hold equal weights, else False on all."""
    for ranks, changes in CHANGES.items():
        found, problem = on_ranks(_try_alike, ranks, answer, changes)
        yield f"{ranks} ranks", problem
        for (odd, _, told), *said in zip(changes, *found, strict=True):
            yield told, _wrong_alike(said, odd is None)


def _try_alike(answer, changes):
    """On a rank: for each change (what the answer said, whether it left the weights as they were)."""
    with distributed("cpu", timeout=SOON) as world:
        found = []
        for odd, change, _ in changes:
            last = change if world.rank == odd else [1.0, 2.0, 4.0]
            weights = [torch.arange(6.0).reshape(2, 3), torch.tensor(last)]
            parameters = [torch.nn.Parameter(w.clone()) for w in weights]
            said = answer(parameters)
            found.append((None if said is None else bool(said), all(map(torch.equal, weights, parameters))))
        dist.barrier()
        return found


def _wrong_alike(found, equal):
    said = [one for one, _ in found]
    if not all(kept for _, kept in found):
        return "your function has changed the weights themselves. Work on a copy: a check must not mend what it finds."
    if said == [equal] * len(said):
        return None
    if None in said:
        return "your function returned None. Return True or False."
    told = ", ".join(f"rank {rank} says {one}" for rank, one in enumerate(said))
    if len(set(said)) > 1:
        return f"{told}. If only some ranks stop, the others wait for them: every rank needs the same answer."
    if equal:
        return f"{told}. Equal weights are equal to the last bit; what do you compare with what?"
    return f"{told}. What does your function compare? The same sum does not mean the same weights."


class _Cut(Exception):
    """The power fails while a file is written."""


@exercise("One rank writes, no reader ever sees half a file, and nobody goes on before it is there.")
def save_together(answer):
    """`answer(state, path, rank)`, called on every rank: a whole file of rank 0's, there when any rank returns."""
    with tempfile.TemporaryDirectory() as folder:
        found, problem = on_ranks(_try_save, 2, answer, str(Path(folder, "model.pt")))
        yield "two ranks save", problem or _wrong_save(found)
        found, problem = on_ranks(_try_cut, 1, answer, str(Path(folder, "cut.pt")))
        lost = found != [1.0] and (
            "the old file is lost and the new one is not whole. Write under another name in the same folder; "
            "os.replace then puts it in its place in one go."
        )
        yield "the power fails in the middle of writing", problem or lost


def _try_save(answer, path):
    """On a rank: (how often it called torch.save, whose weights are in the file when its call returns)."""
    calls, save = [], torch.save

    def counted(*args, **names):
        calls.append(1)
        return save(*args, **names)

    torch.save = counted  # the ranks are processes of their own: nobody else sees this
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


def _wrong_save(found):
    (calls_0, inside_0), (calls_1, inside_1) = found
    if calls_0 and calls_1:
        return "both of them write the file, one into the other's. The weights are the same: who should write?"
    if calls_1 or not calls_0:
        return "rank 0 has not written anything. It is the one that every script has."
    if inside_0 != 0:
        return "on rank 0 your function returns before the new file is in its place."
    if inside_1 != 0:
        return "rank 1 returns before rank 0 has finished, and would load the old file. What makes ranks wait?"
    return None


def _try_cut(answer, path):
    """The weights in the file after the power failed while the answer wrote it; the old ones are 1."""
    save = torch.save
    save({"weights": torch.tensor(1.0)}, path)

    def cut(state, file, *args, **names):
        whole = io.BytesIO()
        save(state, whole)
        half = whole.getvalue()[: whole.tell() // 2]
        if isinstance(file, (str, os.PathLike)):
            Path(file).write_bytes(half)
        else:
            file.write(half)
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


HOSTS = ((8, 2), (16, 4), (2, 2), (6, 4), (4, 8), (64, 8), (1, 1))  # (cores, ranks on the host)


@exercise("Together the ranks have no more threads than there are cores, or one each where that cannot be.")
def threads_for(answer):
    """`answer(cores, ranks)`: CPU threads for each rank of a host."""
    for cores, ranks in HOSTS:
        got, problem = attempt(answer, cores, ranks)
        hint = problem or _wrong_threads(got, cores, ranks)
        yield f"{cores} core{'s' * (cores > 1)}, {ranks} rank{'s' * (ranks > 1)}", hint


def _wrong_threads(got, cores, ranks):
    if isinstance(got, bool) or not isinstance(got, int):
        return f"{got!r} is no whole number."
    if got < 1:
        return f"{got} threads a rank. A rank that computes needs at least one."
    most = max(1, cores // ranks)
    if got > most:
        return f"{got} threads a rank are {got * ranks} on {cores} core{'s' * (cores > 1)}. They will take turns."
    if got < most:
        return f"{got} a rank leave cores without work: there is room for {most}."
    return None
