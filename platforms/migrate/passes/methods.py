"""`x.cuda(...)` becomes `x.npu(...)` and `x.is_cuda` becomes `x.is_npu`, unless x is known to be something else."""

import ast

from ..places import step_of
from .kinds import anywhere

_NAMES = {"cuda": "npu", "is_cuda": "is_npu"}


@anywhere(13)
def rename_methods(script):
    """Rename methods of tensors and modules; of what the script itself defines, nothing."""
    own = {name: Own(script, name) for name in _NAMES}
    for node in script.of(ast.Attribute):
        if node.attr not in _NAMES or own[node.attr].has(node.value):
            continue
        call = script.parent(node)
        called = isinstance(call, ast.Call) and call.func is node
        if (called and _moves(script, node, call)) if node.attr == "cuda" else not own[node.attr].assigned:
            script.edit_span(*script.name_span(node), _NAMES[node.attr], step_of(script, node))


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


def value_of(script, target):
    """What is assigned to `target`, a Name or Attribute: in `a, b = x, y` to b it is y. None for other places."""
    above = script.parent(target)
    if isinstance(above, ast.AnnAssign):
        return above.value if above.target is target else None
    if isinstance(above, ast.Assign):
        return above.value if target in above.targets else None
    several = script.parent(above)
    if isinstance(above, ast.Tuple) and isinstance(several, ast.Assign) and above in several.targets:
        if isinstance(several.value, ast.Tuple) and len(several.value.elts) == len(above.elts):
            return several.value.elts[above.elts.index(target)]
    return None


class Own:
    """What the script defines a method or attribute `name` on, itself."""

    def __init__(self, script, name):
        self.script = script
        around = [script.parent(node) for node in script.of(ast.FunctionDef, ast.AsyncFunctionDef) if node.name == name]
        self.classes = {node.name for node in around if isinstance(node, ast.ClassDef)}
        stored = [node for node in script.of(ast.Attribute) if node.attr == name and isinstance(node.ctx, ast.Store)]
        self.assigned = any(isinstance(script.parent(node), (ast.Assign, ast.AnnAssign)) for node in stored)
        self.holders = set()  # code of what was assigned an instance: "net", "self.net"
        for node in script.of(ast.Name, ast.Attribute) if self.classes else ():
            if self._makes(value_of(script, node)):
                self.holders.add(script.code(node))

    def has(self, node):
        """Whether `node` is an instance of such a class, as far as the script shows."""
        if not self.classes:
            return False
        code = self.script.code(node)
        if code in ("self", "cls"):
            around = [each for each in self.script.definitions(node) if isinstance(each, ast.ClassDef)]
            return bool(around) and around[0].name in self.classes
        return code in self.classes or self._makes(node) or self._holds(node, code) or self._declared(node)

    def _makes(self, node):
        return isinstance(node, ast.Call) and self.script.code(node.func) in self.classes

    def _holds(self, node, code):
        if code not in self.holders:
            return False
        names = [each for each in self.script.bindings(node) if isinstance(each, ast.Name)]
        return all(self._makes(value_of(self.script, each)) for each in names)

    def _declared(self, node):
        """A parameter with such a class for annotation."""
        params = [each for each in self.script.bindings(node) if isinstance(each, ast.arg) and each.annotation]
        return any(self.script.code(each.annotation).strip("'\"") in self.classes for each in params)
