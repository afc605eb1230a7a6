"""cuDNN's switches: there is no cuDNN on an NPU, so setting them has no effect and they go.

`deterministic` was meant for the results, not for cuDNN: it becomes torch's own switch.
"""

import libcst as cst

from ..chains import chains
from ..counterparts import counterpart
from ..edits import delete_items, torch_name

STEP = 8
_MODULE = "torch.backends.cudnn"
_SWITCHES = {f"{_MODULE}.{name}" for name in ("benchmark", "benchmark_limit", "deterministic", "enabled", "fastest")}


def apply(script):
    """Take out assignments to the switches, and the import of cudnn when nothing else needs it."""
    torch = torch_name(script)
    uses = [chain for chain in chains(script) if (chain.name + ".").startswith(_MODULE + ".")]
    settled = {chain.nodes[0] for chain in uses if _settle(script, chain, torch)}
    left = [chain for chain in uses if chain.nodes[0] not in settled]
    if settled:
        for node in script.of(cst.Import, cst.ImportFrom):
            _imports(script, node, left)


def _settle(script, chain, torch):
    """Whether the use of cudnn will be gone; takes it out, or renames it."""
    if counterpart(chain.name):  # for the pass `names`
        return bool(torch)
    statement = _assignment(script, chain)
    if statement is None:
        return False
    if not chain.name.endswith(".deterministic") or script.code(statement.value) == "False":
        script.delete(statement)
    elif torch:
        start, value = script.span(statement)[0], script.span(statement.value)
        script.edit_span(start, value[0], f"{torch}.use_deterministic_algorithms(")
        script.insert(value[1], ", warn_only=True)")
    return bool(torch) or not chain.name.endswith(".deterministic") or script.code(statement.value) == "False"


def _assignment(script, chain):
    """The statement `cudnn.benchmark = ...` whose only target the chain is, if nothing is called in it."""
    target = script.parent(chain.nodes[-1])
    if chain.name not in _SWITCHES or not isinstance(target, cst.AssignTarget):
        return None
    statement = script.parent(target)
    plain = statement.value.lpar == () and "(" not in script.code(statement.value)
    return statement if len(statement.targets) == 1 and plain else None


def _imports(script, node, left):
    if isinstance(node.names, cst.ImportStar):
        return
    gone = [alias for alias in node.names if _is_cudnn(script, node, alias) and _unused(script, node, alias, left)]
    if gone and len(gone) == len(node.names):
        script.delete(node, 1)
    elif gone:
        delete_items(script, list(node.names), gone, 1)


def _is_cudnn(script, node, alias):
    name = script.code(alias.name)
    if isinstance(node, cst.ImportFrom):
        return bool(node.module) and not node.relative and f"{script.code(node.module)}.{name}" == _MODULE
    return name == _MODULE


def _unused(script, node, alias, left):
    if isinstance(node, cst.Import) and alias.asname is None:  # binds torch: somebody else has to, as well
        block = script.parent(script.parent(node))
        others = [each for each in script.of(cst.Import) if script.parent(script.parent(each)) is block]
        plain = any(script.code(name.name) == "torch" and not name.asname for each in others for name in each.names)
        return plain and not left
    local = alias.asname.name.value if alias.asname else alias.name.value
    return all(chain.nodes[0].value != local or node not in script.bindings(chain.nodes[0]) for chain in left)
