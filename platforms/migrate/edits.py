"""Edits of a text: how they are put together, and those of statements and lists, which take commas and lines along."""

from bisect import bisect_right


def apart(made):
    """The edits in order, each once, without those inside another one; an edit is (start, end, text, step)."""
    kept = []
    # What is inserted where something is replaced comes before it.
    for edit in sorted(dict.fromkeys(made), key=lambda edit: (edit[0], edit[1] > edit[0], -edit[1])):
        if not kept or edit[0] >= kept[-1][1]:
            kept.append(edit)
        else:
            assert edit[1] <= kept[-1][1], f"the edits {kept[-1]} and {edit} overlap"
    return kept


def regions(source, starts, made):
    """[(first, last, [(step, text)])]: the lines first to last - 1 (from 0) as they are after each step's edits.

    `starts` are the offsets of the lines. Lines that several edits touch are one region.
    """
    found = []  # [first, last, edits]
    for edit in made:
        start, end, text, _ = edit
        first, last = min(bisect_right(starts, start) - 1, len(starts) - 2), bisect_right(starts, end) - 1
        whole = starts[last] == end and (text.endswith("\n") or (not text and starts[first] == start))
        last = min(last + (not whole), len(starts) - 1)
        if found and first < found[-1][1]:
            found[-1][1] = max(last, found[-1][1])
            found[-1][2].append(edit)
        else:
            found.append([first, last, [edit]])
    return [(first, last, _versions(source, starts[first], starts[last], inside)) for first, last, inside in found]


def _versions(source, start, end, made):
    """[(step, the text from start to end after the edits of all steps up to this one)]."""
    versions = []
    for step in sorted({edit[3] for edit in made}):
        parts, at = [], start
        for first, last, text, of in made:
            if of <= step:
                parts += [source[at:first], text]
                at = last
        versions.append((step, "".join([*parts, source[at:end]])))
    return versions


# Statements


def line_of(script, statement):
    """The statements that stand on one line with `statement`, itself among them."""
    return [
        it for it in script.block(statement) if it.lineno <= statement.end_lineno and it.end_lineno >= statement.lineno
    ]


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
        script.append(statement, f"; {text.partition('  #')[0]}")  # before what follows on the line
    elif script.source[:at].endswith("\n"):
        script.insert(at, f"{script.indent(line[0])}{text}{script.newline}")
    else:
        script.insert(at, f"{script.newline}{script.indent(line[0])}{text}")


def delete_statements(script, steps):
    """Delete small statements, {node: step}; an emptied block gets `pass`."""
    for node, step in steps.items():
        line = line_of(script, node)
        kept, place = [it for it in line if it not in steps], line.index(node)
        if any(around in steps for around in script.parents(node)):
            continue
        if kept and place + 1 < len(line):  # with its semicolon
            script.edit_span(script.span(node)[0], script.span(line[place + 1])[0], "", step)
        elif kept:
            script.edit_span(script.span(line[place - 1])[1], script.span(node)[1], "", step)
        elif node is line[0]:
            _delete_line(script, line, steps)


def _delete_line(script, line, steps):
    block, step = script.block(line[0]), steps[line[0]]
    emptied = script.parent(line[0]) is not script.module and all(each in steps for each in block)
    if emptied and (_follows_colon(script, line) or line[0] is block[0]):
        script.edit_span(script.span(line[0])[0], script.span(line[-1])[1], "pass", step)
        return
    script.edit_span(start_of_line(script, line[0]), end_of_line(script, line[-1]), "", step)


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
