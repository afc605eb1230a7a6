"""The step that a place of a script belongs to: a rename counts for the step of what it stands in."""

import ast

_CALLS = {  # the last name of what is called -> step
    "add_argument": 2,
    "set_defaults": 2,
    "device_count": 5,
    "init_process_group": 7,
    "new_group": 7,
    "is_nccl_available": 7,
    "init_device_mesh": 7,
    "set_device": 8,
    "device": 8,
    "autocast": 11,
    "custom_fwd": 11,
    "custom_bwd": 11,
    "DistributedDataParallel": 11,
    "DDP": 11,
    "load": 11,
    "load_state_dict": 11,
    "DataLoader": 10,
    "GradScaler": 14,
}


def step_of(script, node):
    """The number of the step that a rename at `node` belongs to."""
    if any(_adds_up(script, it) for it in script.definitions(node)):
        return 17
    for around in [node, *script.parents(node)]:
        step = _of_call(script, around)
        if step:
            return step
        if isinstance(around, (ast.For, ast.AsyncFor)):
            return loop_step(script, around)
        if isinstance(around, script.DEFINITIONS):
            break
    return 8


def _of_call(script, node):
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Attribute):
        if node.attr == "cuda" and not script.names(node):
            return _of_move(script, node)
        return _CALLS.get(node.attr)
    names = script.names(node) if isinstance(node, ast.Name) else ()
    return next((_CALLS[last] for name in names if (last := name.rpartition(".")[2]) in _CALLS), None)


def _of_move(script, method):
    """`x.cuda()`: a loss, a batch in a loop, else a model."""
    made = script.names(method.value) if isinstance(method.value, ast.Call) else ()
    if any(name.startswith("torch.nn.") and name.endswith("Loss") for name in made):
        return 11
    inside = [it for it in script.parents(method) if isinstance(it, (ast.For, ast.AsyncFor, *script.DEFINITIONS))]
    return loop_step(script, inside[0]) if inside and not isinstance(inside[0], script.DEFINITIONS) else 11


def _adds_up(script, node):
    """Whether a function outside the loops adds something up over the ranks."""
    loops = any(isinstance(it, ast.For) for it in ast.walk(node))
    return isinstance(node, ast.FunctionDef) and not loops and bool(script.calls(node, "torch.distributed.all_reduce"))


def loop_step(script, node, other=15):
    """13 in the loop over training batches, 15 in another loop, else `other`."""
    loops = [it for it in [node, *script.parents(node)] if isinstance(it, (ast.For, ast.AsyncFor))]
    if not loops:
        return other
    return 13 if any(getattr(it.func, "attr", "") == "backward" for it in _calls(loops[0])) else 15


def _calls(node):
    return [it for it in ast.walk(node) if isinstance(it, ast.Call)]
