"""What a script needs no more: cuDNN's switches, which do nothing on an NPU, and what torch has of apex.parallel."""

import ast

from ..chains import chains
from ..counterparts import counterpart
from ..edits import delete_import, delete_items
from .names import another_torch

_TORCH = {
    "apex.parallel.DistributedDataParallel": "nn.parallel.DistributedDataParallel",
    "apex.parallel.SyncBatchNorm": "nn.SyncBatchNorm",
    "apex.parallel.convert_syncbn_model": "nn.SyncBatchNorm.convert_sync_batchnorm",
}
_TIMING = {"delay_allreduce", "message_size", "num_allreduce_streams", "retain_allreduce_buffers"}  # not of the result
_MODULE = "torch.backends.cudnn"
_SWITCHES = {f"{_MODULE}.{name}" for name in ("benchmark", "benchmark_limit", "deterministic", "enabled", "fastest")}


def leave_apex_parallel(script):
    """Use torch's classes, and import apex's no more, where every use can be torch's."""
    uses = {}
    for node in script.of(ast.Name, ast.Attribute) if script.torch and "apex" in script.source else ():
        for name in script.names(node) & _TORCH.keys() if isinstance(node.ctx, ast.Load) else ():
            uses.setdefault(name, []).append(node)
    uses = {name: nodes for name, nodes in uses.items() if all(_fits(script, it) for it in nodes)}
    for name, nodes in uses.items():
        for node in nodes:
            script.edit(node, f"{script.torch}.{_TORCH[name]}")
            call = script.parent(node)
            if doomed := [it for it in call.keywords if it.arg in _TIMING]:
                delete_items(script, [*call.args, *call.keywords], doomed)
    for node in script.of(ast.ImportFrom):
        delete_import(script, node, [alias for alias in node.names if f"{node.module}.{alias.name}" in uses])


def _fits(script, node):
    """Whether torch's takes what a use gives: one thing, and keywords that say when gradients travel."""
    call = script.parent(node)
    called = isinstance(call, ast.Call) and call.func is node
    return called and len(call.args) == 1 and {it.arg for it in call.keywords} <= _TIMING


def switch_off(script):
    """Take out assignments to the switches, `deterministic` becomes torch's own, and imports of cudnn without use."""
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
    if isinstance(node, ast.ImportFrom):
        if node.level or f"{node.module}.{alias.name}" != _MODULE:
            return False
    elif alias.name != _MODULE:
        return False
    elif alias.asname is None:  # binds torch: something else has to, as well
        return not left and another_torch(script, node)
    local = alias.asname or alias.name
    return all(chain.first.id != local or node not in script.bindings(chain.first) for chain in left)
