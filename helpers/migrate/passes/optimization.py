"""The loss moves to the card."""

from .kinds import shaped


@shaped(11)
def move_loss(script, shape):
    """`nn.CrossEntropyLoss().cuda(gpu)` becomes `.to(loc)`; a loss on its torch.device stays."""
    for statement in shape.training.losses:
        made, value = shape.training.loss_made(statement.value), statement.value
        if made is not value and script.code(value.args[0] if value.args else value) != shape.device:
            script.edit(value, f"{script.code(made)}.to({shape.place})")
