"""Loss, optimizer and resume go behind the data loaders, as in the guide: out in step 9, in again in step 11."""

import ast

from helpers.launcher.language import marked

from .kinds import shaped


@shaped(9)
def regroup(script, shape):
    """Move the statements where nothing between the two places needs them; elsewhere they are mended where they are."""
    steps = script.calls(shape.worker, *(f"{name}.step" for name in _schedulers(script, shape)))
    for call in steps:
        advice = marked("The guide's step 9 takes it out, and then the learning rate never falls.")
        script.left(call, f"{script.code(call)} stays", advice)
    group, between = _places(script, shape)
    if not group or script.style != "article" or _depends(script, group, between):
        return
    start, end = script.lines(group[0])[0], script.lines(group[-1])[1]
    after = script.lines(between[-1])[1]
    if script.source[:after].endswith("\n"):
        script.edit_span(start, end, "")
        script.insert(after, script.newline + script.source[start:end], 11)


def _schedulers(script, shape):
    made = script.assigned(shape.worker, "torch.optim.lr_scheduler.*")
    return {it.targets[0].id for it in made if isinstance(it.targets[0], ast.Name)}


def _places(script, shape):
    """(statements from the loss to the resume, those behind them up to the last loader); empty where unclear."""
    body, training = shape.worker.body, shape.training
    marks = [*training.losses, training.optimizer_statement, *script.calls(shape.worker, "torch.load")]
    loaders = [it for it in body if isinstance(it, ast.Assign) and script.called(it.value).endswith(".DataLoader")]
    tops = [script.top(it, shape.worker) for it in marks if it is not None]
    if training.optimizer_statement is None or not loaders or any(it not in body for it in tops):
        return [], []
    places, last = [body.index(it) for it in tops], body.index(loaders[-1])
    group, between = body[min(places) : max(places) + 1], body[max(places) + 1 : last + 1]
    return (group, between) if between and loaders[0] in between else ([], [])


def _depends(script, group, between):
    """Whether one of the two parts changes what the other uses."""
    (read, written), (read_later, written_later) = (_names(script, part) for part in (group, between))
    return bool(written & (read_later | written_later) or written_later & read)


def _names(script, statements):
    nodes = [it for part in statements for it in ast.walk(part) if isinstance(it, (ast.Name, ast.Attribute))]
    kinds = ([it for it in nodes if isinstance(it.ctx, ast.Load) == load] for load in (True, False))
    return [{script.code(it) for it in kind} for kind in kinds]
