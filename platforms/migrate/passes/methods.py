"""`x.cuda(...)` becomes `x.npu(...)` and `x.is_cuda` becomes `x.is_npu`, unless x is known to be something else."""

import ast

from ..places import step_of

_NAMES = {"cuda": "npu", "is_cuda": "is_npu"}


def rename_methods(script):
    """Rename methods of tensors and modules; of what the script itself defines, nothing."""
    for name, new in _NAMES.items():
        found = [node for node in script.of(ast.Attribute) if node.attr == name]
        own, assigned = _own_classes(script, name), any(isinstance(node.ctx, ast.Store) for node in found)
        for node in found:
            call = script.parent(node)
            called = isinstance(call, ast.Call) and call.func is node
            moves = (called and _moves(script, node, call)) if name == "cuda" else not assigned
            if moves and not (own and _is_own(script, node.value, own)):
                script.edit_span(*script.name_span(node), new, step_of(script, node))


def _moves(script, node, call):
    """Whether a call of `.cuda` can be the method of a tensor or module, by what it is called on and with."""
    names = script.names(node)
    if not names:
        return True
    first = node.value
    while isinstance(first, ast.Attribute):
        first = first.value
    if any(isinstance(each, ast.Import) for each in script.bindings(first)):  # `import numba; numba.cuda(...)`
        return False
    # What another file offers under a name: a model or tensor, if the arguments allow that.
    return not call.args and not any(name.startswith("torch.") for name in names)


def _own_classes(script, name):
    """The classes in which the script defines a method `name` itself."""
    made = (node for node in script.of(ast.FunctionDef, ast.AsyncFunctionDef) if node.name == name)
    return {around.name for around in map(script.parent, made) if isinstance(around, ast.ClassDef)}


def _is_own(script, node, classes):
    """Whether `node` is one of these classes or an instance, as far as the script shows."""
    code = script.code(node)
    if code in ("self", "cls"):
        return getattr(next(script.parents(node, ast.ClassDef), None), "name", "") in classes
    if code in classes or _makes(script, node, classes):
        return True
    made = [it for it in script.of(ast.Assign) if code in map(script.code, it.targets)]
    if isinstance(node, ast.Name):
        names = script.bindings(node)
        made = [it for it in made if any(target in names for target in it.targets)]
        if len(made) < len(names):  # something else binds it, too
            return False
    return bool(made) and all(_makes(script, it.value, classes) for it in made)


def _makes(script, node, classes):
    return isinstance(node, ast.Call) and script.code(node.func) in classes
