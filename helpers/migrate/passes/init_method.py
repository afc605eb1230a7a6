"""The process group meets through the environment, where main has put address and port."""

from ..syntax import careful

STEP = 7


@careful
def apply(script):
    """Drop `init_method` from init_process_group."""
    shape = script.shape
    if not shape.full or shape.group_keyword("init_method") is None:
        return None
    tree, group = shape.tree, shape.group
    parts = [*group.args, *group.keywords]
    place = next(n for n, part in enumerate(parts) if getattr(part, "arg", "") == "init_method")
    start, end = tree.span(parts[place])
    if place:  # with the comma before it, so that the next one stays on its own line
        start = tree.span(parts[place - 1])[1]
    elif len(parts) > 1:
        end = tree.span(parts[1])[0]
    script.edit_span(start, end, "")
    return script.edited()
