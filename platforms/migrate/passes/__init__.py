"""The passes, in the order in which they run: groups of (step, function of a `Script` that edits it or remarks on it).

An edit counts for the step unless the pass names another one. The passes of a group read one text.
"""

from . import arguments, batches, branches, checkpoint, choices, launch, leftovers, loaders  # isort: skip
from . import methods, model, names, order, precision, strings  # isort: skip


def _shaped(step, one):
    """A group of one pass for scripts in the shape of the ImageNet example, which also gets their `Shape`."""
    return ((step, lambda script: script.shape and one(script, script.shape)),)


PASSES = (
    # What belongs to the shape of a script comes first: it looks for CUDA's names.
    _shaped(9, order.regroup),
    _shaped(8, branches.fold_branches),
    _shaped(2, arguments.add_arguments),
    _shaped(3, launch.add_process_map),
    _shaped(4, launch.set_address),
    _shaped(5, launch.count_processes),
    _shaped(6, launch.look_up_card),
    _shaped(7, launch.meet_at_address),
    _shaped(8, launch.place_process),
    _shaped(11, precision.initialize),
    _shaped(11, model.move_model),
    _shaped(11, model.move_loss),
    _shaped(12, checkpoint.place_checkpoints),
    _shaped(10, loaders.drop_last),
    _shaped(13, batches.move_batches),
    _shaped(14, precision.scale_loss),
    _shaped(8, launch.name_card),
    (  # the general passes edit one text together
        (8, names.repeat),
        (1, names.rename),
        (1, names.import_from_npu),
        (13, methods.rename_methods),
        (8, strings.translate),
        (10, loaders.unpin),
        (8, model.unwrap_data_parallel),
        (1, names.import_torch_npu),
    ),
    ((1, leftovers.report_leftovers), (1, choices.leave_choices)),  # notes only; they read the result
)
