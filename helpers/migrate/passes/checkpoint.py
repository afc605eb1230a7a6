"""Checkpoints are read onto this card, carry the loss scale and the schedule, and have one writer a host."""

import ast

from ..tree import Unclear
from .kinds import shaped

AMP = """
if $args.amp and $checkpoint.get('amp'):
    amp.load_state_dict($checkpoint['amp'])
"""
SCALER = """
if $args.amp and $checkpoint.get('scaler'):
    scaler.load_state_dict($checkpoint['scaler'])
"""
SCHEDULER = """
if 'scheduler' in $checkpoint:
    $scheduler.load_state_dict($checkpoint['scheduler'])
"""


@shaped(12)
def place_checkpoints(script, shape):
    """Mend loading, what is saved, and who saves."""
    for load in shape.script.calls(shape.worker, "torch.load"):
        _load(shape, load)
    _save(shape)


def _load(shape, load):
    script, place = shape.script, shape.place
    given = next((it for it in load.keywords if it.arg == "map_location"), None)
    value = given.value if given else load.args[1] if len(load.args) > 1 else None
    old = _old_place(shape, value)
    if value is None:
        script.insert(script.span(load)[1] - 1, f", map_location={place}")
    elif script.code(value) != place and not _on_cpu(script, value):
        script.edit(value, place)
    if old is not None:
        script.replace(old, "")
    statement = script.statement(load)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return
    name = statement.targets[0].id
    _stay(shape, name)
    _states(shape, name)


def _old_place(shape, value):
    """The statement `loc = "cuda:0"` that only served this load, or None."""
    if not isinstance(value, ast.Name):
        return None
    for node in ast.walk(shape.worker):
        if isinstance(node, ast.Assign) and shape.script.code(node.targets[0]) == value.id:
            text = shape.script.code(node.value)
            if ("cuda" in text or ".type" in text) and "torch.device" not in text:
                return node
    return None


def _on_cpu(script, value):
    return isinstance(value, ast.Lambda) or "cpu" in script.code(value)


def _read_from(script, node, checkpoint):
    """Whether an expression is `checkpoint["…"]`."""
    return isinstance(node, ast.Subscript) and script.code(node.value) == checkpoint


def _stay(shape, checkpoint):
    """What was read is on this card, or is a number: `best_acc1 = best_acc1.to(args.gpu)` would fail on one."""
    script = shape.script
    names = {
        script.code(it.targets[0]) for it in ast.walk(shape.worker)
        if isinstance(it, ast.Assign) and _read_from(script, it.value, checkpoint)
    }  # fmt: skip
    for node in ast.walk(shape.worker):
        if isinstance(node, ast.Assign) and script.code(node.targets[0]) in names:
            call = node.value
            moved = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("to", "cuda", "npu")
            if moved and script.code(call.func.value) == script.code(node.targets[0]):
                if len(script.block(node)) == 1:
                    script.replace(script.statement(next(script.parents(node))), "")
                else:
                    script.replace(node, "")


def _states(shape, checkpoint):
    """Load the state of the loss scale and of the schedule after the optimizer's."""
    script, training = shape.script, shape.training
    loads = [
        it for it in ast.walk(shape.worker)
        if isinstance(it, ast.Call) and getattr(it.func, "attr", "") == "load_state_dict"
        and it.args and _read_from(script, it.args[0], checkpoint)
    ]  # fmt: skip
    of_optimizer = [it for it in loads if script.code(it.func.value) == training.optimizer]
    if not of_optimizer:
        return
    last = script.statement(of_optimizer[0])
    loaded = {script.code(it.func.value) for it in loads}
    words = {"args": shape.args, "checkpoint": checkpoint}
    if shape.initialized == "apex" and "amp" not in loaded:
        script.after(last, AMP, **words)
    if shape.initialized == "scaler" and "scaler" not in loaded:
        script.after(last, SCALER, **words)
    if training.scheduler and training.scheduler not in loaded:
        script.after(last, SCHEDULER, scheduler=training.scheduler, **words)


def _save(shape):
    script, training, saved = shape.script, shape.training, shape.training.saved
    if training.save is None:
        return
    if saved is not None:
        keys = {getattr(it, "value", None) for it in saved.keys}
        quote = script.quote
        new = []
        if training.scheduler and "scheduler" not in keys:
            new.append(f"{quote}scheduler{quote}: {training.scheduler}.state_dict()")
        if shape.initialized == "apex" and "amp" not in keys:
            new.append(f"{quote}amp{quote}: amp.state_dict() if {shape.args}.amp else None")
        if shape.initialized == "scaler" and "scaler" not in keys:
            new.append(f"{quote}scaler{quote}: scaler.state_dict()")
        _add(script, saved, new)
    elif shape.initialized:
        script.left(training.save.lineno, "what is saved is not a dict in the worker",
                          "Put the state of amp and of the schedule into it.")  # fmt: skip
    _writer(shape)


def _add(script, saved, new):
    """Add items to a dict, each on a line of its own where the others are."""
    if not new or not saved.values:
        return
    last = saved.values[-1]
    apart = saved.keys[0] is not None and saved.values[-1].lineno > saved.lineno
    indent = script.source[: script.span(last)[0]].rpartition("\n")[2]
    indent = indent[: len(indent) - len(indent.lstrip())]
    between = f",{script.newline}{indent}" if apart else ", "
    script.insert(script.span(last)[1], "".join(between + it for it in new))


def _writer(shape):
    """One process of a host writes, and the others wait for it."""
    script, count = shape.script, shape.count_text
    statement = script.statement(shape.training.save)
    guard = next(script.parents(statement))
    rank = shape.group_keyword("rank")
    several = shape.distributed
    if not isinstance(guard, ast.If) or not rank:
        if rank and count and isinstance(statement, ast.Expr):
            test = f"not {several} or {rank} % {count} == 0" if several else f"{rank} % {count} == 0"
            text = f"{script.indent(statement)}if {test}:{script.newline}"
            text += script.shown(statement, script.indent(statement) + script.unit)
            text += _wait(shape, script.indent(statement))
            script.edit_span(*script.lines(statement), text)
        return
    if shape.spawned and several and shape.spawned != several and rank in script.code(guard.test):
        _by_rank(shape, guard.test, several)
    following = script.block(guard)[script.block(guard).index(guard) + 1 :][:1]
    if f"{script.alias('torch.distributed')}.barrier" not in "".join(map(script.code, following)):
        if guard.orelse or script.is_elif(guard):
            raise Unclear(guard, "who writes checkpoints is not clear", "Let one process write and the others wait.")
        script.insert(script.lines(guard)[1], _wait(shape, script.indent(guard)))


def _by_rank(shape, test, several):
    """Whoever started the processes, one a host writes: `not spawned or (spawned and rank % n == 0)`."""
    script = shape.script
    is_or = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
    if is_or and script.code(test.values[0]) == f"not {shape.spawned}":
        last = test.values[-1]
        parts = last.values if isinstance(last, ast.BoolOp) and isinstance(last.op, ast.And) else [last]
        rest = [script.code(it) for it in parts if script.code(it) != shape.spawned]
        script.edit(test, f"not {several} or {' and '.join(rest)}")
        return
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and script.code(node) == shape.spawned:
            script.edit(node, several)


def _wait(shape, indent):
    script = shape.script
    barrier = f"{script.alias('torch.distributed')}.barrier()  # nobody resumes before the checkpoint is written"
    return script.write(f"if {shape.distributed}:\n    {barrier}" if shape.distributed else barrier, indent)
