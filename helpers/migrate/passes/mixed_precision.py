"""Mixed precision, and DDP around what it made of the model."""

from ..placement import Placement
from ..syntax import careful

STEP = 11

INITIALIZE = """
if $args.amp:
    # before DDP, which wraps what initialize returns, and before a checkpoint is loaded
    $model, $optimizer = amp.initialize($model, $optimizer, opt_level=$args.opt_level,
    ${space}loss_scale='dynamic' if $args.loss_scale == -1 else $args.loss_scale)
"""
SCALER = "scaler = $torch.amp.GradScaler('npu', enabled=$args.amp)"


@careful
def apply(script):
    """amp.initialize, then DDP, right after the optimizer; a GradScaler in the modern style."""
    shape = script.shape
    if not shape.full or shape.initialized:
        return None
    if not shape.scalable:
        if not shape.scaled:
            script.left(
                shape.worker.lineno, "no mixed precision: where model, optimizer and backward pass meet is not clear",
                "On an NPU half precision is much faster: add torch.autocast and torch.amp.GradScaler by hand.",
            )  # fmt: skip
        return None
    tree, training = shape.tree, shape.training
    statement = training.optimizer_statement
    if script.style == "modern":
        tree.after(statement, SCALER, torch=tree.alias("torch"), args=shape.args)
        return script.edited()
    words = {"args": shape.args, "model": training.model, "optimizer": training.optimizer}
    words["space"] = " " * len(f"{training.model}, {training.optimizer} = amp.initialize(")
    indent = tree.indent(statement)
    text = tree.write(INITIALIZE, indent, **words) + Placement(shape).wrapping(indent)
    script.insert(tree.lines(statement)[1], script.newline + text)
    return script.edited()
