"""Edits of small statements and of items of lists, which take semicolons, commas and lines along."""

import ast

_QUESTIONS = ("is_available", "device_count", "len", "hasattr", "getattr", "isinstance")


def line_of(script, statement):
    """The statements that stand on one line with `statement`, itself among them."""
    block = script.block(statement)
    first = last = block.index(statement)
    while first and block[first - 1].end_lineno == block[first].lineno:
        first -= 1
    while last + 1 < len(block) and block[last + 1].lineno == block[last].end_lineno:
        last += 1
    return block[first : last + 1]


def end_of_line(script, node):
    """The offset just after the line on which `node` ends."""
    newline = script.source.find("\n", script.span(node)[1])
    return len(script.source) if newline < 0 else newline + 1


def start_of_line(script, node):
    """The offset at which the line starts on which `node` does."""
    return script.source.rfind("\n", 0, script.span(node)[0]) + 1


def _follows_colon(script, line):
    """Whether the statements stand on the line of the `if` (or the like) that they belong to."""
    return bool(script.source[start_of_line(script, line[0]) : script.span(line[0])[0]].strip())


def insert_after(script, statement, text):
    """Insert the statement `text` after another one, on a line of its own where it can."""
    line = line_of(script, statement)
    at = end_of_line(script, line[-1])
    if statement is not line[-1] or _follows_colon(script, line) or script.source[:at].rstrip().endswith("\\"):
        script.insert(script.span(statement)[1], f"; {text.partition('  #')[0]}")  # before what follows on the line
        return
    missing = "" if script.source[:at].endswith("\n") else script.newline
    ending = script.newline if not missing else ""
    script.insert(at, f"{missing}{script.indent(line[0])}{text}{ending}")


def delete_statements(script, steps):
    """Delete small statements, {node: step}; an emptied block gets `pass`, or goes with the `if` that it is of."""
    for node in list(steps):
        _doom_holder(script, node, steps)
    for node, step in steps.items():
        if any(around in steps for around in script.parents(node)):
            continue
        line = line_of(script, node)
        if any(each not in steps for each in line):
            _delete_small(script, line, node, step)
        elif node is line[0]:
            _delete_line(script, line, steps)


def _doom_holder(script, node, steps):
    """An `if` without `else` that decides about nothing any more goes too, unless its condition does something."""
    holder = script.parent(node)
    bare = isinstance(holder, ast.If) and not holder.orelse and not script.is_elif(holder)
    if bare and holder not in steps and all(each in steps for each in holder.body):
        calls = (it.func for it in script.walk(holder.test) if isinstance(it, ast.Call))
        if all(getattr(it, "attr", getattr(it, "id", "")) in _QUESTIONS for it in calls):
            steps[holder] = max(steps[each] for each in holder.body)
            _doom_holder(script, holder, steps)


def _delete_small(script, line, node, step):
    """One of several statements on a line, with its semicolon."""
    place = line.index(node)
    if place + 1 < len(line):
        script.edit_span(script.span(node)[0], script.span(line[place + 1])[0], "", step)
    else:
        script.edit_span(script.span(line[place - 1])[1], script.span(node)[1], "", step)


def _delete_line(script, line, steps):
    """A line all of whose statements go."""
    block, step = script.block(line[0]), steps[line[0]]
    emptied = script.parent(line[0]) is not script.module and all(each in steps for each in block)
    if emptied and (_follows_colon(script, line) or line[0] is block[0]):
        script.edit_span(script.span(line[0])[0], script.span(line[-1])[1], "pass", step)
        return
    start, end = start_of_line(script, line[0]), end_of_line(script, line[-1])
    around = script.source[:start].endswith(script.newline * 2), script.source.startswith(script.newline, end)
    if all(around):  # one empty line for the two that would meet
        end += len(script.newline)
    script.edit_span(start, end, "", step)


def delete_items(script, items, doomed, step=None):
    """Delete some of the comma-separated `items` (arguments, imported names), not all of them."""
    assert len(doomed) < len(items), "deleting every item would leave an empty list"
    for place, item in enumerate(items):
        if item not in doomed:
            continue
        if any(each not in doomed for each in items[place + 1 :]):  # up to the next item, so that this one's comma goes
            script.edit_span(script.span(item)[0], script.span(items[place + 1])[0], "", step)
        else:  # nothing is kept after it: from the end of the item before
            script.edit_span(script.span(items[place - 1])[1], script.span(item)[1], "", step)


def torch_name(script):
    """What the script calls torch at module level, "t" after `import torch as t`; None without such an import."""
    for node in script.of(ast.Import):
        if not script.definitions(node):
            for alias in node.names:
                if alias.name == "torch" or (not alias.asname and alias.name.startswith("torch.")):
                    return alias.asname or "torch"
    return None
