"""A script as the passes see it: its tree, what its names mean, and edits that leave the rest alone."""

import ast
import textwrap
from functools import cached_property
from pathlib import Path
from string import Template

from helpers.language import N_

from . import edits
from .tree import Tree, Unclear

ONE_A_LINE = N_("Give each a line of its own and migrate again.")

_PARTS = Path(__file__).with_name("written.txt").read_text(encoding="utf-8").removeprefix("## ").split("\n## ")
WRITTEN = dict(part.split("\n", 1) for part in _PARTS)  # code that the passes write, by name


class Script(Tree):
    """One text of a script, for the passes to read, edit and remark on.

    `edit` and its like collect replacements, which `edited()` makes; everything else stays as it was.
    `style` is that of the migration; `step` the one that an edit belongs to if it does not say.
    """

    def __init__(self, source, file, style, notes):
        super().__init__(source, file)
        self.style, self.step, self.notes = style, None, notes
        self.forget()

    @cached_property
    def shape(self):
        """The parts of a script in the shape of PyTorch's ImageNet example (`shape.Shape`), or None."""
        from .shape import recognise

        return recognise(self)

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

    def append(self, node, text, step=None):
        """Insert `text` right after a node."""
        self.insert(self.span(node)[1], text, step)

    def delete(self, statement, step=None):
        """Delete a small statement; what becomes of its block is settled when all edits are known."""
        self._doomed[statement] = step or self.step

    @property
    def pending(self):
        """Whether there are edits that are not yet made."""
        return bool(self._edits or self._doomed)

    def forget(self):
        """Drop the edits that are not yet made."""
        self._edits, self._doomed = [], {}

    def edited(self):
        """[(first line, last line, [(step, text)])] of the lines that change; the edits are then forgotten."""
        edits.delete_statements(self, self._doomed)
        made = edits.apart(self._edits)
        self.forget()
        return edits.regions(self.source, self._starts, made)

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
        start, end = self._starts[self.first_line(statement, comments) - 1], self._starts[statement.end_lineno]
        before = self.source[self._starts[statement.lineno - 1] : self.span(statement)[0]]
        after = self.source[self.span(statement)[1] : end].strip()
        if before.strip(" \t\f@") or (after and not after.startswith("#")):
            raise Unclear(statement, N_("several statements on one line"), ONE_A_LINE)
        return start, end

    def shown(self, statement, indent="", comments=True):
        """The lines of a statement, indented by `indent` instead of what it had."""
        start, end = self.lines(statement, comments)
        if any(_is_text(it) and "\n" in it.value and it.end_lineno > it.lineno for it in self.walk(statement)):
            raise Unclear(statement, N_("a text over several lines is in the way"), N_("Move this statement by hand."))
        return self._indented(self.source[start:end], statement, indent)

    def comments(self, statement, indent=""):
        """The comment lines right above a statement, indented by `indent` instead of what they had."""
        first = self.first_line(statement)
        return self._indented("".join(self._lines[first - 1 : statement.lineno - 1]), statement, indent)

    def _indented(self, text, statement, indent):
        bare = (line.removeprefix(self.indent(statement)) for line in text.splitlines(keepends=True))
        return textwrap.indent("".join(bare), indent)

    @cached_property
    def quote(self):
        """The quotation mark that this script prefers."""
        strings = [self.code(it)[:3] for it in self.walk(self.module) if _is_text(it)]
        single = sum(it[:1] == "'" for it in strings)
        return "'" if single > sum(it[:1] == '"' and it != '"""' for it in strings) else '"'

    def quoted(self, text):
        """`text` as a string of this script."""
        return f"{self.quote}{text}{self.quote}"

    def write(self, text, indent="", **pieces):
        """Lines written with ' and four spaces, in the quotes, indentation and line ends of this script.

        `text` may be the name of a part of written.txt. `$name` stands for a piece of the script's own code.
        """
        text = WRITTEN.get(text, text)
        if self.quote == '"':
            text = text.translate(str.maketrans("'\"", "\"'"))
        lines = []
        for line in textwrap.dedent(Template(text).substitute(pieces)).strip("\n").split("\n"):
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
        self.insert(self.lines(statement)[1], self.write(text, self.indent(statement), **pieces))

    def replace(self, statement, text, comments=True, **pieces):
        """Put lines in the place of a statement (and of the comments above it); "" takes it out."""
        text = self.write(text, self.indent(statement), **pieces) if text else ""
        self.edit_span(*self.lines(statement, comments), text)

    def need(self, module):
        """Import `module` (of the standard library) where the script does not do so yet."""
        if module not in self.imports.values():
            imports = [it for it in self.module.body if isinstance(it, (ast.Import, ast.ImportFrom))]
            first = next(it for it in imports if getattr(it, "module", "") != "__future__")
            self.insert(self.lines(first, comments=False)[0], self.write(f"import {module}"))

    # Notes

    def left(self, node, text, advice):
        """Remark that something at `node` (a node, a line, several lines or None) was seen and not changed."""
        self.notes.add("left", _lines_of(node), text, advice)

    def choose(self, node, text, advice):
        """Remark on what only the user can choose."""
        self.notes.add("choose", _lines_of(node), text, advice)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _lines_of(node):
    if isinstance(node, ast.AST):
        return (node.lineno,)
    return (node,) if isinstance(node, int) else node or ()
