"""The model moves to the card of its process: no branches on CUDA, no nn.DataParallel."""

import ast

from ..fold import PRESENT, render
from ..placement import Placement
from ..syntax import careful

STEP = 9


@careful
def apply(script):
    """One `model = model.to(loc)` instead of everything that moved or spread the model."""
    shape = script.shape
    if not shape.full or not shape.training.model:
        return None
    tree, model = shape.tree, shape.training.model
    placement = Placement(shape)
    statements = [it for it in placement.statements() if it is not shape.wrapped_anew]
    drop = {"set", "move", "parallel"} | ({"ddp"} if shape.wrapped_anew else set())
    move = f"{model} = {model}.to({shape.place})"
    others = [it for it in statements if tree.code(it) != move]
    if len(others) < len(statements) and not any(placement.kinds(it) & drop for it in others):
        return None
    moved = any(placement.kinds(it) & {"move", "parallel"} for it in statements)
    made = None if moved else _made_on_device(tree, shape.worker, model)
    place, line = _place(shape, statements), ""
    if made is not None:
        tree.edit(made, f"{tree.code(made.func.value)}.to({shape.place})")
    else:
        line = f"{tree.indent(place)}{move}{script.newline}"
    if place not in statements:
        script.insert(tree.lines(place)[0], line)
    for node in statements:
        rest = render(tree, placement.rest(node, drop), tree.indent(node))
        if shape.process != shape.card:
            rest = rest.replace(f"device_ids=[{shape.process}]", f"device_ids=[{shape.card}]")
        script.edit_span(*tree.lines(node, comments=node is not place), (line if node is place else "") + rest)
    if any("parallel" in placement.kinds(it) for it in statements):
        script.left(
            place.lineno, "nn.DataParallel is gone: the keys of new checkpoints have no 'module.' without DDP",
            "Take 'module.' off the keys of an old checkpoint before a single card resumes from it.",
        )  # fmt: skip
    _forget_switches(shape, statements)
    return script.edited()


def _place(shape, statements):
    """The statement where the model moves: the first that moved it, but not after the optimizer is made.

    On an NPU `to` makes new parameters: an optimizer that was made before would train the old ones.
    """
    optimizer = shape.training.optimizer_statement
    places = statements[:1] + ([optimizer] if optimizer is not None else [])
    return min(places or [shape.training.epochs or shape.worker.body[-1]], key=lambda it: it.lineno)


def _made_on_device(tree, worker, model):
    """The call `Net().cuda(gpu)` in `model = Net().cuda(gpu)`, or None."""
    for node in ast.walk(worker):
        if isinstance(node, ast.Assign) and tree.code(node.targets[0]) == model:
            value = node.value
            moved = isinstance(value, ast.Call) and getattr(value.func, "attr", "") in ("cuda", "npu", "to")
            if moved and isinstance(value.func.value, ast.Call):
                return value
    return None


def _forget_switches(shape, statements):
    """Take out `use_accel = …is_available()` of the worker where only the old branches read it."""
    tree, worker = shape.tree, shape.worker
    gone = {id(it) for statement in statements for it in ast.walk(statement)}
    for node in worker.body:
        if isinstance(node, ast.Assign) and any(tree.called(it) in PRESENT for it in ast.walk(node.value)):
            name = getattr(node.targets[0], "id", None)
            uses = [it for it in ast.walk(worker) if isinstance(it, ast.Name) and it.id == name]
            if name and all(id(it) in gone or it in node.targets for it in uses):
                tree.replace(node, "", comments=False)
