"""The card of the process is set before anything touches it; batch and workers are shared out."""

import ast

from ..placement import SETTERS
from ..syntax import Unclear, careful

STEP = 8

SHARE = """
if $batch < $count:
    raise ValueError(f'a batch of {$batch} is too small for {$count} processes')
"""


@careful
def apply(script):
    """Write `loc` (or a torch.device) and set_device after the card is known; move the shares out of branches."""
    shape = script.shape
    if not shape.full:
        return None
    if not _is_set(shape):
        _place(script, shape)
    _shares(shape)
    return script.edited()


def _is_set(shape):
    return any(shape.tree.code(call.args[0]) == shape.place for call in _setters(shape) if call.args)


def _setters(shape):
    return shape.tree.calls(shape.worker, *SETTERS)


def _place(script, shape):
    tree, worker = shape.tree, shape.worker
    torch, quote = tree.alias("torch"), tree.quote
    number = f"f{quote}npu:{{{shape.card}}}{quote}"
    value = number if script.style == "article" else f"{torch}.device({number})"
    lines = [f"{shape.place} = {value}", f"{torch}.npu.set_device({shape.place})"]
    place = _card_known(shape)
    for node in _devices(shape):
        if script.style == "modern":
            tree.replace(node, "", comments=False)
        elif node.lineno < place.lineno:
            tree.replace(node, "", comments=False)
            lines.append(f"{shape.device} = {torch}.device(loc)")
        else:
            tree.replace(node, f"{shape.device} = {torch}.device(loc)", comments=False)
    for call in _setters(shape):
        if tree.statement(call) in worker.body:
            tree.replace(tree.statement(call), "", comments=False)
    text = "".join(tree.indent(worker.body[-1]) + line + script.newline for line in lines)
    script.insert(tree.lines(place)[0 if shape.card == shape.process else 1], text)


def _card_known(shape):
    """The statement of the worker after which the number of its card is known (before it: the process is it)."""
    tree, worker = shape.tree, shape.worker
    if shape.card_statement is not None:
        return tree.top(shape.card_statement, worker)
    if shape.card == shape.process:
        return shape.first_of_worker
    named = [it for it in worker.body if isinstance(it, ast.Assign) and tree.code(it.targets[0]) == shape.card]
    if not named:
        raise Unclear(worker, "where this process learns its card is not clear", "Call torch.npu.set_device first.")
    return named[0]


def _devices(shape):
    """The worker's own statements that make its torch.device, all for the same name."""
    made = ("torch.device", "torch.accelerator.current_accelerator")
    return [
        it for it in shape.worker.body
        if isinstance(it, ast.Assign) and getattr(it.targets[0], "id", "") == shape.device
        and shape.tree.calls(it.value, *made)
    ]  # fmt: skip


def _shares(shape):
    """Batch and workers of a process are divided before, not inside, the branch that makes the model."""
    tree, worker, count = shape.tree, shape.worker, shape.count
    shares = [it for it in ast.walk(worker) if _divides(tree, it, count)]
    if not shares or any(_refuses(tree, it, count) for it in ast.walk(worker)):
        return
    names = [tree.code(it.target if isinstance(it, ast.AugAssign) else it.targets[0]) for it in shares]
    batches = [name for name in names if name in _batch_sizes(shape)]
    refuse = SHARE if batches else ""
    words = {"batch": batches[0] if batches else "", "count": count}
    if all(it in worker.body for it in shares):
        if batches:
            tree.before(shares[0], refuse, **words)
        return
    around = {id(next(tree.parents(it))) for it in shares}
    branch = next(tree.parents(shares[0]))
    if len(around) > 1 or branch not in worker.body or not _is_if(branch) or shares[0] not in branch.body:
        raise Unclear(shares[0], "batch and workers are divided in several places", "Divide them before the model.")
    indent = tree.indent(branch)
    inner, newline = indent + tree.unit, shape.script.newline
    text = f"{indent}if {tree.code(branch.test)}:{newline}"
    text += tree.write(refuse, inner, **words) if batches else ""
    text += "".join(tree.shown(it, inner) for it in shares)
    shape.script.insert(tree.lines(branch)[0], text)
    for it in shares:
        tree.replace(it, "")


def _refuses(tree, node, count):
    return _is_if(node) and tree.code(node.test).endswith(f" < {count}")


def _batch_sizes(shape):
    """What the loaders of the worker get as batch_size."""
    calls = [it for it in ast.walk(shape.worker) if isinstance(it, ast.Call)]
    return {shape.tree.code(it.value) for call in calls for it in call.keywords if it.arg == "batch_size"}


def _is_if(node):
    return isinstance(node, ast.If)


def _divides(tree, node, count):
    """Whether a statement is `args.batch_size = … / ngpus_per_node …` or `args.batch_size //= …`."""
    by = (ast.Div, ast.FloorDiv)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, by) and tree.code(node.value) == count and isinstance(node.target, ast.Attribute)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
        return False
    return any(
        isinstance(it, ast.BinOp) and isinstance(it.op, by) and tree.code(it.right) == count
        for it in ast.walk(node.value)
    )
