"""The loss moves to the card, and the learning rate keeps its schedule."""

import ast

from .kinds import shaped

SHOW = "print(f'Epoch {$epoch}: learning rate {$optimizer.param_groups[0][\"lr\"]:g}')"


@shaped(10)
def move_loss(script, shape):
    """`nn.CrossEntropyLoss().cuda(gpu)` becomes `.to(loc)`; a loss on its torch.device stays."""
    for statement in shape.training.losses:
        made, value = shape.training.loss_made(statement.value), statement.value
        if made is value:
            continue
        own = script.code(value.args[0]) if value.func.attr == "to" and value.args else ""
        if own not in (shape.place, shape.device):
            script.edit(value, f"{script.code(made)}.to({shape.place})")


@shaped(14)
def show_learning_rate(script, shape):
    """Print the learning rate of every epoch on the first process."""
    training = shape.training
    if not training.optimizer or training.epochs is None:
        return
    loop = training.epochs
    if ".param_groups[0][" in script.code(loop):
        return
    inner = training.call or training.backward
    statement = next(it for it in loop.body if inner in ast.walk(it))
    if not _scheduled(script, training, loop):
        script.choose(
            loop, "the learning rate stays the same in all epochs",
            "Nothing was lost in the move; with a larger global batch a schedule with warm-up may be needed.",
        )  # fmt: skip
    rank = shape.group_keyword("rank") or f"{script.alias('torch.distributed')}.get_rank()"
    test = f"not {shape.distributed} or {rank} == 0" if shape.distributed else f"{rank} == 0"
    words = {"epoch": loop.target.id, "optimizer": training.optimizer, "test": test}
    script.before(statement, f"if $test:\n    {SHOW}", **words)


def _scheduled(script, training, loop):
    """Whether something in the loop over epochs sets the learning rate."""
    for call in (it for it in ast.walk(loop) if isinstance(it, ast.Call) and it is not training.call):
        if any(script.code(it) == training.optimizer for it in call.args):
            return True
        if script.name(call.func) == f"{training.scheduler}.step":
            return True
    return "'lr'" in script.code(loop) or '"lr"' in script.code(loop)
