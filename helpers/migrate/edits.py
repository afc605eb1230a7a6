"""Edits of whole statements and of items of lists, which take commas and lines along."""

import re

import libcst as cst


def line_of(script, node):
    """The statement line (or the one-line suite, or compound statement) that `node` stands in."""
    while not isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.BaseCompoundStatement)):
        node = script.parent(node)
    return node


def end_of_line(script, node):
    """The offset just after the line on which `node` ends."""
    end = script.span(node)[1]
    if end and script.source[end - 1] == "\n":
        return end
    newline = script.source.find("\n", end)
    return len(script.source) if newline < 0 else newline + 1


def start_of_line(script, offset):
    """The offset at which the line of `offset` starts."""
    return script.source.rfind("\n", 0, offset) + 1


def indent_of(script, node):
    """The white space before the statement line of `node`."""
    start = script.span(node)[0]
    return re.match(r"[ \t\f]*", script.source[start_of_line(script, start) : start])[0]


def insert_after(script, node, text, step=None):
    """Insert the statement `text` after the statement that `node` stands in, on a line of its own where it can."""
    line = line_of(script, node)
    if isinstance(line, cst.SimpleStatementSuite) or script.code(line).rstrip().endswith("\\"):
        script.insert(script.span(line.body[-1])[1], f"; {text.partition('  #')[0]}", step)
        return
    at = end_of_line(script, line)
    missing = "" if script.source[:at].endswith("\n") else script.newline
    ending = script.newline if not missing else ""
    script.insert(at, f"{missing}{indent_of(script, line)}{text}{ending}", step)


def delete_statements(script, steps):
    """Delete small statements, {node: step}; an emptied block gets `pass`, or goes with the `if` that it is of."""
    for node, step in list(steps.items()):
        line = script.parent(node)
        if any(each not in steps for each in line.body):
            _delete_small(script, line, node, step)
        elif node is line.body[0]:
            _delete_line(script, line, steps)


def _delete_small(script, line, node, step):
    """One of several statements on a line, with its semicolon."""
    place = line.body.index(node)
    if place + 1 < len(line.body):
        script.edit_span(script.span(node)[0], script.span(line.body[place + 1])[0], "", step)
    else:
        script.edit_span(script.span(line.body[place - 1])[1], script.span(node)[1], "", step)


def _delete_line(script, line, steps):
    """A line all of whose statements go."""
    block, step = script.parent(line), steps[line.body[0]]
    suite = isinstance(line, cst.SimpleStatementSuite)
    holder = block if suite else script.parent(block)
    indented = suite or isinstance(block, cst.IndentedBlock)
    if indented and (suite or all(_gone(each, steps) for each in block.body)):
        if _bare_if(holder, script.parent(holder)):
            _delete_if(script, holder, line, steps)
            return
        if suite or line is block.body[0]:
            script.edit_span(script.span(line.body[0])[0], script.span(line.body[-1])[1], "pass", step)
            return
    start, end = start_of_line(script, script.span(line)[0]), end_of_line(script, line)
    around = script.source[:start].endswith(script.newline * 2), script.source.startswith(script.newline, end)
    if all(around):  # one empty line for the two that would meet
        end += len(script.newline)
    script.edit_span(start, end, "", step)


def _delete_if(script, node, line, steps):
    """An `if` all of whose lines go, and of them `line`; the `if` itself belongs to the last step among them."""
    lines = [line] if isinstance(line, cst.SimpleStatementSuite) else node.body.body
    last = max(steps[small] for each in lines for small in each.body)
    start = start_of_line(script, script.span(node)[0])
    steps[node] = last
    above = script.parent(node)
    alone = isinstance(above, cst.IndentedBlock) and all(_gone(each, steps) for each in above.body)
    if len(lines) == 1 or alone:
        end = end_of_line(script, lines[-1])
        text = indent_of(script, node) + "pass" + script.newline if alone else ""
        script.edit_span(start, end, text, last)
        return
    starts = [start_of_line(script, script.span(each)[0]) for each in lines] + [end_of_line(script, lines[-1])]
    script.edit_span(start, starts[0], "", last)
    place = lines.index(line)
    script.edit_span(starts[place], starts[place + 1], "", steps[line.body[0]])


def _gone(node, steps):
    if node in steps:
        return True
    return isinstance(node, cst.SimpleStatementLine) and all(each in steps for each in node.body)


def _bare_if(node, parent):
    """Whether `node` is an `if` of simple lines without `else` that is no `elif`: emptied, it does nothing."""
    if not isinstance(node, cst.If) or node.orelse is not None or isinstance(parent, cst.If):
        return False
    lines = [node.body] if isinstance(node.body, cst.SimpleStatementSuite) else node.body.body
    return all(isinstance(each, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) for each in lines)


def delete_items(script, items, doomed, step=None):
    """Delete some of the comma-separated `items` (arguments, imported names), not all of them."""
    kept = [item for item in items if item not in doomed]
    assert kept, "deleting every item would leave an empty list"
    for place, item in enumerate(items):
        if item not in doomed:
            continue
        later = [each for each in items[place + 1 :] if each not in doomed]
        if later:  # up to the next item, so that this one's comma goes
            script.edit_span(script.span(item)[0], script.span(items[place + 1])[0], "", step)
        else:  # nothing is kept after it: from the end of the item before
            script.edit_span(script.span(items[place - 1])[1], script.span(item)[1], "", step)


def torch_name(script):
    """What the script calls torch at module level, "t" after `import torch as t`; None without such an import."""
    for node in script.of(cst.Import):
        if any(isinstance(around, (cst.FunctionDef, cst.ClassDef)) for around in script.ancestors(node)):
            continue
        for alias in node.names:
            name = script.code(alias.name)
            if name == "torch" and alias.asname:
                return alias.asname.name.value
            if not alias.asname and name.partition(".")[0] == "torch":
                return "torch"
    return None
