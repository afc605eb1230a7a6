"""Images and labels go to the card of the process, labels as int32."""

import ast

from helpers.language import N_, Message

from ..steps import loop_step

_CLASSES = ("CrossEntropyLoss", "NLLLoss")
_FUNCTIONS = ("torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss")
_NEED_INT64 = {"one_hot", "scatter", "scatter_", "scatter_add_", "gather", "index_select", "index_add_", "long"}


def move_batches(script, shape):
    """Mend the innermost loops that call the loss on what they get from a loader."""
    for loop in script.walk(script.module):
        if not isinstance(loop, ast.For) or script.function(loop) in (None, shape.main):
            continue
        inner = [it for it in script.walk(loop) if isinstance(it, ast.For) and it is not loop]
        losses = _losses(script, shape, loop)
        if _data(loop) and losses and not any(map(_data, inner)):
            script.step = loop_step(script, loop)
            _loop(script, shape, loop, losses)


def _data(loop):
    """The names of what a loop gets from its loader: of `for i, (images, target) in enumerate(…)` the two."""
    target = loop.target
    if isinstance(target, ast.Tuple) and getattr(getattr(loop.iter, "func", None), "id", "") == "enumerate":
        target = target.elts[-1]
    names = getattr(target, "elts", ())
    return [it.id for it in names] if all(isinstance(it, ast.Name) for it in names) else []


def _losses(script, shape, loop):
    names = {it.targets[0].id for it in shape.losses} | {"criterion", *_FUNCTIONS}
    names |= {inner for inner, outer in shape.given.items() if outer in names}
    return [it for it in script.calls(loop, *names) if len(it.args) > 1]


def _loop(script, shape, loop, losses):
    data, place = _data(loop), shape.place_in(script.function(loop))
    label = _label(script, shape, loop, losses)
    int32 = f".to({script.alias('torch')}.int32)"
    for node in script.walk(loop):
        if getattr(getattr(node, "func", None), "attr", "") in ("cuda", "npu", "to"):
            name = _root(node.func.value)
            if name in data:
                _move(script, node, place, int32 if name == label else "")


def _root(node):
    """x of `x`, of `x[0]`, and of `x.to(torch.int32)`."""
    while isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", None)


def _move(script, call, place, int32):
    """`x.cuda(gpu, non_blocking=True)` becomes `x.to(place)`; a change of the type of numbers stays."""
    first = script.code(call.args[0]) if call.args else ""
    if call.func.attr == "to" and (first.endswith(("int32", "float32", "half", "float16")) or "dtype" in first):
        return
    int32 = "" if "int32" in script.code(call) else int32
    script.edit(call, f"{script.code(call.func.value)}{int32}.to({place})")


def _label(script, shape, loop, losses):
    made = [script.called(shape.loss_made(it.value)).rpartition(".")[2] for it in shape.losses]
    name, *others = {_root(call.args[1]) for call in losses} & {*_data(loop)} or {None}
    by_class = all(it in _CLASSES for it in made) and made
    by_function = any(script.called(it) in _FUNCTIONS for it in losses)
    if name is None or others or not (by_class or by_function):
        return None
    why = _needs_int64(script, loop, name)
    if why is None:
        return name
    advice = N_("Make int32 of what goes into the loss, if speed matters.")
    script.left(why, Message("{name} stays int64: {why} needs it", name=name, why=script.code(why)[:40]), advice)
    return None


def _needs_int64(script, loop, name):
    """An expression in a loop that does not take int32 for `name`, or None."""
    for node in script.walk(loop):
        called = getattr(node, "func", None)
        word = getattr(called, "attr", getattr(called, "id", ""))
        inside = node.slice if isinstance(node, ast.Subscript) else node if word in _NEED_INT64 else None
        if inside and any(isinstance(it, ast.Name) and it.id == name for it in script.walk(inside)):
            return node
    return None
