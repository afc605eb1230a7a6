"""Edits of small statements and of items of lists, which take semicolons, commas and lines along."""

import ast
import re


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


def indent_of(script, node):
    """The white space before the first statement on the line of `node`."""
    return re.compile(r"[ \t\f]*").match(script.source, start_of_line(script, node))[0]


def _follows_colon(script, line):
    """Whether the statements stand on the line of the `if` (or the like) that they belong to."""
    return bool(script.source[start_of_line(script, line[0]) : script.span(line[0])[0]].strip())


def insert_after(script, statement, text):
    """Insert the statement `text` after another one, on a line of its own where it can."""
    line = line_of(script, statement)
    at = end_of_line(script, line[-1])
    if _follows_colon(script, line) or script.source[:at].rstrip().endswith("\\"):
        script.insert(script.span(line[-1])[1], f"; {text.partition('  #')[0]}")
        return
    missing = "" if script.source[:at].endswith("\n") else script.newline
    ending = script.newline if not missing else ""
    script.insert(at, f"{missing}{indent_of(script, line[0])}{text}{ending}")


def delete_statements(script, steps):
    """Delete small statements, {node: step}; an emptied block gets `pass`, or goes with the `if` that it is of."""
    for node, step in list(steps.items()):
        line = line_of(script, node)
        if any(each not in steps for each in line):
            _delete_small(script, line, node, step)
        elif node is line[0]:
            _delete_line(script, line, steps)


def _delete_small(script, line, node, step):
    """One of several statements on a line, with its semicolon."""
    place = line.index(node)
    if place + 1 < len(line):
        script.edit_span(script.span(node)[0], script.span(line[place + 1])[0], "", step)
    else:
        script.edit_span(script.span(line[place - 1])[1], script.span(node)[1], "", step)


def _delete_line(script, line, steps):
    """A line all of whose statements go."""
    holder, block, step = script.parent(line[0]), script.block(line[0]), steps[line[0]]
    behind = _follows_colon(script, line)
    if holder is not script.module and all(each in steps for each in block):
        if _bare_if(script, holder):
            _delete_if(script, holder, line, steps)
            return
        if behind or line[0] is block[0]:
            script.edit_span(script.span(line[0])[0], script.span(line[-1])[1], "pass", step)
            return
    start, end = start_of_line(script, line[0]), end_of_line(script, line[-1])
    around = script.source[:start].endswith(script.newline * 2), script.source.startswith(script.newline, end)
    if all(around):  # one empty line for the two that would meet
        end += len(script.newline)
    script.edit_span(start, end, "", step)


def _bare_if(script, node):
    """Whether `node` is an `if` of small statements without `else` that is no `elif`: emptied, it does nothing."""
    if not isinstance(node, ast.If) or node.orelse or script.is_elif(node):
        return False
    return not any(hasattr(each, "body") or hasattr(each, "cases") for each in node.body)


def _delete_if(script, node, line, steps):
    """An `if` all of whose lines go, and of them `line`; the `if` itself belongs to the last step among them."""
    last = max(steps[each] for each in node.body)
    start, end = start_of_line(script, node), end_of_line(script, node.body[-1])
    steps[node] = last
    alone = script.parent(node) is not script.module and all(each in steps for each in script.block(node))
    if alone or len(line) == len(node.body):
        text = indent_of(script, node) + "pass" + script.newline if alone else ""
        script.edit_span(start, end, text, last)
        return
    script.edit_span(start, start_of_line(script, node.body[0]), "", last)
    following = node.body.index(line[-1]) + 1
    after = start_of_line(script, node.body[following]) if following < len(node.body) else end
    script.edit_span(start_of_line(script, line[0]), after, "", steps[line[0]])


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
