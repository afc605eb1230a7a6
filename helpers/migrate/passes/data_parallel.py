"""nn.DataParallel copies a model to several CUDA devices from one process; an NPU has no such thing."""

import libcst as cst

STEP = 9
_NAMES = {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"}


def apply(script):
    """Take the wrapper off where nothing reaches through it for `.module`; else it is reported."""
    calls = [node for node in script.of(cst.Call) if script.names(node) & _NAMES and _wraps(node)]
    if not calls or _needed(script, calls):
        return
    for node in calls:
        inner = node.args[0].value
        statement = script.parent(node)
        same = isinstance(statement, cst.Assign) and len(statement.targets) == 1
        if same and script.code(statement.targets[0].target) == script.code(inner):  # model = DataParallel(model)
            script.delete(statement)
            continue
        simple = isinstance(inner, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or inner.lpar
        (start, end), (first, last) = script.span(node), script.span(inner)
        first, last = (script.span(node.args[0]) if inner.lpar else (first, last))
        script.edit_span(start, first, "" if simple else "(")
        script.edit_span(last, end, "" if simple else ")")
    script.left(
        calls[0], "nn.DataParallel is gone: this trains on one card",
        "For more cards start one process each (torchrun) and wrap the model in DistributedDataParallel. Checkpoints "
        "that DataParallel wrote have keys that begin with 'module.': take that off to load them.",
    )  # fmt: skip


def _wraps(node):
    return bool(node.args) and node.args[0].keyword is None and not node.args[0].star


def _needed(script, calls):
    """Whether the script relies on the wrapper: it uses `.module` without asking whether there is one."""
    functions = {node.func for node in calls}
    asks = any(
        isinstance(node, (cst.Attribute, cst.Name)) and node not in functions and script.names(node) & _NAMES
        for node in script.of(cst.Attribute, cst.Name)
    ) or any(text.raw_value == "module" for text in script.of(cst.SimpleString))
    return not asks and any(node.attr.value == "module" for node in script.of(cst.Attribute))
