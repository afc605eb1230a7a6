"""The card of the process is set before anything touches it; batch and workers are shared out."""

import ast
import re

from helpers.launcher.language import marked

from ..tree import Unclear
from .kinds import shaped
from .model import SETTERS


@shaped(8)
def place_process(script, shape):
    """Write `loc` (or a torch.device) and set_device after the card is known; move the shares out of branches."""
    setters = script.calls(shape.worker, *SETTERS)
    if not any(script.code(call.args[0]) == shape.place for call in setters if call.args):
        _place(script, shape, setters)
    _shares(script, shape)


def _place(script, shape, setters):
    torch, number = script.alias("torch"), f"f'npu:{{{shape.card}}}'"
    value = number if script.style == "article" else f"{torch}.device({number})"
    lines = [f"{shape.place} = {value}", f"{torch}.npu.set_device({shape.place})"]
    place = _card_known(script, shape)
    for node in shape.devices:
        new = f"{shape.device} = {torch}.device(loc)"
        if script.style == "article" and node.lineno >= place.lineno:
            script.edit(node, new)
            continue
        script.delete(node)
        lines += [new] if script.style == "article" else []
    for call in setters:
        if script.statement(call) in shape.worker.body:
            script.delete(script.statement(call))
    text = script.write("\n".join(lines), script.indent(place))
    script.insert(script.lines(place)[0 if shape.card == shape.process else 1], text)


def _card_known(script, shape):
    """The statement of the worker after which the number of its card is known (before it: the process is it)."""
    if shape.card_statement is not None:
        return script.top(shape.card_statement, shape.worker)
    if shape.card == shape.process:
        return shape.first_of(shape.worker)
    named = [it for it in shape.worker.body if isinstance(it, ast.Assign) and script.code(it.targets[0]) == shape.card]
    if not named:
        advice = marked("Call torch.npu.set_device first.")
        raise Unclear(shape.worker, "where this process learns its card is not clear", advice)
    return named[0]


def _shares(script, shape):
    """Batch and workers of a process are divided before, not inside, the branch that makes the model."""
    by_count = re.compile(rf"//?=?\s*{shape.count}\b")  # args.batch_size = int(args.batch_size / count), or //= count
    shares = [
        it
        for it in script.walk(shape.worker)
        if isinstance(it, (ast.Assign, ast.AugAssign)) and by_count.search(script.code(it))
    ]
    branch = script.parent(shares[0]) if shares else None
    if not isinstance(branch, ast.If) or branch not in shape.worker.body or branch.body == shares:
        return
    if any(it not in branch.body for it in shares):
        raise Unclear(shares[0], "batch and workers are divided in several places", "Divide them before the model.")
    indent = script.indent(branch)
    text = f"{indent}if {script.code(branch.test)}:{script.newline}"
    text += "".join(script.shown(it, indent + script.unit) for it in shares)
    script.insert(script.lines(branch)[0], text)
    for it in shares:
        script.replace(it, "")
