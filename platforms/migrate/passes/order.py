"""An optimizer is made after its model has moved: on an NPU a move makes new parameters, and it would train the old.

PyTorch moves a module in place only between devices that share their kind of tensor, as the CPU and CUDA do
(torch.nn.Module._apply).
"""

import ast

from helpers.launcher.language import marked

from .kinds import anywhere

_MOVES = ("cuda", "npu", "to")
_WHY = marked("On an NPU a move makes new parameters, and the optimizer trains the old ones: make it after the move.")
_SWAP = " " + marked(
    "Or begin the script with torch.__future__.set_swap_module_params_on_conversion(True), with which the parameters "
    "stay the same objects."
)


@anywhere(11)
def optimize_after_move(script):
    """Put an optimizer right after the move of its model; where something uses it in between, say so."""
    moves = [(node, _path(node.func.value)) for node in script.of(ast.Call) if _moves(script, node)]
    for node, path in moves:
        if _given_with_optimizer(script, node, path):
            script.left(node, "a model moves after its optimizer was made, unless it is there already", _WHY + _SWAP)
    _stay_on_card(script, moves)
    for call in script.of(ast.Call) if moves else ():
        if not (models := _models(call)):
            continue
        if ["self"] in models and any(_from_outside(script, node, call) for node, _ in moves):
            script.left(call, "an optimizer of self.parameters() is made before its module can move", _WHY)
            continue
        later = [node for node, path in moves if _touches(path, models) and _follows(script, node, path, call)]
        if later:
            _settle(script, script.statement(call), later)


def _models(call):
    """The paths of the models whose parameters a call gets, where its name is that of a class."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = [*call.args, *(it.value for it in call.keywords)][:1] if name[:1].isupper() else []
    parameters = (it for part in given for it in ast.walk(part) if getattr(it, "attr", "").endswith("parameters"))
    return [path for it in parameters if (path := _path(it.value))]


def _moves(script, call):
    """Whether a call is `x.cuda(…)`, `x.npu(…)` or `x.to(…)` with something that can be a device."""
    if getattr(call.func, "attr", "") not in _MOVES or script.names(call):
        return False
    given = call.args + [it.value for it in call.keywords if it.arg == "device"]
    codes = [script.code(it) for it in given]
    return call.func.attr != "to" or any(not it.startswith("torch.") or "device" in it for it in codes)


def _stay_on_card(script, moves):
    """A model that goes to the CPU to be saved, and back: save copies, since each move would make new parameters."""
    for call in script.of(ast.Call) if moves else ():
        model = _path(call.func.value) if getattr(call.func, "attr", "") == "cpu" else []
        if not model or not any(_touches(path, [model]) and _after(script, node, call) for node, path in moves):
            continue
        above = script.parent(call)
        saved = script.parent(above) if getattr(above, "attr", "") == "state_dict" else None
        if isinstance(saved, ast.Call) and not script.arguments(saved):
            name = script.code(call.func.value)
            script.edit(saved, f"{{k: v.cpu() for k, v in {name}.state_dict().items()}}", 12)
        elif isinstance(above, ast.Expr):
            script.left(call, "a model goes to the CPU and back, away from its optimizer", _WHY + _SWAP)


def _after(script, move, call):
    return script.function(move) is script.function(call) and call.end_lineno < move.lineno


def _given_with_optimizer(script, move, path):
    """Whether what moves is a model that a function gets together with its optimizer: the caller has made both."""
    function = script.function(move)
    names = [it.arg for it in [*function.args.args, *function.args.kwonlyargs]] if function else []
    if len(path) != 1 or path[0] not in names or not any("optim" in it.lower() for it in names):
        return False
    trained = {it[-1] for call in script.of(ast.Call) for it in _models(call)}
    return path[0] in trained or "model" in path[0]


def _from_outside(script, move, call):
    """Whether a move can be that of a module in whose __init__ an optimizer is made."""
    around = script.definitions(call)
    return bool(around) and around[0].name == "__init__" and around[-1] not in script.parents(move)


def _path(node):
    """["self", "net"] of `self.net[0]`, [] of what does not start with a name."""
    parts = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        parts = [node.attr, *parts] if isinstance(node, ast.Attribute) else []
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def _touches(path, models):
    """Whether a move of `path` moves one of the models, or a part of it."""
    return bool(path) and any(path[: len(it)] == it[: len(path)] for it in models)


def _follows(script, move, path, call):
    """Whether a move comes after an optimizer in the same function, and the model is not made anew in between."""
    first, last = call.end_lineno, script.statement(move).lineno
    anew = (
        it
        for it in script.of(ast.Name, ast.Attribute)
        if isinstance(it.ctx, ast.Store) and _path(it) == path and first < it.lineno < last
    )
    return script.function(move) is script.function(call) and first < move.lineno and not any(anew)


def _in_block(script, node, block):
    """The statement of a block in which a node is, None where it is elsewhere or may run several times."""
    inside = next((it for it in (node, *script.parents(node)) if it in block), None)
    return None if isinstance(inside, (ast.For, ast.While, *script.DEFINITIONS)) else inside


def _settle(script, statement, moves):
    """Move the statement of an optimizer behind the last of the moves in its block, or remark on it."""
    block = script.block(statement)
    behind = [_in_block(script, move, block) for move in moves]
    name = script.code(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    if not name or None in behind:
        script.left(statement, "an optimizer is made before its model moves", _WHY)
        return
    last = max(behind, key=lambda it: it.lineno)
    between = block[block.index(statement) + 1 : block.index(last) + 1]
    used = any(script.code(it) == name for part in between for it in script.walk(part) if isinstance(it, ast.expr))
    if used:
        script.left(statement, "an optimizer is made before its model moves, and is used in between", _WHY)
        return
    (start, end), after = script.lines(statement), script.lines(last)[1]
    text = script.source[start:end]
    if not script.source[:after].endswith("\n"):
        text = script.newline + text.removesuffix(script.newline)
    script.edit_span(start, end, "")
    script.insert(after, text)
