"""The reader's function on real ranks, for the checks that need them."""

from helpers.launcher.language import local, marked
from helpers.launcher.launch import RankError, RankTimeout, launch

PATIENCE = 20  # s; a right answer needs a tenth of one, but on a busy machine seconds
ALIKE = marked("All ranks must call the same collectives, with tensors of the same size.")


def call(answer):
    """The `work` of `on_ranks` where the reader's function does all of it."""
    return answer()


def on_ranks(work, world_size, answer, *arguments):
    """(each rank's result, None), or (None, a hint) when the ranks did not get that far.

    A rank calls `work(answer, *arguments)`, where `answer` is the reader's function.
    """
    if not callable(answer):
        return None, local("give the check a function; this is a {kind}.", kind=type(answer).__name__)
    try:
        env = {"HELPERS_DEVICE": "cpu"}
        return launch(work, world_size, answer, *arguments, timeout=PATIENCE, threads=1, env=env), None
    except RankTimeout:
        return None, local("the ranks waited for each other until the time was up. {alike}", alike=local(ALIKE))
    except RankError as error:
        if error.exception is None:
            return None, local("rank {rank} did not come to an end.", rank=error.rank)
        if "gloo" in error.traceback:  # its words hold ports and so differ from run to run
            return None, local(
                "rank {rank} waited for one that did not come. {alike}", rank=error.rank, alike=local(ALIKE)
            )
        told = str(error.exception).splitlines() or [""]
        kind = type(error.exception).__name__
        return None, local("rank {rank} raised {kind}: {error}", rank=error.rank, kind=kind, error=told[0][:200])
    except (TypeError, ValueError) as error:  # the function cannot be sent to the ranks
        return None, str(error)
