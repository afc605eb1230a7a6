"""cuDNN's switches: there is no cuDNN on an NPU, so setting them has no effect and they go.

`deterministic` was meant for the results, not for cuDNN: it becomes torch's own switch.
"""

import ast

from ..chains import chains
from ..counterparts import counterpart
from ..edits import delete_items, torch_name
from .kinds import anywhere
from .names import another_torch

_MODULE = "torch.backends.cudnn"
_SWITCHES = {f"{_MODULE}.{name}" for name in ("benchmark", "benchmark_limit", "deterministic", "enabled", "fastest")}


@anywhere(8)
def switch_off(script):
    """Take out assignments to the switches, and the import of cudnn when nothing else needs it."""
    torch = torch_name(script)
    uses = [chain for chain in chains(script) if (chain.name + ".").startswith(_MODULE + ".")]
    left = [chain for chain in uses if not _settle(script, chain, torch)]
    if len(left) < len(uses):
        for node in script.of(ast.Import, ast.ImportFrom):
            gone = [alias for alias in node.names if _is_cudnn(node, alias) and _unused(script, node, alias, left)]
            if gone and len(gone) == len(node.names):
                script.delete(node, 1)
            elif gone:
                delete_items(script, node.names, gone, 1)


def _settle(script, chain, torch):
    """Whether the use of cudnn will be gone; takes it out, or renames it."""
    if counterpart(chain.name):  # for the pass `names.rename`
        return bool(torch)
    statement = _assignment(script, chain)
    if statement is None:
        return False
    if not chain.name.endswith(".deterministic") or script.code(statement.value) == "False":
        script.delete(statement)
        return True
    if torch:
        start, end = script.span(statement.value)
        script.edit_span(script.span(statement)[0], start, f"{torch}.use_deterministic_algorithms(")
        script.insert(end, ", warn_only=True)")
    return bool(torch)


def _assignment(script, chain):
    """The statement `cudnn.benchmark = ...` whose only target the chain is, if nothing is called in it."""
    statement = script.parent(chain.nodes[-1])
    if chain.name not in _SWITCHES or not isinstance(statement, ast.Assign) or "(" in script.code(statement):
        return None
    return statement if statement.targets == [chain.nodes[-1]] else None


def _is_cudnn(node, alias):
    if isinstance(node, ast.ImportFrom):
        return not node.level and f"{node.module}.{alias.name}" == _MODULE
    return alias.name == _MODULE


def _unused(script, node, alias, left):
    if isinstance(node, ast.Import) and alias.asname is None:  # binds torch: something else has to, as well
        return not left and another_torch(script, node)
    local = alias.asname or alias.name
    return all(chain.nodes[0].id != local or node not in script.bindings(chain.nodes[0]) for chain in left)
