"""The loss moves to the card, and the learning rate shows its schedule."""

import ast

from .kinds import shaped

SHOW = """
if $test:
    print(f'Epoch {$epoch}: learning rate {$optimizer.param_groups[0][\"lr\"]:g}')
"""


@shaped(10)
def move_loss(script, shape):
    """`nn.CrossEntropyLoss().cuda(gpu)` becomes `.to(loc)`; a loss on its torch.device stays."""
    for statement in shape.training.losses:
        made, value = shape.training.loss_made(statement.value), statement.value
        if made is not value and script.code(value.args[0] if value.args else value) != shape.device:
            script.edit(value, f"{script.code(made)}.to({shape.place})")


@shaped(14)
def show_learning_rate(script, shape):
    """Print the learning rate of every epoch on the first process."""
    training, loop = shape.training, shape.training.epochs
    if not training.optimizer or loop is None or ".param_groups[0][" in script.code(loop):
        return
    rank = shape.group_keyword("rank") or f"{script.alias('torch.distributed')}.get_rank()"
    test = f"not {shape.distributed} or {rank} == 0" if shape.distributed else f"{rank} == 0"
    statement = next(it for it in loop.body if (training.call or training.backward) in ast.walk(it))
    script.before(statement, SHOW, epoch=loop.target.id, optimizer=training.optimizer, test=test)
