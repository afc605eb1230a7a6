"""The syntax tree of a text with its places: comments and spaces live in the text, which is edited by place."""

import ast
import io
import re
import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor)
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\r\n]*)
    | (?P<string>(?:\b[rbuft]{1,3})?(?P<quote>'{3}|"{3}|'|")(?P<inside>(?:\\.|(?!(?P=quote)).)*)(?P=quote))
    | (?P<name>[^\W\d]\w*)""",
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)
_CODING = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_FIELD = re.compile(r"\{([^{}]*)\}|(?:[^{]|\{\{)+")  # in an f-string


class MigrationError(ValueError):
    """A script that cannot be read or parsed; the message names the file and the line."""

    def __init__(self, name, line, reason):
        self.name, self.line, self.reason = name, line, reason
        super().__init__(f"{name}:{line}: {reason}" if line else f"{name}: {reason}")


def lines_of(text):
    """The lines of `text` with their ends, split where Python splits (not at form feeds)."""
    return list(io.StringIO(text, newline=""))


def read(path, name):
    """The text of a script. Raises MigrationError where it is not UTF-8, or says so itself (PEP 263)."""
    raw = path.read_bytes()
    for number, line in enumerate(raw.split(b"\n", 2)[:2], start=1):
        said = _CODING.match(line)
        if said and said[1].lower().replace(b"_", b"-") not in (b"utf-8", b"utf8") and not raw.isascii():
            raise MigrationError(name, number, f"this is {said[1].decode()} text; save it as UTF-8 without this line")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise MigrationError(name, line, f"this is not utf-8 text ({error.reason}); save it as UTF-8") from None


def parse(text, name):
    """The `ast` of `text` (without byte order mark). Raises MigrationError where it is no script for this Python."""
    if bare := re.search(r"\r(?!\n)", text):
        line = text.count("\n", 0, bare.start()) + 1
        raise MigrationError(name, line, "a carriage return without line feed; save the file with LF or CRLF")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise MigrationError(name, error.lineno or 1, f"this does not parse as Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise MigrationError(name, 1, f"this does not parse: {error}") from None


class Unclear(Exception):
    """A part that was not recognised well enough to change it; the script keeps it, with a note."""

    def __init__(self, node, text, advice):
        super().__init__(text)
        self.node, self.text, self.advice = node, text, advice


@dataclass(frozen=True)
class Token:
    """A "name", "string", "comment" or the "text" in an f-string: the offset where it starts, and its code.

    `inside` is what stands between the quotation marks of a string, from the offset `at`; else the code.
    """

    kind: str
    start: int
    code: str
    inside: str
    at: int


def tokens(text, shift=0):
    """The names, strings and comments of `text`, in order; an f-string comes in its pieces."""
    for match in _TOKEN.finditer(text):
        kind, start, code = match.lastgroup, match.start() + shift, match[0]
        if kind != "string":
            yield Token(kind, start, code, code, start)
        elif "f" not in code[: match.start("quote") - match.start()].lower():
            yield Token(kind, start, code, match["inside"], match.start("inside") + shift)
        else:
            for piece in _FIELD.finditer(match["inside"]):
                at = match.start("inside") + piece.start() + shift
                if piece[1] is None:
                    yield Token("text", at, piece[0], piece[0], at)
                else:
                    yield from tokens(piece[1], at + 1)


class Tree:
    """The `ast` of `source`: what is around a node, what its name means, and where it stands."""

    def __init__(self, source, file):
        self.source, self.file = source, file
        self.module = parse(source, file)
        self._lines = lines_of(source)
        self._starts = [0, *accumulate(map(len, self._lines))]
        self._walks = {}
        self._parents = {child: node for node in self.walk(self.module) for child in ast.iter_child_nodes(node)}

    @cached_property
    def newline(self):
        """How the lines end: "\\n" or "\\r\\n"."""
        return "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"

    # Nodes

    def walk(self, node):
        """The nodes of `ast.walk(node)`, remembered."""
        if node not in self._walks:
            self._walks[node] = list(ast.walk(node))
        return self._walks[node]

    @cached_property
    def nodes(self):
        """All nodes that have a place, in the order of the text."""
        return in_order(node for node in self.walk(self.module) if hasattr(node, "lineno"))

    def of(self, *kinds):
        """The nodes of these classes, in the order of the text."""
        return [node for node in self.nodes if isinstance(node, kinds)]

    def calls(self, node, *names):
        """The calls in `node` of one of these dotted names (see `name`), in the order of the text."""
        return in_order(it for it in self.walk(node) if self.called(it) in names and isinstance(it, ast.Call))

    def methods(self, *names):
        """The calls of a method (or function of a module) with one of these last names, in the order of the text."""
        return [it for it in self.of(ast.Call) if getattr(it.func, "attr", "") in names]

    def assigned(self, node, *patterns):
        """The statements `name = called(...)` in `node` where one of the patterns fits what is called, in order."""
        return in_order(
            it
            for it in self.walk(node)
            if isinstance(it, ast.Assign)
            and isinstance(it.targets[0], ast.Name)
            and any(fnmatchcase(self.called(it.value), pattern) for pattern in patterns)
        )

    def parent(self, node):
        """The node around `node`, None for the module."""
        return self._parents.get(node)

    def parents(self, node, *kinds):
        """The nodes around `node` (of these classes), from the inside out."""
        while node in self._parents:
            node = self._parents[node]
            if not kinds or isinstance(node, kinds):
                yield node

    def function(self, node):
        """The innermost function around `node`, or None."""
        return next(self.parents(node, ast.FunctionDef), None)

    def definitions(self, node):
        """The functions and classes around `node`, from the inside out."""
        return list(self.parents(node, *DEFINITIONS))

    def statement(self, node):
        """The innermost statement that `node` is or is in."""
        return node if isinstance(node, ast.stmt) else next(self.parents(node, ast.stmt))

    def inside(self, node, block):
        """The statement of a block (or of the body of a function) in which `node` is, or None."""
        return next((it for it in (node, *self.parents(node)) if it in getattr(block, "body", block)), None)

    def block(self, statement):
        """The list of statements in which a statement stands."""
        blocks = [value for _, value in ast.iter_fields(self._parents[statement]) if isinstance(value, list)]
        return next(block for block in blocks if statement in block)

    def is_elif(self, node):
        """Whether an `if` is written as the `elif` of another one."""
        return isinstance(node, ast.If) and self.code(node).startswith("elif")

    # Meaning

    @cached_property
    def _bound(self):
        """{name: [(node that binds it somewhere in the script, qualified name of an import or None)]}."""
        found = {}
        for node in self.walk(self.module):
            for name, qualified in _binds(node):
                found.setdefault(name, []).append((node, qualified))
        return found

    @cached_property
    def imports(self):
        """{what the script calls it: the dotted name of what is imported}, wherever that is."""
        return {name: full for name, found in self._bound.items() for _, full in found if full and full[0] != "."}

    def alias(self, module):
        """How this script writes a module: "dist" for torch.distributed."""
        return next((local for local, name in self.imports.items() if name == module), module)

    @cached_property
    def torch(self):
        """What the script calls torch at module level, "t" after `import torch as t`; None without such an import."""
        for node in self.of(ast.Import):
            for alias in node.names if not self.definitions(node) else ():
                if alias.name == "torch" or (not alias.asname and alias.name.startswith("torch.")):
                    return alias.asname or "torch"
        return None

    def name(self, node):
        """The dotted name of an expression by the imports ("torch.cuda.is_available"), "" for others."""
        first, attributes = _dotted(node)
        return ".".join([self.imports.get(first.id, first.id), *attributes]) if first else ""

    def called(self, node):
        """The dotted name of what a call calls, "" where `node` is no call."""
        return self.name(node.func) if isinstance(node, ast.Call) else ""

    def names(self, node):
        """The full names of `node`, where its first name is that of imports and of nothing else in the script.

        A call has the names of what it calls; what is read off the result of a call or of an index has none.
        """
        first, attributes = _dotted(node.func if isinstance(node, ast.Call) else node)
        found = [full for _, full in self._bound.get(first.id, ())] if first else []
        return {".".join([full, *attributes]) for full in found} if all(found) else set()

    def bindings(self, name):
        """The nodes that bind a Name anywhere in the script: imports, Names assigned to, functions, parameters."""
        return [node for node, _ in self._bound.get(name.id, ())] if isinstance(name, ast.Name) else []

    # Places

    def span(self, node):
        """(start, end) of a node in the text, without the parentheses around it."""
        return (self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset))

    def _offset(self, line, column):
        text = self._lines[line - 1]
        if not text.isascii():  # columns of ast count bytes
            column = len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def code(self, node):
        """The text of a node."""
        start, end = self.span(node)
        return self.source[start:end]

    def name_span(self, node):
        """(start, end) of the last name of an Attribute, of the module of an import, of what an alias imports."""
        start, end = self.span(node)
        if isinstance(node, ast.Attribute):
            return end - len(node.attr), end
        before = r"from\s+" if isinstance(node, ast.ImportFrom) else ""
        return re.compile(rf"{before}(\w+(?:\s*\.\s*\w+)*)").match(self.source, start).span(1)

    def arguments(self, call):
        """What a call is given, positional or by keyword, in the order of the text."""
        return in_order([*call.args, *call.keywords])

    def keyword(self, call, name):
        """The value of a keyword of a call, or None."""
        return next((it.value for it in call.keywords if it.arg == name), None)

    def argument_span(self, call, node):
        """(start, end) of an argument with the parentheses around it."""
        first, last = self.source.index("(", self.span(call.func)[1]) + 1, self.span(call)[1] - 1
        start, end = self.span(node)
        while True:
            before, after = self.source[first:start].rstrip(), self.source[end:last].lstrip()
            if not (before.endswith("(") and after.startswith(")")):
                return start, end
            start, end = first + len(before) - 1, last - len(after) + 1

    @cached_property
    def tokens(self):
        """The names, strings and comments, in order."""
        return list(tokens(self.source))

    def string(self, node):
        """The Token of a string that is written as one piece, None for other nodes."""
        if not isinstance(getattr(node, "value", None), str) or isinstance(self.parent(node), ast.JoinedStr):
            return None
        code, (start, _) = self.code(node), self.span(node)
        found = next(tokens(code, start), None)
        return found if found and found.kind == "string" and found.code == code else None

    def line_at(self, offset):
        """The number of the line of an offset, from 1."""
        return self.source.count("\n", 0, offset) + 1


def in_order(nodes):
    """Nodes in the order of the text, those around others first."""
    return sorted(nodes, key=lambda it: (it.lineno, it.col_offset, -it.end_lineno, -it.end_col_offset))


def _binds(node):
    """The names that a node binds, each with its qualified name where it imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
    elif isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id, None
    elif isinstance(node, (*DEFINITIONS, ast.arg, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        yield getattr(node, "name", getattr(node, "arg", None)), None


def _dotted(node):
    """(the Name that a dotted name starts with, its attributes); None for the Name of anything else."""
    attributes = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    return (node, attributes) if isinstance(node, ast.Name) else (None, attributes)
