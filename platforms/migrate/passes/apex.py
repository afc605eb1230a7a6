"""What apex.parallel has and torch has by now: DistributedDataParallel and SyncBatchNorm. Those of apex need CUDA."""

import ast

from ..edits import delete_import, delete_items

_TORCH = {
    "apex.parallel.DistributedDataParallel": "nn.parallel.DistributedDataParallel",
    "apex.parallel.SyncBatchNorm": "nn.SyncBatchNorm",
    "apex.parallel.convert_syncbn_model": "nn.SyncBatchNorm.convert_sync_batchnorm",
}
_TIMING = {"delay_allreduce", "message_size", "num_allreduce_streams", "retain_allreduce_buffers"}  # not of the result


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
