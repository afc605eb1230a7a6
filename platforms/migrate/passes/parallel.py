"""nn.DataParallel is for several CUDA devices in one process: it goes, and its `.module` too."""

import ast

from helpers.language import N_

PARALLEL = {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"}
_INPUTS = N_(
    "DataParallel moved inputs to its cards: move what the model is given, x = x.npu(), where that is still on "
    "the CPU. For more cards start one process each (torchrun) and wrap the model in DistributedDataParallel. "
    "Checkpoints that DataParallel wrote have keys that begin with 'module.': take that off to load them."
)


def unwrap_data_parallel(script):
    """Take nn.DataParallel off in any script."""
    calls = [it for it in script.of(ast.Call) if script.names(it) & PARALLEL and it.args]
    calls = [it for it in calls if not isinstance(it.args[0], ast.Starred)]
    inside = _modules(script, calls) if calls else None
    if inside is None:
        return
    for node in inside:
        script.edit_span(script.span(node.value)[1], script.span(node)[1], "")
    for node in calls:
        inner, statement = node.args[0], script.parent(node)
        same = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if same and script.code(statement.targets[0]) == script.code(inner):  # model = DataParallel(model)
            script.delete(statement)
            continue
        (start, end), (first, last) = script.span(node), script.argument_span(node, inner)
        simple = isinstance(inner, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) or first < script.span(inner)[0]
        script.edit_span(start, first, "" if simple else "(")
        script.edit_span(last, end, "" if simple else ")")
    text = N_("nn.DataParallel is gone: this trains on one card, and inputs stay where they are")
    script.left(calls[0], text, _INPUTS)


def _modules(script, calls):
    """The `.module` to take off along with the wrapper; None where it may be that of something else."""
    functions = [node.func for node in calls]
    others = [node for node in script.of(ast.Attribute, ast.Name) if node not in functions]
    asks = any(script.names(node) & PARALLEL for node in others)
    if asks or any(token.kind == "string" and token.inside == "module" for token in script.tokens):
        return []
    holders = {script.code(it) for call in calls for it in getattr(script.parent(call), "targets", ())}
    found = [node for node in others if getattr(node, "attr", "") == "module"]
    sure = all(isinstance(it.ctx, ast.Load) and script.code(it.value) in holders for it in found)
    return found if sure and not (found and "DistributedDataParallel" in script.source) else None
