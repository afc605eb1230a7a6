"""The passes, in the order in which they run: functions of a `Script` that edit it or remark on it (see kinds.py)."""

from .apex import leave_apex_parallel
from .arguments import add_arguments
from .batches import move_batches
from .branches import fold_branches
from .checkpoint import place_checkpoints
from .choices import leave_choices
from .cudnn import switch_off
from .device import place_process
from .launch import add_process_map, count_processes, look_up_card, meet_at_address, name_card, set_address
from .leftovers import report_leftovers
from .loaders import drop_last, unpin
from .methods import rename_methods
from .model import move_loss, move_model, unwrap_data_parallel
from .names import import_from_npu, import_torch_npu, rename
from .order import optimize_after_move
from .precision import initialize, scale_loss
from .regroup import regroup
from .strings import translate

PASSES = (
    (leave_apex_parallel,),  # the others know torch's class
    # What belongs to the shape of a script comes first: it looks for CUDA's names.
    (regroup,),
    (fold_branches,),
    (add_arguments,),
    (add_process_map,),
    (set_address,),
    (count_processes,),
    (look_up_card,),
    (meet_at_address,),
    (place_process,),
    (initialize,),
    (move_model,),
    (move_loss,),
    (place_checkpoints,),
    (drop_last,),
    (move_batches,),
    (scale_loss,),
    (name_card,),
    (optimize_after_move,),
    # The general passes read one text, and edit it together.
    (switch_off, rename, import_from_npu, rename_methods, translate, unpin, unwrap_data_parallel, import_torch_npu),
    # Notes only; they read the result.
    (report_leftovers, leave_choices),
)
