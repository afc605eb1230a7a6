"""The reader's function on real ranks, for the checks that need them."""

from helpers.launcher.launch import RankError, RankTimeout, launch

from .verdict import SAY

PATIENCE = 20  # s; a right answer needs a tenth of one, but on a busy machine seconds


def call(answer):
    """The `work` of `on_ranks` where the reader's function does all of it."""
    return answer()


def on_ranks(work, world_size, answer, *arguments):
    """(each rank's result, None), or (None, a hint) when the ranks did not get that far.

    A rank calls `work(answer, *arguments)`, where `answer` is the reader's function.
    """
    if not callable(answer):
        return None, SAY("no function", kind=type(answer).__name__)
    try:
        env = {"HELPERS_DEVICE": "cpu"}
        return launch(work, world_size, answer, *arguments, timeout=PATIENCE, threads=1, env=env), None
    except RankTimeout:
        return None, SAY("time is up", alike=SAY("alike"))
    except RankError as error:
        if error.exception is None:
            return None, SAY("rank ended", rank=error.rank)
        if "gloo" in error.traceback:  # its words hold ports and so differ from run to run
            return None, SAY("rank waited", rank=error.rank, alike=SAY("alike"))
        told = str(error.exception).splitlines() or [""]
        kind = type(error.exception).__name__
        return None, SAY("rank raised", rank=error.rank, kind=kind, error=told[0][:200])
    except (TypeError, ValueError) as error:  # the function cannot be sent to the ranks
        return None, str(error)
