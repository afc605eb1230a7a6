"""Training batches of one size; validation keeps its last, smaller batch, and so every sample."""

import ast

from ..syntax import careful

STEP = 13

LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
GUARD = """
if len($loader) == 0:
    raise ValueError('fewer training samples than one batch: choose a smaller batch')
"""


@careful
def apply(script):
    """drop_last=True for the loader that is trained on, and for no other."""
    if not script.shape.full:
        return None
    _training(script.shape, script.shape.tree)
    return script.edited()


def _keyword(call, name):
    return next((it for it in call.keywords if it.arg == name), None)


def _training(shape, tree):
    loader = shape.training.loader
    made = [
        it for it in ast.walk(shape.worker)
        if isinstance(it, ast.Assign) and tree.code(it.targets[0]) == loader and tree.called(it.value) in LOADERS
    ]  # fmt: skip
    if not made:
        line = shape.worker.lineno
        shape.script.left(line, "which loader is trained on is not clear", "Give it drop_last=True, and only it.")
        return
    for statement in made:
        call = statement.value
        word = _keyword(call, "drop_last")
        if _keyword(call, "batch_sampler") is not None:
            shape.script.left(call.lineno, "a batch sampler makes the training batches", "Let it drop the last one.")
        elif word is None:
            given = [*call.args, *(it.value for it in call.keywords)]
            last = max(given, key=lambda it: (it.end_lineno, it.end_col_offset))
            tree.script.insert(_after(tree, call, last), ", drop_last=True")
        elif isinstance(word.value, ast.Constant) and word.value.value is False:
            tree.edit(word.value, "True")
    epochs = shape.training.epochs
    if epochs is not None and f"len({loader}) == 0" not in tree.text:
        tree.before(epochs, GUARD, loader=loader)


def _after(tree, call, last):
    """The place after the last argument of a call, with the parenthesis that may be around it."""
    start, end = tree.span(last)[1], tree.span(call)[1] - 1
    inside = tree.text[start:end]
    return start + (inside.rindex(")") + 1 if ")" in inside and "#" not in inside else 0)
