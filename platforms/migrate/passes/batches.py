"""Images and labels go to the card of the process, labels as int32, and so does what is added up over cards."""

import ast
import re

from helpers.launcher.language import marked

from ..places import loop_step
from .kinds import anywhere

CLASSES = ("CrossEntropyLoss", "NLLLoss")
FUNCTIONS = ("torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss")
NEED_INT64 = {"one_hot", "scatter", "scatter_", "scatter_add_", "gather", "index_select", "index_add_", "long"}
COLLECTIVES = {"all_reduce": 0, "reduce": 0, "broadcast": 0, "all_gather": 1, "all_gather_into_tensor": 1}
TYPED = {"torch.FloatTensor", "torch.DoubleTensor", "torch.cuda.FloatTensor", "torch.cuda.DoubleTensor"}


@anywhere(13)
def move_batches(script):
    """Mend the loops over batches of an ImageNet-shaped script, and reductions of any script with NCCL."""
    shape = script.shape
    if shape.full:
        for loop in _loops(shape):
            script.step = loop_step(script, loop)
            _loop(shape, loop)
    script.step = 17
    if shape.full or re.search("nccl|hccl", script.source):
        _reductions(script)


# Batches


def _loops(shape):
    """The innermost loops that call the model or the loss, and where each of them is."""
    for loop in ast.walk(shape.script.module):
        if not isinstance(loop, ast.For) or shape.script.function(loop) in (None, shape.main):
            continue
        inner = [it for it in ast.walk(loop) if isinstance(it, ast.For) and it is not loop]
        if _data(loop) and not any(_data(it) for it in inner) and _losses(shape, loop):
            yield loop


def _data(loop):
    """The names of what a loop gets from its loader: of `for i, (images, target) in enumerate(…)` the two."""
    target = loop.target
    if isinstance(target, ast.Tuple) and getattr(getattr(loop.iter, "func", None), "id", "") == "enumerate":
        target = target.elts[-1]
    if isinstance(target, (ast.Tuple, ast.List)) and all(isinstance(it, ast.Name) for it in target.elts):
        return [it.id for it in target.elts]
    return []


def _losses(shape, loop):
    """The calls of a loss with two arguments in a loop."""
    script, training = shape.script, shape.training
    names = {it.targets[0].id for it in training.losses} | {"criterion"}
    names |= {inner for inner, outer in training.given.items() if outer in names}
    return [
        it
        for it in ast.walk(loop)
        if isinstance(it, ast.Call) and len(it.args) > 1 and script.name(it.func) in {*names, *FUNCTIONS}
    ]


def _loop(shape, loop):
    script, data, function = shape.script, _data(loop), shape.script.function(loop)
    place, label = shape.place_in(function), _label(shape, loop)
    moved = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("cuda", "npu", "to"):
            name = _root(node.func.value)
            if name in data:
                moved.add(name)
                _move(script, node, place, name == label)
    inputs = _inputs(shape, loop) - moved
    lines = [f"{it} = {it}{_int32(script) if it == label else ''}.to({place})" for it in data if it in inputs]
    if lines:
        script.before(loop.body[0], "\n".join(lines))


def _root(node):
    """x of `x`, of `x[0]`, and of `x.to(torch.int32)`."""
    while isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", None)


def _inputs(shape, loop):
    """Names that a loop gives to the model or the loss just as they came from the loader."""
    training = shape.training
    models = {training.model, training.in_trainer(training.model), "model"} - {None}
    given = [it.args for it in ast.walk(loop) if isinstance(it, ast.Call) and shape.script.name(it.func) in models]
    given += [call.args[1:2] for call in _losses(shape, loop)]
    names = {it.id for args in given for it in args if isinstance(it, ast.Name)}
    inside = (it for part in loop.body for it in ast.walk(part) if isinstance(it, ast.Name))
    return names - {it.id for it in inside if isinstance(it.ctx, ast.Store)}


def _int32(script):
    return f".to({script.alias('torch')}.int32)"


def _move(script, call, place, is_label):
    """`x.cuda(gpu, non_blocking=True)` becomes `x.to(place)`; a move to the function's own device stays."""
    first = script.code(call.args[0]) if call.args else ""
    if call.func.attr == "to" and (first.endswith(("int32", "float32", "half", "float16")) or "dtype" in first):
        return
    source = script.code(call.func.value)
    if is_label and "int32" not in script.code(call):
        source += _int32(script)
    script.edit(call, f"{source}.to({place})")


def _label(shape, loop):
    """The name in a loop that is class numbers and may be int32, or None."""
    script, training = shape.script, shape.training
    made = [script.called(training.loss_made(it.value)).rpartition(".")[2] for it in training.losses]
    found = {_root(call.args[1]) for call in _losses(shape, loop)} & set(_data(loop))
    by_class = all(name in CLASSES for name in made) and made
    by_function = any(script.name(it.func) in FUNCTIONS for it in _losses(shape, loop))
    if len(found) != 1 or not (by_class or by_function):
        return None
    name = found.pop()
    why = _needs_int64(script, loop, name)
    if why is not None:
        advice = marked("Make int32 of what goes into the loss, if speed matters.")
        script.left(why, f"{name} stays int64: {script.code(why)[:40]} needs it", advice)
        return None
    return name


def _needs_int64(script, scope, name, deep=True):
    """An expression in `scope`, or in a function that it calls, that does not take int32 for `name`, or None."""
    functions = {it.name: it for it in script.module.body if isinstance(it, ast.FunctionDef)} if deep else {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Subscript) and _mentions(node.slice, name):
            return node
        if not isinstance(node, ast.Call):
            continue
        word = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if word in NEED_INT64 and _mentions(node, name):
            return node
        if word in functions:
            for parameter, value in zip(functions[word].args.args, node.args, strict=False):
                found = getattr(value, "id", None) == name
                found = _needs_int64(script, functions[word], parameter.arg, deep=False) if found else None
                if found is not None:
                    return found
    return None


def _mentions(node, name):
    return any(isinstance(it, ast.Name) and it.id == name for it in ast.walk(node))


# What is added up over cards


def _reductions(script):
    for call in script.calls(script.module, *(f"torch.distributed.{word}" for word in COLLECTIVES)):
        function, place = script.function(call), COLLECTIVES[script.called(call).rpartition(".")[2]]
        name = getattr(call.args[place], "id", None) if len(call.args) > place else None
        for node in ast.walk(function) if function and name else ():
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
                _on_card(script, node.value)


def _on_card(script, made):
    """HCCL takes neither tensors of the CPU nor float64."""
    name, torch, npu = script.called(made), script.alias("torch"), f"{script.quote}npu{script.quote}"
    if name in TYPED:
        given = ", ".join(map(script.code, made.args))
        script.edit(made, f"{torch}.tensor({given}, dtype={torch}.float32, device={npu})")
        return
    if name not in {f"torch.{it}" for it in ("tensor", "as_tensor", "zeros", "ones", "full", "empty")}:
        return
    words = {it.arg: it.value for it in made.keywords}
    if script.name(words.get("dtype")) in ("torch.float64", "torch.double"):
        script.edit(words["dtype"], f"{torch}.float32")
    if "device" not in words:
        script.insert(script.span(script.arguments(made)[-1])[1], f", device={npu}")
    elif script.code(words["device"]).strip("'\"") == "cpu":
        script.edit(words["device"], npu)
