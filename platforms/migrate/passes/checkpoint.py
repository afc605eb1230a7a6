"""Checkpoints are read onto this card and carry the loss scale; under torchrun, too, one process writes them."""

import ast
import re

from helpers.language import N_, Message

_SAVE = {"amp": "amp.state_dict() if {args}.amp else None", "scaler": "scaler.state_dict()"}


def place_checkpoints(script, shape):
    """Mend loading, what is saved, and who saves."""
    script.step = 11
    for load in script.calls(shape.worker, "torch.load"):
        _load(script, shape, load)
    script.step = 12
    savers = (it for it in script.module.body if isinstance(it, ast.FunctionDef) and it is not shape.worker)
    savers = [it.name for it in savers if script.calls(it, "torch.save")]
    calls = script.calls(shape.worker, "torch.save", *savers)
    if len(calls) == 1:
        _save(script, shape, calls[0])


def _load(script, shape, load):
    given = [it for it in (script.keyword(load, "map_location"), *load.args[1:2]) if it]
    if not given:
        script.insert(script.span(load)[1] - 1, f", map_location={shape.place}")
    elif re.search("cuda|npu", script.code(given[0])):
        script.edit(given[0], shape.place)
    # What was read is on this card, or is a number, which has no `to`: best_acc1 = best_acc1.to(args.gpu)
    for node in script.walk(script.inside(load, shape.worker)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = script.code(node.targets[0])
            if script.code(node.value.func) in (f"{target}.to", f"{target}.cuda", f"{target}.npu"):
                script.delete(node)
    statement = script.statement(load)
    if not shape.scale or not isinstance(statement, ast.Assign):
        return
    checkpoint = script.code(statement.targets[0])  # the scale is loaded after the optimizer
    loads = (
        it
        for it in script.methods("load_state_dict")
        if it.args and script.code(it.args[0]).startswith(f"{checkpoint}[")
    )
    loads = {script.code(it.func.value): it for it in loads}
    if shape.optimizer in loads and shape.scale not in loads:
        last = script.statement(loads[shape.optimizer])
        script.after(last, "load", args=shape.args, checkpoint=checkpoint, key=shape.scale)


def _save(script, shape, save):
    names = [script.code(it) for it in save.args]
    made = [it for it in script.walk(shape.worker) if isinstance(it, ast.Assign)]
    made = [it.value for it in made if script.code(it.targets[0]) in names]
    saved = next((it for it in [*save.args, *reversed(made)] if isinstance(it, ast.Dict) and it.values), None)
    if shape.scale and saved is None:
        advice = Message("Put {scale}.state_dict() into it.", scale=shape.scale)
        script.left(save, N_("what is saved is not a dict in the worker"), advice)
    elif shape.scale and shape.scale not in {getattr(it, "value", None) for it in saved.keys}:
        last = saved.values[-1]
        between = f",{script.newline}{script.indent(last)}" if last.lineno > saved.lineno else ", "
        script.append(last, f"{between}{script.quoted(shape.scale)}: {_SAVE[shape.scale].format(args=shape.args)}")
    if not shape.article and shape.distributed:
        # torchrun's processes were not spawned, but they are several all the same
        for around in script.parents(save, ast.If):
            for node in script.walk(around.test):
                if isinstance(node, ast.Attribute) and script.code(node) == shape.spawned:
                    script.edit(node, shape.distributed)
