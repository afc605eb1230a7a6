"""The concrete syntax tree of a text, made when it is first asked for, and what its nodes mean."""

import dataclasses
from functools import cached_property

from .source import MigrationError, lines_of


def _libcst():
    try:
        import libcst
        import libcst.metadata
    except ImportError as error:
        raise RuntimeError(f"migrate needs the package libcst ({error}): pip install libcst") from None
    return libcst


class Tree:
    """libcst's tree of `source` with parents, scopes, names by import and places."""

    def __init__(self, source, name):
        self.source, self.name = source, name

    @cached_property
    def tree(self):
        """The libcst Module."""
        cst = _libcst()
        # libcst cannot keep every end of a file: blank lines of spaces, a last backslash. No place depends on it.
        text = self.source.rstrip(" \t\f\r\n\\") + self.newline
        try:
            module = cst.parse_module(text)
        except cst.ParserSyntaxError as error:
            raise MigrationError(self.name, error.raw_line, f"this does not parse: {error.message}") from None
        except RecursionError:
            raise MigrationError(self.name, 1, "this is nested too deeply to parse") from None
        if module.code != text:
            raise MigrationError(self.name, 1, "libcst cannot keep this text as it is")
        return module

    @cached_property
    def newline(self):
        """How the lines end: "\\n" or "\\r\\n"."""
        first = next(iter(lines_of(self.source)), "")
        return "\r\n" if first.endswith("\r\n") else "\n"

    @cached_property
    def nodes(self):
        """All nodes, in the order of the text."""
        return list(self._parents)

    @cached_property
    def _parents(self):
        # libcst's own provider rebuilds the tree while it walks, which takes ten times as long.
        cst, fields, parents = _libcst(), {}, {}
        todo = [(self.tree, None)]
        while todo:
            node, parent = todo.pop()
            parents[node] = parent
            names = fields.setdefault(type(node), ()) or [field.name for field in dataclasses.fields(node)]
            fields[type(node)] = names
            inside = []
            for name in names:
                value = getattr(node, name)
                if isinstance(value, cst.CSTNode):
                    inside.append(value)
                elif isinstance(value, (list, tuple)):
                    inside += [each for each in value if isinstance(each, cst.CSTNode)]
            todo += [(each, node) for each in reversed(inside)]
        return parents

    def of(self, *kinds):
        """The nodes of these libcst classes, in the order of the text."""
        return [node for node in self.nodes if isinstance(node, kinds)]

    def parent(self, node):
        """The node around `node`, None for the module."""
        return self._parents.get(node)

    def ancestors(self, node):
        """The nodes around `node`, from the inside out."""
        node = self.parent(node)
        while node is not None:
            yield node
            node = self.parent(node)

    # Meaning

    @cached_property
    def _metadata(self):
        meta = _libcst().metadata
        # parse_module makes every node once, so the wrapper need not copy the tree.
        wrapper = meta.MetadataWrapper(self.tree, unsafe_skip_copy=True)
        providers = (meta.PositionProvider, meta.ScopeProvider, meta.ExpressionContextProvider)
        return {kind.__name__: found for kind, found in wrapper.resolve_many(providers).items()}

    def names(self, node):
        """The fully qualified names of `node` by imports (and builtins), a frozenset; empty for local names.

        A call has the names of what it calls; what is read off the result of a call or of an index
        has none.
        """
        cst = _libcst()
        inner = node.func if isinstance(node, cst.Call) else node
        while isinstance(inner, cst.Attribute):
            inner = inner.value
        scope = self.scope(node)
        if scope is None or not isinstance(inner, cst.Name):
            return frozenset()
        found = scope.get_qualified_names_for(node)
        return frozenset(name.name for name in found if name.source.name != "LOCAL")

    def scope(self, node):
        """libcst's scope of `node`; `scope[name]` are the assignments of a name in it."""
        return self._metadata["ScopeProvider"].get(node)

    def bindings(self, name):
        """The nodes that bind a Name where it is used: imports, Names assigned to, functions, parameters."""
        scope = self.scope(name)
        found = scope[name.value] if scope is not None else ()
        return [each.node for each in found if getattr(each, "node", None) is not None]

    def is_read(self, name):
        """Whether a Name is read there: not assigned, defined, imported or the name of an attribute."""
        cst, node, above = _libcst(), name, self.parent(name)
        while isinstance(above, cst.Attribute) and above.value is node:
            node, above = above, self.parent(above)
        if isinstance(above, (cst.Attribute, cst.ImportAlias, cst.ImportFrom, cst.NameItem)):
            return False
        context = self._metadata["ExpressionContextProvider"].get(name)
        return context is cst.metadata.ExpressionContext.LOAD

    # Places

    def line(self, node):
        """The line of `node`, from 1."""
        return self._metadata["PositionProvider"][node].start.line

    @cached_property
    def _starts(self):
        starts = [0]
        for line in lines_of(self.source):
            starts.append(starts[-1] + len(line))
        return starts

    def span(self, node):
        """(start, end) of `node` in the text, without the parentheses around it."""
        place = self._metadata["PositionProvider"][node]
        return tuple(self._starts[at.line - 1] + at.column for at in (place.start, place.end))

    def code(self, node):
        """The text of `node`."""
        start, end = self.span(node)
        return self.source[start:end]
