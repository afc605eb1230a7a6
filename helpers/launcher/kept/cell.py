"""A `%%ranks` cell on its rank: it runs where `ranks.state` has its names."""

import ast

from . import stay

LONGEST = 20_000  # characters of a value that are shown


def run(source, name):
    """Run a cell; what its last expression shows, or None: {"text/plain": …, "text/html": …}."""
    tree = ast.parse(source, name)
    names = vars(stay.state())
    quiet = source.rstrip().endswith(";")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
    if value is None or quiet:
        return None
    names["_"] = value
    return _shown(value)


def _shown(value):
    text = repr(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} … ({len(text)} characters)"
    bundle = {"text/plain": text}
    if not isinstance(value, type) and (html := getattr(value, "_repr_html_", None)) and (drawn := html()):
        bundle["text/html"] = drawn
    return bundle
