"""Which statement binds a name where it is used, and what imports make of it."""

import ast
import builtins

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope:
    """The names that a module, class, function or comprehension binds, each with (node, qualified name or None)."""

    def __init__(self, node, parent=None):
        self.node, self.parent = node, parent
        self.module = parent.module if parent else self
        self.bound = {}
        self.elsewhere = {}  # name: the scope in which `global` or `nonlocal` puts it

    def bind(self, name, node, qualified=None):
        """Add a node that binds a name; an import gives the `qualified` name."""
        self.elsewhere.get(name, self).bound.setdefault(name, []).append((node, qualified))

    def find(self, name):
        """What binds `name` for the code of this scope: [(node, qualified name or None)]."""
        if name in self.elsewhere:
            return self.elsewhere[name].find(name)
        if name in self.bound:
            return self.bound[name]
        if self.parent is not None:
            return self.outer.find(name)
        return [(None, f"builtins.{name}")] if hasattr(builtins, name) else []

    @property
    def outer(self):
        """The next scope whose names are visible from here: not that of a class."""
        scope = self.parent
        while isinstance(scope.node, ast.ClassDef):
            scope = scope.parent
        return scope


def scopes(module):
    """{node: its Scope} of every node of a module."""
    found, outermost = {}, Scope(module)
    waiting = [(node, outermost) for node in reversed(module.body)]
    while waiting:  # a loop: expressions may be nested deeper than Python calls
        node, scope = waiting.pop()
        found[node] = scope
        waiting += reversed(list(_inside(node, scope)))
    return found


def _inside(node, scope):
    """(node, its Scope) of what is in a node, in the order in which names are bound."""
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        if not isinstance(node, ast.Lambda):
            scope.bind(node.name, node)
        inner, body = Scope(node, scope), node.body if isinstance(node.body, list) else [node.body]
        inside = {*body, *getattr(node, "type_params", ())}
        for child in children:
            if isinstance(child, ast.arguments):
                for it in ast.iter_child_nodes(child):  # their defaults and annotations belong outside
                    if isinstance(it, ast.arg):
                        inner.bind(it.arg, it)
                    yield it, scope
            else:
                yield child, inner if child in inside else scope
    elif isinstance(node, COMPREHENSIONS):
        inner, first = Scope(node, scope), node.generators[0]
        yield first.iter, scope
        rest = [first.target, *first.ifs, *node.generators[1:], *(it for it in children if it not in node.generators)]
        yield from ((it, inner) for it in rest)
    else:
        _bind(node, scope)
        yield from ((it, scope) for it in children)


def _bind(node, scope):
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        scope.bind(node.id, node)
    elif isinstance(node, ast.NamedExpr):
        while isinstance(scope.node, COMPREHENSIONS):
            scope = scope.parent
        scope.bind(node.target.id, node.target)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            scope.bind(alias.asname or first, node, alias.name if alias.asname else first)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            qualified = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            scope.bind(alias.asname or alias.name, node, qualified)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        home = scope.module if isinstance(node, ast.Global) else scope.outer
        scope.elsewhere.update(dict.fromkeys(node.names, home))
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        scope.bind(node.name, node)
