"""The number of a process becomes the number of its card."""

import ast

from ..syntax import careful

STEP = 6

MAP = "process_device_map = device_id_to_process_device_map($args.device_list)\n"
SPAWNED = MAP + """\
if $spawned:
    $card = process_device_map[$process]
elif $process is None:  # torchrun says which process this is; without it, it is the only one
    $card = process_device_map[int(os.environ.get('LOCAL_RANK', 0))]
else:
    $card = $process  # one card, chosen by its own number
"""
ALWAYS = MAP + "$card = process_device_map[$process]"


@careful
def apply(script):
    """Look the card up; in the modern style the number of the process is the card."""
    shape = script.shape
    if not shape.full:
        return None
    tree, card = shape.tree, shape.card_statement
    _numbers(shape)
    words = {"card": shape.card, "process": shape.process, "args": shape.args, "spawned": shape.spawned}
    if script.style == "modern":
        if card is not None and isinstance(card.value, ast.Name) and shape.spawned:
            tree.edit(card.value, f"{shape.process} or 0")
    elif "process_device_map[" not in tree.code(shape.worker):
        text = SPAWNED if shape.spawned else ALWAYS
        if card is None:
            tree.before(shape.first_of_worker, text, **words)
        elif card in shape.worker.body:
            tree.replace(card, text, comments=False, **words)
        else:
            tree.replace(card, "$card = process_device_map[$process]", comments=False, **words)
        tree.need("os")
    return script.edited()


def _numbers(shape):
    """args.gpu is the number of a card now: what counts processes has to use the process's own number."""
    tree = shape.tree
    if shape.card_statement is None:
        return
    for node in ast.walk(shape.worker):
        compared = isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant)
        if compared and isinstance(node.comparators[0].value, int) and tree.code(node.left) == shape.card:
            tree.edit(node.left, shape.process)
        if isinstance(node, ast.Assign) and tree.code(node.targets[0]) == shape.group_keyword("rank"):
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Attribute) and tree.code(inner) == shape.card:
                    tree.edit(inner, shape.process)
    for node in ast.walk(tree.module):
        if not isinstance(node, ast.Compare) or tree.function(node) in (shape.worker, shape.main, None):
            continue
        if isinstance(node.left, ast.Attribute) and node.left.attr == shape.card_statement.targets[0].attr:
            if isinstance(getattr(node.comparators[0], "value", None), int):
                shape.script.left(
                    node.lineno, f"{tree.code(node)} compares a card, not a process",
                    "Compare the rank instead: the first process need not have card 0.",
                )  # fmt: skip
