"""A script as the passes see it: its tree, what its names mean, and edits that leave the rest alone."""

import ast
import textwrap
from functools import cached_property
from string import Template

from .tree import Tree, Unclear


class Script(Tree):
    """One text of a script, for the passes to read, edit and remark on.

    `edit` and its like collect replacements; `edited()` is the text with them, everything else as it was.
    `style` is that of the migration; `step` the one that an edit belongs to if it does not say.
    """

    def __init__(self, source, file, style, notes):
        super().__init__(source, file)
        self.style, self.step, self.notes, self.swallowed = style, None, notes, False
        self._edits, self._doomed = [], {}

    @cached_property
    def shape(self):
        """What was recognised in the script (`shape.Shape`)."""
        from .shape import Shape

        return Shape(self)

    # Changes

    def edit_span(self, start, end, text, step=None):
        """Replace source[start:end]."""
        if self.source[start:end] != text:
            self._edits.append((start, end, text, step or self.step))

    def edit(self, node, text, step=None):
        """Replace the text of `node`."""
        self.edit_span(*self.span(node), text, step)

    def insert(self, offset, text, step=None):
        """Insert `text` before the character at `offset`."""
        self.edit_span(offset, offset, text, step)

    def delete(self, statement, step=None):
        """Take out a small statement; what becomes of its block is settled when all edits are known."""
        self._doomed[statement] = step or self.step

    @property
    def pending(self):
        """Whether there are edits that are not yet made."""
        return bool(self._edits or self._doomed)

    def forget(self):
        """Drop the edits that are not yet made."""
        self._edits, self._doomed = [], {}

    def edited(self):
        """[(step, text, places)]: the text after the edits of one step, after those of two, and so on.

        Every line of the last text is known to come from one step; `places` are those of its edits (see _changed).
        `swallowed` then says whether edits lay inside others and were left out: the passes that made them have to run
        once more on the last text. The edits are then forgotten.
        """
        from .edits import delete_statements

        delete_statements(self, self._doomed)
        edits, self.swallowed = _apart(self._edits)
        self.forget()
        steps = sorted({edit[3] for edit in edits})
        return [
            (step, _apply(self.source, [edit for edit in edits if edit[3] <= step]), _changed(edits, step))
            for step in steps
        ]

    # Whole lines

    def indent(self, node):
        """The white space with which the line of a node starts."""
        line = self._lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    @cached_property
    def unit(self):
        """One level of indentation in this script."""
        for node in self.walk(self.module):
            if isinstance(node, (ast.FunctionDef, ast.If, ast.For)) and node.body[0].lineno > node.lineno:
                return self.indent(node.body[0]).removeprefix(self.indent(node)) or "    "
        return "    "

    def first_line(self, statement, comments=True):
        """The first line of a statement, from 1, with the comment lines right above it and its decorators."""
        line = min([statement.lineno, *(it.lineno for it in getattr(statement, "decorator_list", ()))])
        while comments and line > 1 and self._lines[line - 2].startswith(self.indent(statement) + "#"):
            line -= 1
        return line

    def lines(self, statement, comments=True):
        """(start, end) in the text of the whole lines of a statement; Unclear where it shares a line."""
        first, last = self.first_line(statement, comments), statement.end_lineno
        start, end = self._starts[first - 1], self._starts[last]
        before = self.source[self._starts[statement.lineno - 1] : self.span(statement)[0]]
        after = self.source[self.span(statement)[1] : end].strip()
        if before.strip(" \t\f@") or (after and not after.startswith("#")):
            raise Unclear(statement, "several statements on one line", "Give each a line of its own and migrate again.")
        return start, end

    def shown(self, statement, indent="", comments=True):
        """The lines of a statement, indented by `indent` instead of what it had."""
        start, end = self.lines(statement, comments)
        if any(_is_text(it) and "\n" in it.value and it.end_lineno > it.lineno for it in self.walk(statement)):
            raise Unclear(statement, "a text over several lines is in the way", "Move this statement by hand.")
        return textwrap.indent(_dedent(self.source[start:end], self.indent(statement)), indent)

    def comments(self, statement, indent=""):
        """The comment lines right above a statement, indented by `indent` instead of what they had."""
        text = self.source[self._starts[self.first_line(statement) - 1] : self._starts[statement.lineno - 1]]
        return textwrap.indent(_dedent(text, self.indent(statement)), indent)

    @cached_property
    def quote(self):
        """The quotation mark that this script prefers."""
        strings = [self.code(it)[:3] for it in self.walk(self.module) if _is_text(it)]
        double = [it for it in strings if it[:1] == '"' and it != '"""']
        return "'" if len([it for it in strings if it[:1] == "'"]) > len(double) else '"'

    def write(self, text, indent="", **pieces):
        """Lines written with ' and four spaces, in the quotes, indentation and line ends of this script.

        `$name` stands for a piece of the script's own code.
        """
        if self.quote == '"':
            text = text.translate(str.maketrans("'\"", "\"'"))
        text = Template(text).substitute(pieces)
        lines = []
        for line in textwrap.dedent(text).strip("\n").split("\n"):
            bare = line.lstrip(" ")
            level, rest = divmod(len(line) - len(bare), 4)
            lines.append(indent + self.unit * level + " " * rest + bare if bare else "")
        return self.newline.join([*lines, ""])

    def before(self, statement, text, comments=True, **pieces):
        """Insert lines before a statement and the comments above it, a blank line between where one was above."""
        start = self.lines(statement, comments)[0]
        apart = self.newline if comments and self.source[:start].endswith(2 * self.newline) else ""
        self.insert(start, self.write(text, self.indent(statement), **pieces) + apart)

    def after(self, statement, text, **pieces):
        """Insert lines after a statement."""
        end = self.lines(statement)[1]
        newline = "" if self.source[:end].endswith(("\n", "\r")) else self.newline
        self.insert(end, newline + self.write(text, self.indent(statement), **pieces))

    def replace(self, statement, text, comments=True, **pieces):
        """Put lines in the place of a statement (and of the comments above it); "" takes it out."""
        start, end = self.lines(statement, comments)
        self.edit_span(start, end, self.write(text, self.indent(statement), **pieces) if text else "")

    def need(self, module):
        """Import `module` (of the standard library) where the script does not do so yet."""
        if module in self.imports.values():
            return
        imports = [it for it in self.module.body if isinstance(it, (ast.Import, ast.ImportFrom))]
        first = next(it for it in imports if getattr(it, "module", "") != "__future__")
        self.insert(self.lines(first, comments=False)[0], self.write(f"import {module}"))

    # Notes

    def left(self, node, text, advice):
        """Remark that something at `node` (a node, a line, several lines or None) was seen and not changed."""
        self.notes.add("left", _places(node), text, advice)

    def choose(self, node, text, advice):
        """Remark on what only the user can choose."""
        self.notes.add("choose", _places(node), text, advice)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _dedent(text, indent):
    """`text` without `indent` where its lines have it (not inside strings that go over lines)."""
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def _places(node):
    if node is None:
        return ()
    if isinstance(node, ast.AST):
        return (node.lineno,)
    return (node,) if isinstance(node, int) else tuple(node)


def _apart(edits):
    """(the edits in order, each once, without those that lie inside another one; whether such a one is left out).

    What lies in a text that is taken out is not missed.
    """
    kept, swallowed = [], False
    # What is inserted where something is replaced comes before it.
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit[0], edit[1] > edit[0], -edit[1])):
        if not kept or edit[0] >= kept[-1][1]:
            kept.append(edit)
        else:
            assert edit[1] <= kept[-1][1], f"the edits {kept[-1]} and {edit} overlap"
            swallowed |= bool(kept[-1][2])
    return kept, swallowed


def _apply(source, edits):
    parts, at = [], 0
    for start, end, text, _ in edits:
        parts += [source[at:start], text]
        at = end
    return "".join([*parts, source[at:]])


def _changed(edits, step):
    """[(start, end, start, end)] of the edits of a step: before in the text of the steps before it, then in its own."""
    made, old, new = [], 0, 0  # how far what follows has moved
    for start, end, text, of in edits:
        if of == step:
            made.append((start + old, end + old, start + new, start + new + len(text)))
        old += (len(text) - (end - start)) * (of < step)
        new += (len(text) - (end - start)) * (of <= step)
    return made
