"""The command line of a training script: its parser, its arguments, and where they are parsed."""

import ast
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Argument:
    """An `add_argument` call: its option strings and the attribute of args that it sets."""

    call: ast.Call
    options: tuple
    dest: str

    def keyword(self, name):
        """The value of a keyword of the call, or None."""
        return next((it.value for it in self.call.keywords if it.arg == name), None)


class CommandLine:
    """What a script takes from its command line; nodes are of `script.module`."""

    def __init__(self, script):
        self.script = script

    @cached_property
    def parser(self):
        """The name of the ArgumentParser."""
        found = self._assigned(self.script.module, lambda value: self.script.called(value) == "argparse.ArgumentParser")
        return found[0].targets[0].id if found else None

    @cached_property
    def arguments(self):
        """Every add_argument call of the script as an `Argument`."""
        found = []
        for node in self.script.walk(self.script.module):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                options = tuple(it.value for it in node.args if isinstance(it, ast.Constant))
                dest = next((it.value.value for it in node.keywords if it.arg == "dest" and _constant(it.value)), None)
                long = next((it for it in options if it.startswith("--")), options[0] if options else "")
                found.append(Argument(node, options, dest or long.lstrip("-").replace("-", "_")))
        return found

    @cached_property
    def last_argument(self):
        """The last statement that adds an argument to the parser itself."""
        own = [it.call for it in self.arguments if self.script.name(it.call.func) == f"{self.parser}.add_argument"]
        statements = [self.script.statement(it) for it in own]
        return max(statements, key=lambda it: it.lineno, default=None)

    def argument(self, dest):
        """The argument that sets args.`dest`, or None."""
        return next((it for it in self.arguments if it.dest == dest), None)

    @cached_property
    def parsed(self):
        """The statement `args = parser.parse_args()` (or `args = get_args()`, which returns that)."""
        parse = f"{self.parser}.parse_args"
        makers = {
            it.name for it in self._functions.values()
            if parse in (self.script.called(ret.value) for ret in ast.walk(it) if isinstance(ret, ast.Return))
        }  # fmt: skip
        found = self._assigned(self.script.module, lambda value: self.script.called(value) in {parse, *makers})
        found = [it for it in found if getattr(self.script.function(it), "name", None) not in makers]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _functions(self):
        return {it.name: it for it in self.script.module.body if isinstance(it, ast.FunctionDef)}

    def _assigned(self, scope, test):
        """Statements `name = value` in `scope` whose value passes `test`, in the order of the text."""
        found = [
            it for it in self.script.walk(scope)
            if isinstance(it, ast.Assign) and isinstance(it.targets[0], ast.Name) and test(it.value)
        ]  # fmt: skip
        return sorted(found, key=lambda it: it.lineno)


def _constant(node):
    return isinstance(node, ast.Constant)
