"""Training batches of one size; validation keeps its last, smaller batch, and so every sample."""

import ast

from helpers.language import N_


def drop_last(script, shape):
    """drop_last=True for the loader that is trained on, and for no other."""
    loaders = [it for it in script.walk(shape.worker) if script.called(it).endswith(".DataLoader")]
    statements = ((it, script.parent(it)) for it in loaders)
    made = [it for it, above in statements if isinstance(above, ast.Assign) and _target(script, above) == shape.loader]
    if not made:
        advice = N_("Give it drop_last=True, and only it.")
        script.left(shape.worker, N_("which loader is trained on is not clear"), advice)
    for call in loaders if made else ():
        if call not in made:
            advice = N_("The guide's step 10 shuffles it and drops its last batch: the accuracy would miss images.")
            script.left(call, N_("the validation loader keeps its order and its last batch"), advice)
    for call in made:
        last = script.keyword(call, "drop_last")
        if last is None and not script.keyword(call, "batch_sampler"):
            given = script.arguments(call)[-1]
            given = given.value if isinstance(given, ast.keyword) else given
            script.insert(script.argument_span(call, given)[1], ", drop_last=True")
        elif isinstance(last, ast.Constant):
            script.edit(last, "True")


def _target(script, statement):
    return script.code(statement.targets[0])


def unpin(script):
    """Pinned memory is CUDA's: DataLoader gets pin_memory=False, also by way of a dictionary of options."""
    pinned = []
    for node in script.of(ast.Call, ast.Dict, ast.Assign):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            pinned += [value for key, value in pairs if getattr(key, "value", None) == "pin_memory"]
        elif isinstance(node, ast.Assign):
            pinned += [node.value] if _target(script, node).endswith(("['pin_memory']", '["pin_memory"]')) else []
        elif script.code(node.func).rpartition(".")[2].endswith(("DataLoader", "dict", "update", "setdefault")):
            pinned += filter(None, [script.keyword(node, "pin_memory")])
    for value in pinned:
        if script.code(value) not in ("False", "None", "0"):
            script.edit(value, "False")
