"""`x.cuda(...)` becomes `x.npu(...)` and `x.is_cuda` becomes `x.is_npu`, unless x is known to be something else."""

import libcst as cst

from ..places import step_of

STEP = 15
_NAMES = {"cuda": "npu", "is_cuda": "is_npu"}


def apply(script):
    """Rename methods of tensors and modules; of what the script itself defines, nothing."""
    own = {name: Own(script, name) for name in _NAMES}
    for node in script.of(cst.Attribute):
        name = node.attr.value
        if name not in _NAMES or own[name].has(node.value):
            continue
        parent = script.parent(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        if name == "cuda" and not (called and _moves(script, node, parent)):
            continue
        if name == "is_cuda" and own[name].assigned:
            continue
        script.edit(node.attr, _NAMES[name], step_of(script, node))


def _moves(script, node, call):
    """Whether a call of `.cuda` can be the method of a tensor or module, by what it is called on and with."""
    names = script.names(node)
    if not names:
        return True
    if _is_module(script, node.value):  # `import numba; numba.cuda(...)` is a function
        return False
    # What another file offers under a name: a model or tensor, if the arguments allow that.
    return not any(arg.keyword is None for arg in call.args) and not any(name.startswith("torch.") for name in names)


def _is_module(script, node):
    while isinstance(node, cst.Attribute):
        node = node.value
    return any(isinstance(each, cst.Import) for each in script.bindings(node))


def value_of(script, target):
    """What is assigned to `target`, a Name or Attribute: in `a, b = x, y` to b it is y. None for other places."""
    above = script.parent(target)
    if isinstance(above, cst.AnnAssign):
        return above.value if above.target is target else None
    if isinstance(above, cst.AssignTarget):
        return script.parent(above).value
    several = script.parent(above) if isinstance(above, cst.Element) else None
    if isinstance(several, cst.Tuple) and isinstance(script.parent(several), cst.AssignTarget):
        values = script.parent(script.parent(several)).value
        if isinstance(values, cst.Tuple) and len(values.elements) == len(several.elements):
            return values.elements[several.elements.index(above)].value
    return None


class Own:
    """What the script defines a method or attribute `name` on, itself."""

    def __init__(self, script, name):
        self.script = script
        self.classes = {
            around.name.value
            for node in script.of(cst.FunctionDef)
            if node.name.value == name
            for around in [next(script.ancestors(script.parent(node)), None)]
            if isinstance(around, cst.ClassDef)
        }
        targets = [node.target for node in script.of(cst.AssignTarget, cst.AnnAssign)]
        self.assigned = any(isinstance(each, cst.Attribute) and each.attr.value == name for each in targets)
        self.holders = set()  # code of what was assigned an instance: "net", "self.net"
        for node in script.of(cst.Name, cst.Attribute) if self.classes else ():
            if self._makes(value_of(script, node)):
                self.holders.add(script.code(node))

    def has(self, node):
        """Whether `node` is an instance of such a class, as far as the script shows."""
        if not self.classes:
            return False
        code = self.script.code(node)
        if code in ("self", "cls"):
            around = (each for each in self.script.ancestors(node) if isinstance(each, cst.ClassDef))
            return getattr(next(around, None), "name", node).value in self.classes
        return code in self.classes or self._makes(node) or self._holds(node, code) or self._declared(node)

    def _makes(self, node):
        return isinstance(node, cst.Call) and self.script.code(node.func) in self.classes

    def _holds(self, node, code):
        if code not in self.holders:
            return False
        if not isinstance(node, cst.Name):
            return True
        names = [each for each in self.script.bindings(node) if isinstance(each, cst.Name)]
        return all(self._makes(value_of(self.script, each)) for each in names)

    def _declared(self, node):
        """A parameter with such a class for annotation."""
        params = self.script.bindings(node) if isinstance(node, cst.Name) else ()
        declared = [each.annotation.annotation for each in params if isinstance(each, cst.Param) and each.annotation]
        return any(self.script.code(each).strip("'\"") in self.classes for each in declared)
