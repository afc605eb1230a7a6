"""The syntax tree of a script with its places in the text, for passes that look at statements.

Python's own `ast` is enough where whole statements are recognised, and fifty times as fast as
metadata of libcst; comments live in the text, which the passes edit by place.
"""

import ast
import re
import textwrap
from bisect import bisect_right
from functools import cached_property
from string import Template

from .source import lines_of


class Unclear(Exception):
    """A part that was not recognised well enough to change it; the script keeps it, with a note."""

    def __init__(self, node, text, advice):
        super().__init__(text)
        self.node, self.text, self.advice = node, text, advice


def careful(apply):
    """Let a pass give up with `Unclear`: the note is kept, the text stays."""

    def wrapped(script):
        try:
            return apply(script)
        except Unclear as unclear:
            script.left(getattr(unclear.node, "lineno", None), unclear.text, unclear.advice)
            script.edited()  # forget what was begun
            return None

    return wrapped


class Syntax:
    """The `ast` of a text: parents, qualified names by import, places, and whole-line edits."""

    def __init__(self, script):
        self.script, self.text = script, script.source
        self.module = ast.parse(self.text)
        self._lines = lines_of(self.text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._walks = {}
        self._parents = {child: node for node in self.walk(self.module) for child in ast.iter_child_nodes(node)}
        self.imports = dict(_imports(self.walk(self.module)))

    def walk(self, node):
        """The nodes of `ast.walk(node)`, remembered."""
        if node not in self._walks:
            self._walks[node] = list(ast.walk(node))
        return self._walks[node]

    # Meaning

    def name(self, node):
        """The dotted name of an expression by the imports ("torch.cuda.is_available"), "" for others."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def called(self, node):
        """The dotted name of what a call calls, "" where `node` is no call."""
        return self.name(node.func) if isinstance(node, ast.Call) else ""

    def alias(self, module):
        """How this script writes a module: "dist" for torch.distributed."""
        for local, name in self.imports.items():
            if name == module:
                return local
        return module

    def calls(self, node, *names):
        """The calls in `node` of one of these dotted names, in the order of the text."""
        found = [it for it in self.walk(node) if isinstance(it, ast.Call) and self.name(it.func) in names]
        return sorted(found, key=lambda it: (it.lineno, it.col_offset))

    def parents(self, node):
        """The nodes around `node`, from the inside out."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def function(self, node):
        """The innermost function around `node`, or None."""
        return next((it for it in self.parents(node) if isinstance(it, ast.FunctionDef)), None)

    def statement(self, node):
        """The innermost statement that `node` is or is in."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def top(self, node, function):
        """The statement directly in the body of `function` (or the module) in which `node` is, or None."""
        for it in (node, *self.parents(node)):
            if it in function.body:
                return it
        return None

    def block(self, statement):
        """The list of statements in which a statement stands."""
        parent = self._parents[statement]
        blocks = [getattr(parent, name, None) or [] for name in ("body", "orelse", "finalbody")]
        return next(block for block in blocks if isinstance(block, list) and statement in block)

    def is_elif(self, node):
        """Whether an `if` is written as the `elif` of another one."""
        return isinstance(node, ast.If) and self.code(node).startswith("elif")

    # Places

    def span(self, node):
        """(start, end) of a node in the text."""
        return (
            self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)
        )  # fmt: skip

    def _offset(self, line, column):
        text = self._lines[line - 1]
        if not text.isascii():  # columns of ast count bytes
            column = len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def code(self, node):
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, statement):
        """The white space before a statement."""
        line = self._lines[statement.lineno - 1]
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
        before = self._lines[line - 1][: len(self.indent(statement))] if line <= len(self._lines) else ""
        while comments and line > 1 and re.match(re.escape(before) + r"#", self._lines[line - 2]):
            line -= 1
        return line

    def lines(self, statement, comments=True):
        """(start, end) in the text of the whole lines of a statement; Unclear where it shares a line."""
        first, last = self.first_line(statement, comments), statement.end_lineno
        start, end = self._starts[first - 1], self._starts[last]
        before = self.text[self._starts[statement.lineno - 1] : self.span(statement)[0]]
        after = self.text[self.span(statement)[1] : end].strip()
        if before.strip(" \t\f@") or (after and not after.startswith("#")):
            raise Unclear(statement, "several statements on one line", "Give each a line of its own and migrate again.")
        return start, end

    def shown(self, statement, indent="", comments=True):
        """The lines of a statement, indented by `indent` instead of what it had."""
        start, end = self.lines(statement, comments)
        if any(_is_text(it) and '\n' in it.value and it.end_lineno > it.lineno for it in self.walk(statement)):
            raise Unclear(statement, "a text over several lines is in the way", "Move this statement by hand.")
        return textwrap.indent(_dedent(self.text[start:end], self.indent(statement)), indent, _not_blank)

    def comments(self, statement, indent=""):
        """The comment lines right above a statement, indented by `indent` instead of what they had."""
        text = self.text[self._starts[self.first_line(statement) - 1] : self._starts[statement.lineno - 1]]
        return textwrap.indent(_dedent(text, self.indent(statement)), indent, _not_blank)

    # Edits

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
        return self.script.newline.join([*lines, ""])

    def before(self, statement, text, step=None, comments=True, **pieces):
        """Insert lines before a statement and the comments above it, a blank line between where one was above."""
        start = self.lines(statement, comments)[0]
        apart = self.script.newline if comments and self._is_blank(start, -1) else ""
        self.script.insert(start, self.write(text, self.indent(statement), **pieces) + apart, step)

    def after(self, statement, text, step=None, **pieces):
        """Insert lines after a statement."""
        end = self.lines(statement)[1]
        newline = "" if self.text[:end].endswith(("\n", "\r")) else self.script.newline
        self.script.insert(end, newline + self.write(text, self.indent(statement), **pieces), step)

    def replace(self, statement, text, step=None, comments=True, **pieces):
        """Put lines in the place of a statement (and of the comments above it); "" takes it out."""
        start, end = self.lines(statement, comments)
        text = self.write(text, self.indent(statement), **pieces) if text else ""
        if not text and self._is_blank(start, -1) and self._is_blank(end, 0):  # leave one blank line, not two
            end = self._starts[bisect_right(self._starts, end)]
        self.script.edit_span(start, end, text, step)

    def _is_blank(self, offset, step):
        """Whether the line at `offset` of the text, or the one before it (-1), is blank."""
        place = bisect_right(self._starts, offset) - 1 + step
        return 0 <= place < len(self._lines) and not self._lines[place].strip()

    def need(self, module, step=None):
        """Import `module` (of the standard library) where the script does not do so yet."""
        if module in self.imports.values():
            return
        imports = [it for it in self.module.body if isinstance(it, (ast.Import, ast.ImportFrom))]
        imports = [it for it in imports if getattr(it, "module", "") != "__future__"]
        later = [it for it in imports if isinstance(it, ast.Import) and it.names[0].name > module]
        start = self.lines((later or imports)[0], comments=False)[0]
        self.script.insert(start, self.write(f"import {module}"), step)

    def edit(self, node, text, step=None):
        """Replace an expression."""
        self.script.edit_span(*self.span(node), text, step)


def _imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _not_blank(line):
    return bool(line.strip())


def _dedent(text, indent):
    """`text` without `indent` where its lines have it (not inside strings that go over lines)."""
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
