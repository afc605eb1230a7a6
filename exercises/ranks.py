"""The reader's function on real ranks, for the checks that need them.

The ranks run on the CPU, whatever the machine has, so that there are always enough of them.
"""

from functools import partial

import torch.distributed as dist

from helpers.group.process_group import distributed
from helpers.launcher.launch import RankError, RankTimeout, launch

from .verdict import SAY, NotYet, first_line

PATIENCE = 20  # s; a right answer needs a tenth of one, but on a busy machine seconds
SOON = 10  # s that a collective may take: a right answer needs a hundredth of one


def call(answer):
    """The `work` of `on_ranks` where the reader's function does all of it."""
    return answer()


def in_group(work, world_size, answer, *arguments) -> list:
    """As `on_ranks`, of `work(world, answer, *arguments)` in a process group."""
    return on_ranks(partial(_in_group, work), world_size, answer, *arguments)


def _in_group(work, answer, *arguments):
    with distributed("cpu", timeout=SOON) as world:
        found = work(world, answer, *arguments)
        dist.barrier()  # nobody leaves while another may still wait for it
        return found


def on_ranks(work, world_size, answer, *arguments, named=True, env=None, patience=1) -> list:
    """Each rank's result of `work(answer, *arguments)`, where `answer` is the reader's function.

    Args:
        named: whether the hint names the rank that raised; not where it is chance which one fails first.
        patience: how many times as long as others it may take.
    """
    if not callable(answer):
        raise NotYet(SAY("no function", kind=type(answer).__name__))
    env = {"HELPERS_DEVICE": "cpu", **(env or {})}
    try:
        return launch(work, world_size, answer, *arguments, timeout=patience * PATIENCE, threads=1, env=env)
    except (RankTimeout, RankError, TypeError, ValueError) as error:
        raise NotYet(_why(error, named)) from error


def _why(error, named):
    if isinstance(error, (TypeError, ValueError)):  # the function cannot be sent to the ranks
        return str(error)
    if isinstance(error, RankTimeout):
        return SAY("time is up", alike=SAY("alike"))
    if error.exception is None:
        return SAY("rank ended", rank=error.rank)
    if "gloo" in error.traceback:  # its words hold ports and so differ from run to run
        return SAY("rank waited", rank=error.rank, alike=SAY("alike"))
    places = {"rank": error.rank, "kind": type(error.exception).__name__, "error": first_line(error.exception)}
    return SAY("rank raised" if named else "some rank raised", **places)
