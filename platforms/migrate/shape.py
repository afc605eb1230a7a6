"""The parts of a training script in the shape of PyTorch's ImageNet example, whatever their names.

A parser, `main` that spawns one process a device, a worker that makes the process group, the model,
the loss, the optimizer and the loaders, and a function that runs one epoch.
"""

import ast
import re
from collections import namedtuple

from .training import Training, only


class _Missing(Exception):
    """A part that every script of this shape has is not there, or not clear."""


def recognise(script):
    """The `Shape` of a script, or None: nobody guesses."""
    try:
        return Shape(script)
    except _Missing:
        return None


# An add_argument call, its option strings, and the attribute of args that it sets.
Argument = namedtuple("Argument", "call options dest")


def _argument(script, call):
    options = tuple(it.value for it in call.args if isinstance(it, ast.Constant))
    dest = getattr(script.keyword(call, "dest"), "value", None)
    long = next((it for it in options if it.startswith("--")), options[0] if options else "")
    return Argument(call, options, dest or long.lstrip("-").replace("-", "_"))


class Shape(Training):
    """The recognised parts; nodes are of `script.module`, names are texts.

    Attributes:
        parser, arguments, last_argument: the ArgumentParser's name, every `Argument`, the last statement that adds one.
        parsed, args_in_main, args: `args = parser.parse_args()`, and what main and the worker call it.
        spawn, main, worker: the call of mp.spawn, the function that has it, and the one that runs in every process.
        process, count: the worker's parameters for the number of its process and of all of this host (or None).
        spawned: the condition, in the worker's words, under which it was spawned.
        card_statement, card: `args.gpu = gpu` of the worker (or what migrate makes of it), and its text for the
            number of its card.
        devices, device, place: the statements that make its torch.device, the name of that or None, and what it
            writes for its card: `loc`, or its torch.device in the modern style.
        group, distributed: its call of init_process_group, and the condition for several processes, "" always.
        rank, world_size: what that call gets, in the worker's words; parts of args.
    """

    def __init__(self, script):
        self.script, self.article = script, script.style == "article"
        self._find_command_line(script)
        self._find_processes(script)
        self._find_card(script)
        self.group = _needed(only(script.calls(self.worker, "torch.distributed.init_process_group")))
        self.distributed = next((script.code(it.test) for it in script.parents(self.group, ast.If)), "")
        self.rank, self.world_size = map(self._kept_in_args, ("rank", "world_size"))
        self.find_training(script)

    def _find_command_line(self, script):
        parsers = script.assigned(script.module, "argparse.ArgumentParser")
        self.parser = parsers[0].targets[0].id if parsers else None
        self.arguments = [_argument(script, it) for it in script.methods("add_argument")]
        added = script.calls(script.module, f"{self.parser}.add_argument")
        self.last_argument = script.statement(_needed(added and added[-1]))
        parse = f"{self.parser}.parse_args"  # perhaps args = get_args(), which returns that
        makers = {
            script.function(it).name
            for it in script.of(ast.Return)
            if script.called(it.value) == parse and script.function(it)
        }
        found = script.assigned(script.module, parse, *makers)
        self.parsed = _needed(only(it for it in found if getattr(script.function(it), "name", "") not in makers))
        self.args_in_main = self.parsed.targets[0].id

    def _find_processes(self, script):
        self.spawn = _needed(only(script.calls(script.module, "torch.multiprocessing.spawn")))
        self.main = script.function(self.spawn)
        _needed(self.main and self.parsed in self.main.body)
        started = getattr(self._spawned_with("fn", 0), "id", None)
        functions = (it for it in script.module.body if isinstance(it, ast.FunctionDef))
        self.worker = _needed(next((it for it in functions if it.name == started and it.args.args), None))
        self.process, *names = (it.arg for it in self.worker.args.args)
        given = getattr(self._spawned_with("args", 1), "elts", ())
        passed = dict(zip(map(script.code, given), names, strict=False))
        self.args = _needed(passed.get(self.args_in_main))
        number = self._spawned_with("nprocs", 2)
        self.count = passed.get(script.code(number)) if number else None
        self.spawned = self._condition()

    def _spawned_with(self, name, place):
        return self.script.keyword(self.spawn, name) or next(iter(self.spawn.args[place:]), None)

    def _condition(self):
        around = next(self.script.parents(self.spawn, ast.If, ast.FunctionDef))
        inside = isinstance(around, ast.If) and any(self.spawn in self.script.walk(it) for it in around.body)
        _needed(inside and {it.id for it in ast.walk(around.test) if isinstance(it, ast.Name)} == {self.args_in_main})
        return re.sub(rf"\b{self.args_in_main}\b", self.args, self.script.code(around.test))

    def _find_card(self, script):
        made = re.compile(rf"{self.args}\.\w+\s*=\s*(process_device_map\[)?{self.process}(\]| or 0)?")
        found = (it for it in script.walk(self.worker) if isinstance(it, ast.Assign))
        self.card_statement = _needed(next((it for it in found if made.fullmatch(script.code(it))), None))
        self.card = script.code(self.card_statement.targets[0])
        made = ("torch.device", "torch.accelerator.current_accelerator")
        found = [it for it in self.worker.body if isinstance(it, ast.Assign) and script.calls(it.value, *made)]
        found = [it for it in found if isinstance(it.targets[0], ast.Name)]
        self.device = found[0].targets[0].id if found else None
        self.devices = [it for it in found if it.targets[0].id == self.device]
        self.place = "loc" if self.article else self.device or "device"

    def _kept_in_args(self, name):
        value = _needed(self.script.keyword(self.group, name))
        _needed(self.script.code(value).startswith(f"{self.args}."))
        return self.script.code(value)

    def argument(self, dest):
        """The argument that sets args.`dest`, or None."""
        return next((it for it in self.arguments if it.dest == dest), None)

    def first_of(self, function):
        """The first statement of a function after its docstring, its `global` and where it parses args."""
        for node in function.body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not (is_text or isinstance(node, ast.Global) or node is self.parsed):
                return node
        return function.body[-1]

    def place_in(self, function):
        """What a function writes for the card of its process."""
        if function is self.worker:
            return self.place
        around = [function, *self.script.parents(function, ast.FunctionDef)]
        names = {it.arg for outer in around for it in outer.args.args}
        inside = [it for it in self.script.walk(function) if isinstance(it, ast.Name)]
        if "device" in names | {it.id for it in inside if isinstance(it.ctx, ast.Store)}:
            return "device"
        args = self.args_in(function)
        if args:
            return "f" + self.script.quoted(f"npu:{{{args}.{self.card_statement.targets[0].attr}}}")
        return self.script.quoted("npu")  # the card of set_device


def _needed(part):
    if not part:
        raise _Missing
    return part
