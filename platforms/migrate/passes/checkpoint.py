"""Checkpoints are read onto this card and carry the loss scale; under torchrun, too, one process writes them."""

import ast
import re

from helpers.launcher.language import marked

from .kinds import shaped

LOAD = """
if $args.amp and $checkpoint.get('$key'):
    $key.load_state_dict($checkpoint['$key'])
"""
SAVE = {"amp": "amp.state_dict() if {args}.amp else None", "scaler": "scaler.state_dict()"}


@shaped(12)
def place_checkpoints(script, shape):
    """Mend loading, what is saved, and who saves."""
    script.step = 11
    for load in script.calls(shape.worker, "torch.load"):
        _load(script, shape, load)
    script.step = 12
    if shape.training.save is not None:
        _save(script, shape)


def _load(script, shape, load):
    given = [it.value for it in load.keywords if it.arg == "map_location"] + load.args[1:2]
    if not given:
        script.insert(script.span(load)[1] - 1, f", map_location={shape.place}")
    elif re.search("cuda|npu", script.code(given[0])):
        script.edit(given[0], shape.place)
    # What was read is on this card, or is a number, which has no `to`: best_acc1 = best_acc1.to(args.gpu)
    for node in script.walk(script.top(load, shape.worker)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = script.code(node.targets[0])
            if script.code(node.value.func) in (f"{target}.to", f"{target}.cuda", f"{target}.npu"):
                script.delete(node)
    statement = script.statement(load)
    if shape.scale and isinstance(statement, ast.Assign):
        _load_scale(script, shape, script.code(statement.targets[0]))


def _load_scale(script, shape, checkpoint):
    """Load the state of the loss scale after the optimizer's."""
    loads = [it for it in script.of(ast.Call) if getattr(it.func, "attr", "") == "load_state_dict"]
    loads = {script.code(it.func.value): it for it in loads if script.code(it.args[0]).startswith(f"{checkpoint}[")}
    last = loads.get(shape.training.optimizer)
    if last is not None and shape.scale not in loads:
        script.after(script.statement(last), LOAD, args=shape.args, checkpoint=checkpoint, key=shape.scale)


def _save(script, shape):
    saved, save = shape.training.saved, shape.training.save
    if shape.scale and saved is None:
        advice = marked(f"Put {shape.scale}.state_dict() into it.")
        script.left(save, "what is saved is not a dict in the worker", advice)
    elif shape.scale and shape.scale not in {getattr(it, "value", None) for it in saved.keys}:
        last, key = saved.values[-1], f"{script.quote}{shape.scale}{script.quote}"
        between = f",{script.newline}{script.indent(last)}" if last.lineno > saved.lineno else ", "
        script.insert(script.span(last)[1], f"{between}{key}: {SAVE[shape.scale].format(args=shape.args)}")
    if script.style == "modern" and shape.spawned and shape.distributed:
        # torchrun's processes were not spawned, but they are several all the same
        for around in script.parents(save):
            for node in script.walk(around.test) if isinstance(around, ast.If) else ():
                if isinstance(node, ast.Attribute) and script.code(node) == shape.spawned:
                    script.edit(node, shape.distributed)
