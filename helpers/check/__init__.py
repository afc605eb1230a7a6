"""Checks of the "your turn" cells: `check.<exercise>(your answer)` says whether it is right, or gives a hint.

A check never raises for a wrong answer and prints the same words for the same answer. There is a file for each
notebook; `verdict` has the form of a check, and `ranks` runs an answer on real ranks.
"""

from .baseline import accuracy, images_per_second, median_step  # noqa: F401
from .batch import gradients_in_parts, learning_rate, time_to, updates  # noqa: F401
from .compiler import close_enough, one_compilation, one_graph  # noqa: F401
from .data_parallel import reduce_gradients, scatter  # noqa: F401
from .ddp import average_gradients, global_accuracy, shard  # noqa: F401
from .failures import alike, everybody, parted, save_together, threads_for  # noqa: F401
from .hosts import not_hidden, ring_seconds, where  # noqa: F401
from .hvd import averaged_by_name, everybody_finishes, one_list_of_names, same_start  # noqa: F401
from .npu import migrated, placement, resumed, whole_accuracy  # noqa: F401
from .precision import accumulate, clipped_step, next_scale  # noqa: F401
from .report import difference, pays_after  # noqa: F401
from .start import mean_of_squares, slices  # noqa: F401
