"""Checkpoints are read onto this card, carry the loss scale and the schedule, and have one writer a host."""

import ast

from ..syntax import Unclear, careful

STEP = 12

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


@careful
def apply(script):
    """Mend loading, what is saved, and who saves."""
    shape = script.shape
    if not shape.full:
        return None
    for load in shape.tree.calls(shape.worker, "torch.load"):
        _load(shape, load)
    _save(shape)
    return script.edited()


def _load(shape, load):
    tree, place = shape.tree, shape.place
    given = next((it for it in load.keywords if it.arg == "map_location"), None)
    value = given.value if given else load.args[1] if len(load.args) > 1 else None
    old = _old_place(shape, value)
    if value is None:
        tree.script.insert(tree.span(load)[1] - 1, f", map_location={place}")
    elif tree.code(value) != place and not _on_cpu(tree, value):
        tree.edit(value, place)
    if old is not None:
        tree.replace(old, "")
    statement = tree.statement(load)
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
        if isinstance(node, ast.Assign) and shape.tree.code(node.targets[0]) == value.id:
            text = shape.tree.code(node.value)
            if ("cuda" in text or ".type" in text) and "torch.device" not in text:
                return node
    return None


def _on_cpu(tree, value):
    return isinstance(value, ast.Lambda) or "cpu" in tree.code(value)


def _read_from(tree, node, checkpoint):
    """Whether an expression is `checkpoint["…"]`."""
    return isinstance(node, ast.Subscript) and tree.code(node.value) == checkpoint


def _stay(shape, checkpoint):
    """What was read is on this card, or is a number: `best_acc1 = best_acc1.to(args.gpu)` would fail on one."""
    tree = shape.tree
    names = {
        tree.code(it.targets[0]) for it in ast.walk(shape.worker)
        if isinstance(it, ast.Assign) and _read_from(tree, it.value, checkpoint)
    }  # fmt: skip
    for node in ast.walk(shape.worker):
        if isinstance(node, ast.Assign) and tree.code(node.targets[0]) in names:
            call = node.value
            moved = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("to", "cuda", "npu")
            if moved and tree.code(call.func.value) == tree.code(node.targets[0]):
                if len(tree.block(node)) == 1:
                    tree.replace(tree.statement(next(tree.parents(node))), "")
                else:
                    tree.replace(node, "")


def _states(shape, checkpoint):
    """Load the state of the loss scale and of the schedule after the optimizer's."""
    tree, training = shape.tree, shape.training
    loads = [
        it for it in ast.walk(shape.worker)
        if isinstance(it, ast.Call) and getattr(it.func, "attr", "") == "load_state_dict"
        and it.args and _read_from(tree, it.args[0], checkpoint)
    ]  # fmt: skip
    of_optimizer = [it for it in loads if tree.code(it.func.value) == training.optimizer]
    if not of_optimizer:
        return
    last = tree.statement(of_optimizer[0])
    loaded = {tree.code(it.func.value) for it in loads}
    words = {"args": shape.args, "checkpoint": checkpoint}
    if shape.initialized == "apex" and "amp" not in loaded:
        tree.after(last, AMP, **words)
    if shape.initialized == "scaler" and "scaler" not in loaded:
        tree.after(last, SCALER, **words)
    if training.scheduler and training.scheduler not in loaded:
        tree.after(last, SCHEDULER, scheduler=training.scheduler, **words)


def _save(shape):
    tree, training, saved = shape.tree, shape.training, shape.training.saved
    if training.save is None:
        return
    if saved is not None:
        keys = {getattr(it, "value", None) for it in saved.keys}
        quote = tree.quote
        new = []
        if training.scheduler and "scheduler" not in keys:
            new.append(f"{quote}scheduler{quote}: {training.scheduler}.state_dict()")
        if shape.initialized == "apex" and "amp" not in keys:
            new.append(f"{quote}amp{quote}: amp.state_dict() if {shape.args}.amp else None")
        if shape.initialized == "scaler" and "scaler" not in keys:
            new.append(f"{quote}scaler{quote}: scaler.state_dict()")
        _add(tree, saved, new)
    elif shape.initialized:
        shape.script.left(training.save.lineno, "what is saved is not a dict in the worker",
                          "Put the state of amp and of the schedule into it.")  # fmt: skip
    _writer(shape)


def _add(tree, saved, new):
    """Add items to a dict, each on a line of its own where the others are."""
    if not new or not saved.values:
        return
    last = saved.values[-1]
    apart = saved.keys[0] is not None and saved.values[-1].lineno > saved.lineno
    indent = tree.text[: tree.span(last)[0]].rpartition("\n")[2]
    indent = indent[: len(indent) - len(indent.lstrip())]
    between = f",{tree.script.newline}{indent}" if apart else ", "
    tree.script.insert(tree.span(last)[1], "".join(between + it for it in new))


def _writer(shape):
    """One process of a host writes, and the others wait for it."""
    tree, count = shape.tree, shape.count_text
    statement = tree.statement(shape.training.save)
    guard = next(tree.parents(statement))
    rank = shape.group_keyword("rank")
    several = shape.distributed
    if not isinstance(guard, ast.If) or not rank:
        if rank and count and isinstance(statement, ast.Expr):
            test = f"not {several} or {rank} % {count} == 0" if several else f"{rank} % {count} == 0"
            text = f"{tree.indent(statement)}if {test}:{shape.script.newline}"
            text += tree.shown(statement, tree.indent(statement) + tree.unit)
            text += _wait(shape, tree.indent(statement))
            shape.script.edit_span(*tree.lines(statement), text)
        return
    if shape.spawned and several and shape.spawned != several and rank in tree.code(guard.test):
        _by_rank(shape, guard.test, several)
    following = tree.block(guard)[tree.block(guard).index(guard) + 1 :][:1]
    if f"{tree.alias('torch.distributed')}.barrier" not in "".join(map(tree.code, following)):
        if guard.orelse or tree.is_elif(guard):
            raise Unclear(guard, "who writes checkpoints is not clear", "Let one process write and the others wait.")
        shape.script.insert(tree.lines(guard)[1], _wait(shape, tree.indent(guard)))


def _by_rank(shape, test, several):
    """Whoever started the processes, one a host writes: `not spawned or (spawned and rank % n == 0)`."""
    tree = shape.tree
    is_or = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
    if is_or and tree.code(test.values[0]) == f"not {shape.spawned}":
        last = test.values[-1]
        parts = last.values if isinstance(last, ast.BoolOp) and isinstance(last.op, ast.And) else [last]
        rest = [tree.code(it) for it in parts if tree.code(it) != shape.spawned]
        tree.edit(test, f"not {several} or {' and '.join(rest)}")
        return
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and tree.code(node) == shape.spawned:
            tree.edit(node, several)


def _wait(shape, indent):
    tree = shape.tree
    barrier = f"{tree.alias('torch.distributed')}.barrier()  # nobody resumes before the checkpoint is written"
    return tree.write(f"if {shape.distributed}:\n    {barrier}" if shape.distributed else barrier, indent)
