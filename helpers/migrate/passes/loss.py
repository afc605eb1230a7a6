"""The loss moves to the card."""

from ..syntax import careful

STEP = 10


@careful
def apply(script):
    """`nn.CrossEntropyLoss().cuda(gpu)` becomes `.to(loc)`; a loss on its torch.device stays."""
    shape = script.shape
    if not shape.full:
        return None
    for statement in shape.training.losses:
        made, value = shape.training.loss_made(statement.value), statement.value
        if made is value:
            continue
        own = shape.tree.code(value.args[0]) if value.func.attr == "to" and value.args else ""
        if own not in (shape.place, shape.device):
            shape.tree.edit(value, f"{shape.tree.code(made)}.to({shape.place})")
    return script.edited()
