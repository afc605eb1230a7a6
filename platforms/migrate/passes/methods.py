"""`x.cuda(...)` becomes `x.npu(...)` and `x.is_cuda` `x.is_npu`, and so do methods of the script that override them."""

import ast

from ..steps import step_of

_NAMES = {"cuda": "npu", "is_cuda": "is_npu"}


def rename_methods(script):
    """Rename methods of tensors and modules, with what the script itself defines under these names."""
    for node in script.of(ast.Attribute):
        call = script.parent(node)
        called = isinstance(call, ast.Call) and call.func is node and _moves(script, node, call)
        if node.attr in _NAMES and (called or node.attr == "is_cuda"):
            script.edit_span(*script.name_span(node), _NAMES[node.attr], step_of(script, node))
    for node in script.of(ast.FunctionDef):
        if node.name in _NAMES and isinstance(script.parent(node), ast.ClassDef):
            at = script.source.index(node.name, script.span(node)[0] + len("def"))
            script.edit_span(at, at + len(node.name), _NAMES[node.name], 11)


def _moves(script, node, call):
    """Whether a call of `.cuda` can be the method of a tensor or module, by what it is called on and with."""
    names = script.names(node)  # of what another file offers: a model or tensor, if the arguments allow that
    return not names or not (call.args or any(name.startswith("torch.") for name in names))
