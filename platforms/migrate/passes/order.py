"""Loss, optimizer and resume go behind the data loaders, as in the guide."""

import ast

from helpers.language import N_, Message


def regroup(script, shape):
    """Move them, out in step 9, in again in step 11, unless something between the two places needs them."""
    schedulers = {it.targets[0].id for it in script.assigned(shape.worker, "torch.optim.lr_scheduler.*")}
    for call in script.calls(shape.worker, *(f"{name}.step" for name in schedulers)):
        advice = N_("The guide's step 9 takes it out, and then the learning rate never falls.")
        script.left(call, Message("{call} stays", call=script.code(call)), advice)
    group, between = _places(script, shape)
    if not group or script.style != "article" or _depends(script, group, between):
        return
    start, end = script.lines(group[0])[0], script.lines(group[-1])[1]
    script.edit_span(start, end, "")
    script.insert(script.lines(between[-1])[1], script.newline + script.source[start:end], 11)


def _places(script, shape):
    """(statements from the loss to the resume, those behind them up to the last loader); empty where unclear."""
    body = shape.worker.body
    marks = [*shape.losses, shape.optimizer_statement, *script.calls(shape.worker, "torch.load")]
    loaders = [body.index(it) for it in script.assigned(shape.worker, "*.DataLoader") if it in body]
    tops = [script.inside(it, shape.worker) for it in marks if it is not None]
    if shape.optimizer_statement is None or not loaders:
        return [], []
    places = [body.index(it) for it in tops]
    group, between = body[min(places) : max(places) + 1], body[max(places) + 1 : loaders[-1] + 1]
    return (group, between) if loaders[0] > max(places) else ([], [])


def _depends(script, group, between):
    (read, written), (read_later, written_later) = (_names(script, part) for part in (group, between))
    return bool(written & (read_later | written_later) or written_later & read)


def _names(script, statements):
    nodes = [it for part in statements for it in ast.walk(part) if isinstance(it, (ast.Name, ast.Attribute))]
    kinds = ([it for it in nodes if isinstance(it.ctx, ast.Load) == load] for load in (True, False))
    return [{script.code(it) for it in kind} for kind in kinds]
