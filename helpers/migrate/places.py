"""The step that a place of a script belongs to: a rename counts for the step of what it stands in."""

import ast

_CALLS = {  # the last name of what is called -> step
    "add_argument": 2, "set_defaults": 2,
    "device_count": 5,
    "init_process_group": 7, "new_group": 7, "is_nccl_available": 7, "init_device_mesh": 7,
    "set_device": 8, "device": 8,
    "autocast": 11, "custom_fwd": 11, "custom_bwd": 11, "DistributedDataParallel": 11, "DDP": 11,
    "load": 12, "load_state_dict": 12,
    "DataLoader": 13,
    "GradScaler": 16,
}  # fmt: skip
_LOOPS = (ast.For, ast.AsyncFor)


def step_of(script, node):
    """The number of the step that a rename at `node` belongs to."""
    for around in [node, *script.parents(node)]:
        if isinstance(around, (ast.Import, ast.ImportFrom)):
            return 1
        step = _of_call(script, around) or _of_test(script, around, node)
        if step:
            return step
        if isinstance(around, _LOOPS) and _over_batches(script, around):
            return 15
        if isinstance(around, script.DEFINITIONS):
            break
    return 8


def _of_test(script, around, node):
    """A condition belongs to what it decides about: the first line below it that has a step."""
    if not isinstance(around, ast.If) or around.test is not node and around.test not in script.parents(node):
        return None
    first = around.body[0]
    if isinstance(first, ast.If):
        return _of_test(script, first, first.test)
    inside = [each for each in script.of(ast.Call) if first in script.parents(each)]
    return next((step for each in inside if (step := _of_call(script, each))), None)


def _of_call(script, node):
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        if node.attr == "cuda" and not script.names(node):
            return _of_move(script, node)
        return _CALLS.get(node.attr)
    names = script.names(node) if isinstance(node, ast.Name) else ()
    return next((_CALLS[last] for name in names if (last := name.rpartition(".")[2]) in _CALLS), None)


def _of_move(script, method):
    """`x.cuda()`: what x is decides."""
    receiver, code = method.value, script.code(method.value).lower()
    made = script.names(receiver) if isinstance(receiver, ast.Call) else ()
    if any(name.startswith("torch.nn.") and name.endswith("Loss") for name in made) or "criterion" in code:
        return 10
    for around in script.parents(method):
        if isinstance(around, _LOOPS) and _over_batches(script, around):
            return 15
        if isinstance(around, script.DEFINITIONS):
            break
    return 9 if "model" in code or "net" in code or isinstance(receiver, ast.Call) else 15


def _over_batches(script, loop):
    code = script.code(loop.iter).lower()
    return "load" in code or "batch" in code or "prefetch" in code
