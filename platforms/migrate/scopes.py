"""Which statement binds a name where it is used, and what imports make of it."""

import ast
import builtins
from itertools import chain

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope:
    """The names that a module, class, function or comprehension binds, each with (node, qualified name or None)."""

    def __init__(self, node, parent=None):
        self.node, self.parent = node, parent
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
        """The next scope whose names are seen from here: not that of a class."""
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
        waiting += reversed(list(_inside(node, scope, found)))
    return found


def _inside(node, scope, found):
    """(node, its Scope) of what is in a node, in the order in which names are bound."""
    if isinstance(node, FUNCTIONS):
        yield from _function(node, scope, found)
    elif isinstance(node, ast.ClassDef):
        scope.bind(node.name, node)
        inner = Scope(node, scope)
        yield from ((it, scope) for it in chain(node.decorator_list, node.bases, node.keywords))
        yield from ((it, inner) for it in (*getattr(node, "type_params", ()), *node.body))
    elif isinstance(node, COMPREHENSIONS):
        inner, first = Scope(node, scope), node.generators[0]
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        yield first.iter, scope
        yield from ((it, inner) for it in (first.target, *first.ifs, *node.generators[1:], *parts))
    else:
        _bind(node, scope)
        yield from ((it, scope) for it in ast.iter_child_nodes(node))


def _function(node, scope, found):
    given = node.args
    params = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    outside = [*given.defaults, *filter(None, given.kw_defaults), *(it.annotation for it in params if it.annotation)]
    inner, body = Scope(node, scope), [node.body]
    if not isinstance(node, ast.Lambda):
        scope.bind(node.name, node)
        outside += [*node.decorator_list, *filter(None, [node.returns])]
        body = [*getattr(node, "type_params", ()), *node.body]
    for param in params:
        found[param] = inner
        inner.bind(param.arg, param)
    yield from ((it, scope) for it in outside)
    yield from ((it, inner) for it in body)


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
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name != "*":
                scope.bind(alias.asname or alias.name, node, f"{module}.{alias.name}")
    elif isinstance(node, ast.Global):
        module = scope
        while module.parent is not None:
            module = module.parent
        scope.elsewhere.update(dict.fromkeys(node.names, module))
    elif isinstance(node, ast.Nonlocal):
        scope.elsewhere.update(dict.fromkeys(node.names, scope.outer))
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        scope.bind(node.name, node)
    elif isinstance(node, ast.MatchMapping) and node.rest:
        scope.bind(node.rest, node)
