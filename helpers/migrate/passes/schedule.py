"""The learning rate keeps its schedule, and shows that it does."""

import ast

from ..syntax import careful

STEP = 14

SHOW = "print(f'Epoch {$epoch}: learning rate {$optimizer.param_groups[0][\"lr\"]:g}')"


@careful
def apply(script):
    """Print the learning rate of every epoch on the first process."""
    shape = script.shape
    if not shape.full or not shape.training.optimizer or shape.training.epochs is None:
        return None
    tree, training = shape.tree, shape.training
    loop = training.epochs
    if ".param_groups[0][" in tree.code(loop):
        return None
    inner = training.call or training.backward
    statement = next(it for it in loop.body if inner in ast.walk(it))
    if not _scheduled(tree, training, loop):
        script.choose(
            loop.lineno, "the learning rate stays the same in all epochs",
            "Nothing was lost in the move; with a larger global batch a schedule with warm-up may be needed.",
        )  # fmt: skip
    rank = shape.group_keyword("rank") or f"{tree.alias('torch.distributed')}.get_rank()"
    test = f"not {shape.distributed} or {rank} == 0" if shape.distributed else f"{rank} == 0"
    words = {"epoch": loop.target.id, "optimizer": training.optimizer, "test": test}
    tree.before(statement, f"if $test:\n    {SHOW}", **words)
    return script.edited()


def _scheduled(tree, training, loop):
    """Whether something in the loop over epochs sets the learning rate."""
    for call in (it for it in ast.walk(loop) if isinstance(it, ast.Call) and it is not training.call):
        if any(tree.code(it) == training.optimizer for it in call.args):
            return True
        if tree.name(call.func) == f"{training.scheduler}.step":
            return True
    return "'lr'" in tree.code(loop) or '"lr"' in tree.code(loop)
