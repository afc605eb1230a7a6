"""cuDNN's switches: there is no cuDNN on an NPU, so setting them has no effect and they go.

`deterministic` was meant for the results, not for cuDNN: it becomes torch's own switch.
"""

import ast

from ..chains import chains
from ..counterparts import counterpart
from ..edits import delete_import
from .names import another_torch

_MODULE = "torch.backends.cudnn"
_SWITCHES = {f"{_MODULE}.{name}" for name in ("benchmark", "benchmark_limit", "deterministic", "enabled", "fastest")}


def switch_off(script):
    """Take out assignments to the switches, and the import of cudnn when nothing else needs it."""
    uses = [chain for chain in chains(script) if (chain.name + ".").startswith(_MODULE + ".")]
    left = [chain for chain in uses if not _settle(script, chain)]
    for node in script.of(ast.Import, ast.ImportFrom) if len(left) < len(uses) else ():
        delete_import(script, node, [alias for alias in node.names if _unused(script, node, alias, left)])


def _settle(script, chain):
    """Whether the use of cudnn will be gone; takes it out, or renames it."""
    if counterpart(chain.name):  # for the pass `names.rename`
        return bool(script.torch)
    node = chain.nodes[-1]
    statement = script.parent(node)
    alone = isinstance(statement, ast.Assign) and statement.targets == [node] and "(" not in script.code(statement)
    if chain.name not in _SWITCHES or not alone:
        return False
    if not chain.name.endswith(".deterministic") or script.code(statement.value) == "False":
        script.delete(statement)
        return True
    if script.torch:
        start = script.span(statement)[0]
        script.edit_span(start, script.span(statement.value)[0], f"{script.torch}.use_deterministic_algorithms(")
        script.append(statement.value, ", warn_only=True)")
    return bool(script.torch)


def _unused(script, node, alias, left):
    """Whether an import of cudnn is of no use any more."""
    if isinstance(node, ast.ImportFrom):
        if node.level or f"{node.module}.{alias.name}" != _MODULE:
            return False
    elif alias.name != _MODULE:
        return False
    elif alias.asname is None:  # binds torch: something else has to, as well
        return not left and another_torch(script, node)
    local = alias.asname or alias.name
    return all(chain.first.id != local or node not in script.bindings(chain.first) for chain in left)
