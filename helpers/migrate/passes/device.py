"""The card of the process is set before anything touches it; batch and workers are shared out."""

import ast

from ..tree import Unclear
from .kinds import shaped
from .model import SETTERS

SHARE = """
if $batch < $count:
    raise ValueError(f'a batch of {$batch} is too small for {$count} processes')
"""


@shaped(8)
def place_process(script, shape):
    """Write `loc` (or a torch.device) and set_device after the card is known; move the shares out of branches."""
    if not _is_set(shape):
        _place(script, shape)
    _shares(shape)


def _is_set(shape):
    return any(shape.script.code(call.args[0]) == shape.place for call in _setters(shape) if call.args)


def _setters(shape):
    return shape.script.calls(shape.worker, *SETTERS)


def _place(script, shape):
    script, worker = shape.script, shape.worker
    torch, quote = script.alias("torch"), script.quote
    number = f"f{quote}npu:{{{shape.card}}}{quote}"
    value = number if script.style == "article" else f"{torch}.device({number})"
    lines = [f"{shape.place} = {value}", f"{torch}.npu.set_device({shape.place})"]
    place = _card_known(shape)
    for node in _devices(shape):
        if script.style == "modern":
            script.replace(node, "", comments=False)
        elif node.lineno < place.lineno:
            script.replace(node, "", comments=False)
            lines.append(f"{shape.device} = {torch}.device(loc)")
        else:
            script.replace(node, f"{shape.device} = {torch}.device(loc)", comments=False)
    for call in _setters(shape):
        if script.statement(call) in worker.body:
            script.replace(script.statement(call), "", comments=False)
    text = "".join(script.indent(worker.body[-1]) + line + script.newline for line in lines)
    script.insert(script.lines(place)[0 if shape.card == shape.process else 1], text)


def _card_known(shape):
    """The statement of the worker after which the number of its card is known (before it: the process is it)."""
    script, worker = shape.script, shape.worker
    if shape.card_statement is not None:
        return script.top(shape.card_statement, worker)
    if shape.card == shape.process:
        return shape.first_of_worker
    named = [it for it in worker.body if isinstance(it, ast.Assign) and script.code(it.targets[0]) == shape.card]
    if not named:
        raise Unclear(worker, "where this process learns its card is not clear", "Call torch.npu.set_device first.")
    return named[0]


def _devices(shape):
    """The worker's own statements that make its torch.device, all for the same name."""
    made = ("torch.device", "torch.accelerator.current_accelerator")
    return [
        it for it in shape.worker.body
        if isinstance(it, ast.Assign) and getattr(it.targets[0], "id", "") == shape.device
        and shape.script.calls(it.value, *made)
    ]  # fmt: skip


def _shares(shape):
    """Batch and workers of a process are divided before, not inside, the branch that makes the model."""
    script, worker, count = shape.script, shape.worker, shape.count
    shares = [it for it in ast.walk(worker) if _divides(script, it, count)]
    if not shares or any(_refuses(script, it, count) for it in ast.walk(worker)):
        return
    names = [script.code(it.target if isinstance(it, ast.AugAssign) else it.targets[0]) for it in shares]
    batches = [name for name in names if name in _batch_sizes(shape)]
    refuse = SHARE if batches else ""
    words = {"batch": batches[0] if batches else "", "count": count}
    if all(it in worker.body for it in shares):
        if batches:
            script.before(shares[0], refuse, **words)
        return
    around = {id(next(script.parents(it))) for it in shares}
    branch = next(script.parents(shares[0]))
    if len(around) > 1 or branch not in worker.body or not _is_if(branch) or shares[0] not in branch.body:
        raise Unclear(shares[0], "batch and workers are divided in several places", "Divide them before the model.")
    indent = script.indent(branch)
    inner, newline = indent + script.unit, script.newline
    text = f"{indent}if {script.code(branch.test)}:{newline}"
    text += script.write(refuse, inner, **words) if batches else ""
    text += "".join(script.shown(it, inner) for it in shares)
    script.insert(script.lines(branch)[0], text)
    for it in shares:
        script.replace(it, "")


def _refuses(script, node, count):
    return _is_if(node) and script.code(node.test).endswith(f" < {count}")


def _batch_sizes(shape):
    """What the loaders of the worker get as batch_size."""
    calls = [it for it in ast.walk(shape.worker) if isinstance(it, ast.Call)]
    return {shape.script.code(it.value) for call in calls for it in call.keywords if it.arg == "batch_size"}


def _is_if(node):
    return isinstance(node, ast.If)


def _divides(script, node, count):
    """Whether a statement is `args.batch_size = … / ngpus_per_node …` or `args.batch_size //= …`."""
    by = (ast.Div, ast.FloorDiv)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, by) and script.code(node.value) == count and isinstance(node.target, ast.Attribute)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
        return False
    return any(
        isinstance(it, ast.BinOp) and isinstance(it.op, by) and script.code(it.right) == count
        for it in ast.walk(node.value)
    )
