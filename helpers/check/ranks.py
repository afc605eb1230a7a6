"""The reader's function on real ranks, for the checks that need them."""

from ..launcher.launch import RankError, RankTimeout, launch

PATIENCE = 10  # s; a right answer needs a tenth of one
ALIKE = "All ranks must call the same collectives, with tensors of the same size."


def call(answer):
    """The `work` of `on_ranks` where the reader's function does all of it."""
    return answer()


def on_ranks(work, world_size, answer, *arguments):
    """(each rank's result, None), or (None, a hint) when the ranks did not get that far.

    A rank calls `work(answer, *arguments)`, where `answer` is the reader's function.
    """
    if not callable(answer):
        return None, f"give the check a function; this is a {type(answer).__name__}."
    try:
        env = {"HELPERS_DEVICE": "cpu"}
        return launch(work, world_size, answer, *arguments, timeout=PATIENCE, threads=1, env=env), None
    except RankTimeout:
        return None, f"the ranks waited for each other until the time was up. {ALIKE}"
    except RankError as error:
        if error.exception is None:
            return None, f"rank {error.rank} did not come to an end."
        if "gloo" in error.traceback:  # its words hold ports and so differ from run to run
            return None, f"rank {error.rank} waited for one that did not come. {ALIKE}"
        told = str(error.exception).splitlines() or [""]
        return None, f"rank {error.rank} raised {type(error.exception).__name__}: {told[0][:200]}"
    except (TypeError, ValueError) as error:  # the function cannot be sent to the ranks
        return None, str(error)
