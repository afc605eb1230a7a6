"""Checks of the "your turn" cells: `check.<exercise>(your answer)` says whether it is right, or gives a hint.

A check never raises for a wrong answer and prints the same words for the same answer. There is a file for each way to
try an answer; `verdict` has the form of a check, hints.ini its words by notebook, `ranks` runs an answer on real ranks.
"""

from .compiler import one_compilation, one_graph  # noqa: F401
from .formulas import choose_h, not_hidden, ring_seconds, runs_needed  # noqa: F401
from .hvd import averaged_by_name, everybody_finishes, ten_steps  # noqa: F401
from .npu import migrated, step_1, step_2, step_3, step_4  # noqa: F401
from .script import ddp_script  # noqa: F401
from .sequences import balanced, capacity, scaled  # noqa: F401
from .sharding import fastest_layout, fsdp_script  # noqa: F401
from .together import accuracy, everybody, mean_of_squares, row_parallel, sharded  # noqa: F401
from .trials import amp_step, causes, command_for, diagnosis, reduce_gradients, resumable, slices, timed_steps  # noqa: F401
