"""What apex.parallel has and torch has by now: DistributedDataParallel and SyncBatchNorm. Those of apex need CUDA."""

import ast

from ..edits import delete_items, torch_name
from .kinds import anywhere

_PLACE = "apex.parallel."
_DDP, _NORM = "nn.parallel.DistributedDataParallel", "nn.SyncBatchNorm"
_TORCH = {
    "DistributedDataParallel": _DDP,
    "SyncBatchNorm": _NORM,
    "convert_syncbn_model": f"{_NORM}.convert_sync_batchnorm",
}
_TIMING = {"delay_allreduce", "message_size", "num_allreduce_streams", "retain_allreduce_buffers"}  # not of the result


@anywhere(11)
def leave_apex_parallel(script):
    """Use torch's classes, and import apex's no more, where every use can be torch's."""
    torch, uses = torch_name(script), {}
    for node in script.of(ast.Name, ast.Attribute) if torch and "apex" in script.source else ():
        for name in script.names(node):
            if name.removeprefix(_PLACE) in _TORCH and name.startswith(_PLACE) and isinstance(node.ctx, ast.Load):
                uses.setdefault(name.removeprefix(_PLACE), []).append(node)
    for name in [name for name, nodes in uses.items() if not all(_fits(script, it, name) for it in nodes)]:
        del uses[name]
    for name, nodes in uses.items():
        for node in nodes:
            script.edit(node, f"{torch}.{_TORCH[name]}")
            _drop_timing(script, script.parent(node), node)
    for node in script.of(ast.ImportFrom):
        gone = [alias for alias in node.names if node.module == "apex.parallel" and alias.name in uses]
        if gone and len(gone) == len(node.names):
            script.delete(node, 1)
        elif gone:
            delete_items(script, node.names, gone, 1)


def _fits(script, node, name):
    """Whether torch's takes what a use gives: of DistributedDataParallel, keywords may say when gradients travel."""
    call = script.parent(node)
    if not isinstance(call, ast.Call) or call.func is not node:
        return name != "convert_syncbn_model" and getattr(getattr(call, "func", None), "id", "") == "isinstance"
    extra = {it.arg for it in call.keywords}
    if name == "SyncBatchNorm":
        return not extra & {"channel_last", "fuse_relu"}
    return len(call.args) == 1 and extra <= (_TIMING if name == "DistributedDataParallel" else set())


def _drop_timing(script, call, node):
    doomed = [it for it in getattr(call, "keywords", ()) if it.arg in _TIMING and call.func is node]
    if doomed:
        delete_items(script, [*call.args, *call.keywords], doomed)
