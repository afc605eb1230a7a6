"""Checks of the "your turn" cells: `check.<exercise>(your answer)` says whether it is right, or gives a hint.

A check never raises for a wrong answer and prints the same words for the same answer. There is a file for each
notebook; `verdict` has the form of a check, hints.ini its words, and `ranks` runs an answer on real ranks.
"""

from .baseline import median_step, sped_up, timed_steps  # noqa: F401
from .batch import learning_rate, time_to, updates  # noqa: F401
from .compiler import close_enough, one_compilation, one_graph  # noqa: F401
from .data_parallel import pays_from, reduce_gradients  # noqa: F401
from .ddp import all_reduce_share, bucket_limit, resumable, train_on_ranks, visits  # noqa: F401
from .failures import alike, everybody, parted, save_together, threads_for  # noqa: F401
from .hosts import command_for, not_hidden, resume, ring_seconds  # noqa: F401
from .hvd import averaged_by_name, everybody_finishes, ten_steps  # noqa: F401
from .npu import migrated, step_1, step_2, step_3, step_4  # noqa: F401
from .precision import clipped_step, next_scale  # noqa: F401
from .report import difference, pays_after  # noqa: F401
from .sharding import bytes_per_rank, sharded  # noqa: F401
from .split import micro_batches, row_parallel  # noqa: F401
from .start import mean_of_squares, slices  # noqa: F401
