"""The parts of a training script in the shape of PyTorch's ImageNet example, whatever their names.

A parser, `main` that spawns one process a device, a worker that makes the process group, the model,
the loss, the optimizer and the loaders, and a function that runs one epoch. A part that a script
does not have, or that is not clear, is None, and nobody guesses.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from .training import Training, only


@dataclass(frozen=True)
class Argument:
    """An `add_argument` call: its option strings and the attribute of args that it sets."""

    call: ast.Call
    options: tuple
    dest: str

    def keyword(self, name):
        """The value of a keyword of the call, or None."""
        return next((it.value for it in self.call.keywords if it.arg == name), None)


class Shape:
    """The recognised parts; nodes are of `script.module`."""

    def __init__(self, script):
        self.script = script

    @cached_property
    def full(self):
        """Whether the script has the whole shape: parser, spawned worker with args, process group."""
        parts = (self.last_argument, self.parsed, self.main, self.worker, self.args, self.group, self.process)
        return all(part is not None for part in parts) and self.spawned is not None

    # The command line

    @cached_property
    def parser(self):
        """The name of the ArgumentParser."""
        found = self.script.assigned(self.script.module, "argparse.ArgumentParser")
        return found[0].targets[0].id if found else None

    @cached_property
    def arguments(self):
        """Every add_argument call of the script as an `Argument`."""
        found = []
        for node in self.script.of(ast.Call):
            if getattr(node.func, "attr", "") == "add_argument":
                options = tuple(it.value for it in node.args if isinstance(it, ast.Constant))
                dest = next((getattr(it.value, "value", None) for it in node.keywords if it.arg == "dest"), None)
                long = next((it for it in options if it.startswith("--")), options[0] if options else "")
                found.append(Argument(node, options, dest or long.lstrip("-").replace("-", "_")))
        return found

    @property
    def last_argument(self):
        """The last statement that adds an argument to the parser itself."""
        own = [it.call for it in self.arguments if self.script.name(it.call.func) == f"{self.parser}.add_argument"]
        return self.script.statement(own[-1]) if own else None

    def argument(self, dest):
        """The argument that sets args.`dest`, or None."""
        return next((it for it in self.arguments if it.dest == dest), None)

    @cached_property
    def parsed(self):
        """The statement `args = parser.parse_args()` (or `args = get_args()`, which returns that)."""
        script, parse = self.script, f"{self.parser}.parse_args"
        makers = {
            getattr(script.function(it), "name", "") for it in script.of(ast.Return) if script.called(it.value) == parse
        }
        found = script.assigned(script.module, parse, *makers)
        return only([it for it in found if getattr(script.function(it), "name", None) not in makers])

    @property
    def args_in_main(self):
        """The name of args in main."""
        return self.parsed.targets[0].id if self.parsed else None

    # The processes

    @cached_property
    def spawn(self):
        """The only call of torch.multiprocessing.spawn."""
        return only(self.script.calls(self.script.module, "torch.multiprocessing.spawn"))

    @cached_property
    def main(self):
        """The function that spawns."""
        return self.script.function(self.spawn) if self.spawn else None

    def _spawned_with(self, name, place):
        found = [it.value for it in self.spawn.keywords if it.arg == name]
        return (found + self.spawn.args[place : place + 1] + [None])[0]

    @cached_property
    def worker(self):
        """The function that runs in every process."""
        name = getattr(self._spawned_with("fn", 0), "id", None) if self.spawn else None
        functions = (it for it in self.script.module.body if isinstance(it, ast.FunctionDef))
        return next((it for it in functions if it.name == name and it.args.args), None)

    @cached_property
    def _passed(self):
        """{main's text: parameter of the worker that gets it}, without the process number."""
        given = getattr(self._spawned_with("args", 1), "elts", ())
        names = [it.arg for it in self.worker.args.args]
        return dict(zip(map(self.script.code, given), names[1:], strict=False))

    @property
    def process(self):
        """The parameter of the worker that is the number of its process."""
        return self.worker.args.args[0].arg if self.worker else None

    @cached_property
    def args(self):
        """The name of args in the worker."""
        if not (self.worker and self.parsed):
            return None
        is_global = self.parsed in self.script.module.body
        return self._passed.get(self.args_in_main, self.args_in_main if is_global else None)

    @cached_property
    def count(self):
        """The worker's parameter for the number of processes of this host (`nprocs`), or None."""
        number = self._spawned_with("nprocs", 2)
        return self._passed.get(self.script.code(number)) if number else None

    @cached_property
    def spawned(self):
        """The condition, in the worker's words, under which it was spawned; "" always; None unclear."""
        for node in self.script.parents(self.spawn):
            if node is self.main:
                return ""
            if isinstance(node, ast.If):
                inside = any(self.spawn in self.script.walk(it) for it in node.body)
                names = {it.id for it in self.script.walk(node.test) if isinstance(it, ast.Name)}
                if not inside or names != {self.args_in_main}:
                    return None
                return re.sub(rf"\b{self.args_in_main}\b", self.args, self.script.code(node.test))
        return None

    def first_of(self, function):
        """The first statement of a function after its docstring, its `global` and where it parses args."""
        for node in function.body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not (is_text or isinstance(node, ast.Global) or node is self.parsed):
                return node
        return function.body[-1]

    # The card

    @cached_property
    def card_statement(self):
        """The statement `args.gpu = gpu` of the worker (or what migrate makes of it), or None."""
        made = re.compile(rf"{self.args}\.\w+\s*=\s*(process_device_map\[)?{self.process}(\]| or 0)?")
        found = (it for it in self.script.walk(self.worker) if isinstance(it, ast.Assign))
        return next((it for it in found if made.fullmatch(self.script.code(it))), None)

    @property
    def card(self):
        """The worker's text for the number of its card: "args.gpu", or a name of its own where args has none."""
        if self.card_statement is not None:
            return self.script.code(self.card_statement.targets[0])
        return "card" if self.script.style == "article" else self.process

    @cached_property
    def devices(self):
        """The worker's statements that make its torch.device, all for the same name."""
        made = ("torch.device", "torch.accelerator.current_accelerator")
        found = [
            it
            for it in self.worker.body
            if isinstance(it, ast.Assign) and isinstance(it.targets[0], ast.Name) and self.script.calls(it.value, *made)
        ]
        return [it for it in found if it.targets[0].id == found[0].targets[0].id]

    @property
    def device(self):
        """The name that the worker has for its torch.device, or None."""
        return self.devices[0].targets[0].id if self.devices else None

    @property
    def place(self):
        """What the worker writes for its card: `loc`, or its torch.device in the modern style."""
        return "loc" if self.script.style == "article" else self.device or "device"

    def place_in(self, function):
        """What a function writes for the card of its process."""
        if function is self.worker:
            return self.place
        around = [function, *self.script.functions(function)]
        names = {it.arg for outer in around for it in outer.args.args}
        inside = [it for it in self.script.walk(function) if isinstance(it, ast.Name)]
        names |= {it.id for it in inside if isinstance(it.ctx, ast.Store)}
        if "device" in names:
            return "device"
        args, quote = self.training.args_in(function), self.script.quote
        if args and self.card_statement:
            return f"f{quote}npu:{{{args}.{self.card_statement.targets[0].attr}}}{quote}"
        return f"{quote}npu{quote}"  # the card of set_device

    # The process group

    @cached_property
    def group(self):
        """The only init_process_group call of the worker."""
        return only(self.script.calls(self.worker, "torch.distributed.init_process_group")) if self.worker else None

    @cached_property
    def distributed(self):
        """The worker's condition for several processes: "args.distributed", "" where it is always so."""
        tests = (it.test for it in self.script.parents(self.group) if isinstance(it, ast.If))
        return next(map(self.script.code, tests), "")

    def group_keyword(self, name):
        """The text that init_process_group gets for a keyword, or None."""
        return next((self.script.code(it.value) for it in self.group.keywords if it.arg == name), None)

    # The training

    @cached_property
    def training(self):
        """The `Training` of the worker, or None."""
        return Training(self) if self.worker else None

    @cached_property
    def scalable(self):
        """Whether mixed precision can be put into the script: it has none, and the places for it are clear."""
        return self.full and not self.scaled and self.training.complete

    @cached_property
    def scaled(self):
        """Whether the script has autocast or a GradScaler."""
        nodes = self.script.of(ast.Name, ast.Attribute)
        return any(getattr(it, "attr", getattr(it, "id", "")) in ("autocast", "GradScaler") for it in nodes)

    @property
    def _initialize(self):
        calls = self.script.of(ast.Call)
        return next((it for it in calls if self.script.name(it.func).endswith("amp.initialize")), None)

    @cached_property
    def scale(self):
        """What scales the loss: "amp" after amp.initialize, "scaler" for a GradScaler that asks args.amp, else ""."""
        made = re.compile(rf"scaler = .*GradScaler\(.*{self.args}\.amp")
        scalers = [it for it in self.script.of(ast.Assign) if made.match(self.script.code(it))]
        return "amp" if self._initialize else "scaler" if scalers else ""

    @cached_property
    def wrapped_anew(self):
        """The statement of the worker right after amp.initialize that wraps the model in DDP, or None."""
        statement = self.script.top(self._initialize, self.worker) if self._initialize else None
        following = self.worker.body[self.worker.body.index(statement) + 1 :][:1] if statement else ()
        return next((it for it in following if set(self.training.wrappings) & set(self.script.walk(it))), None)
