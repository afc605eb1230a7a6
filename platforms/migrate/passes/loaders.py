"""Training batches of one size; validation keeps its last, smaller batch, and so every sample."""

import ast

from helpers.launcher.language import marked

from .kinds import anywhere, shaped


@shaped(10)
def drop_last(script, shape):
    """drop_last=True for the loader that is trained on, and for no other."""
    made = [
        it.value
        for it in script.walk(shape.worker)
        if isinstance(it, ast.Assign)
        and script.code(it.targets[0]) == shape.training.loader
        and script.called(it.value).endswith(".DataLoader")
    ]
    if not made:
        advice = marked("Give it drop_last=True, and only it.")
        script.left(shape.worker, "which loader is trained on is not clear", advice)
    others = [it for it in script.walk(shape.worker) if script.called(it).endswith(".DataLoader") and it not in made]
    for call in others if made else ():
        advice = marked("The guide's step 10 shuffles it and drops its last batch: the accuracy would miss images.")
        script.left(call, "the validation loader keeps its order and its last batch", advice)
    for call in made:
        words = {it.arg: it.value for it in call.keywords}
        last = words.get("drop_last")
        if "batch_sampler" in words:
            script.left(call, "a batch sampler makes the training batches", "Let it drop the last one.")
        elif last is None:
            given = script.arguments(call)[-1]
            given = given.value if isinstance(given, ast.keyword) else given
            script.insert(script.argument_span(call, given)[1], ", drop_last=True")
        elif isinstance(last, ast.Constant):
            script.edit(last, "True")


@anywhere(10)
def unpin(script):
    """Pinned memory is CUDA's: DataLoader gets pin_memory=False, also by way of a dictionary of options."""
    for node in script.of(ast.Call):
        function = script.code(node.func).rpartition(".")[2]
        if function.endswith("DataLoader") or function in ("dict", "update", "setdefault"):
            _off(script, *(word.value for word in node.keywords if word.arg == "pin_memory"))
    for node in script.of(ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        _off(script, *(value for key, value in pairs if getattr(key, "value", None) == "pin_memory"))
    for node in script.of(ast.Assign):
        if script.code(node.targets[0]).endswith(("['pin_memory']", '["pin_memory"]')):
            _off(script, node.value)


def _off(script, *values):
    for value in values:
        if script.code(value) not in ("False", "None", "0"):
            script.edit(value, "False")
