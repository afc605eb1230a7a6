"""The passes, in the order in which they run: groups of (step, function of a `Script` that edits it or remarks on it).

An edit counts for the step unless the pass names another one. The passes of a group read one text.
"""

from .apex import leave_apex_parallel
from .arguments import add_arguments
from .batches import move_batches, reduce_on_card
from .branches import fold_branches
from .checkpoint import place_checkpoints
from .choices import leave_choices
from .cudnn import switch_off
from .launch import (
    add_process_map,
    count_processes,
    look_up_card,
    meet_at_address,
    name_card,
    place_process,
    set_address,
)
from .leftovers import report_leftovers
from .loaders import drop_last, unpin
from .methods import rename_methods
from .model import move_loss, move_model
from .names import import_from_npu, import_torch_npu, rename
from .order import optimize_after_move, regroup
from .parallel import unwrap_data_parallel
from .precision import initialize, scale_loss
from .strings import translate


def _shaped(step, one):
    """A group of one pass for scripts in the shape of the ImageNet example, which also gets their `Shape`."""
    return ((step, lambda script: script.shape and one(script, script.shape)),)


PASSES = (
    ((11, leave_apex_parallel),),  # the others know torch's class
    # What belongs to the shape of a script comes first: it looks for CUDA's names.
    _shaped(9, regroup),
    _shaped(8, fold_branches),
    _shaped(2, add_arguments),
    _shaped(3, add_process_map),
    _shaped(4, set_address),
    _shaped(5, count_processes),
    _shaped(6, look_up_card),
    _shaped(7, meet_at_address),
    _shaped(8, place_process),
    _shaped(11, initialize),
    _shaped(11, move_model),
    _shaped(11, move_loss),
    _shaped(12, place_checkpoints),
    _shaped(10, drop_last),
    _shaped(13, move_batches),
    ((17, reduce_on_card),),
    _shaped(14, scale_loss),
    _shaped(8, name_card),
    ((11, optimize_after_move),),
    # The general passes edit one text together.
    (
        (8, switch_off),
        (1, rename),
        (1, import_from_npu),
        (13, rename_methods),
        (8, translate),
        (10, unpin),
        (8, unwrap_data_parallel),
        (1, import_torch_npu),
    ),
    # Notes only; they read the result.
    ((1, report_leftovers), (1, leave_choices)),
)
