"""IPython extension of the learner's notebooks: a cell waits until the prediction that it uses is written.

    %load_ext tools.predictions

A prediction is a variable with "predict" in its name. While it holds `...`, each cell that reads it ends with one line
that asks for it, before anything in the cell has run.
"""

import ast

from helpers.language import _


class NotPredicted(Exception):
    """A cell uses a prediction that nobody has made."""

    def _render_traceback_(self):  # what IPython shows: one line, no stack
        return [str(self)]


def open_predictions(tree, variables) -> list:
    """The names of the predictions that the code of a cell reads and that hold `...`, in it or in `variables`."""
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    written = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            missing = any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(statement.value))
            for target in statement.targets:
                written |= {node.id: missing for node in ast.walk(target) if isinstance(node, ast.Name)}
    names = sorted(name for name in read if "predict" in name)
    return [name for name in names if written.get(name, _holds_dots(variables.get(name)))]


def _holds_dots(value):
    return value is ... or (isinstance(value, dict) and any(one is ... for one in value.values()))


class Asking(ast.NodeTransformer):
    """Replaces the code of a cell that reads an open prediction."""

    def __init__(self, variables):
        self.variables = variables

    def visit_Module(self, tree):
        missing = open_predictions(tree, self.variables)
        if not missing:
            return tree
        text = _("Your prediction first: write it in the place of ... in `{name}`, or None to go on without one.")
        self.variables["__not_predicted__"] = NotPredicted(text.format(name=missing[0]))
        return ast.parse("raise __not_predicted__ from None")


def load_ipython_extension(shell):
    shell.ast_transformers.append(Asking(shell.user_ns))
