"""The parts of a training script in the shape of PyTorch's ImageNet example, whatever their names.

A parser, `main` that spawns one process a device, a worker that makes the process group, the model,
the loss, the optimizer and the loaders, and a function that runs one epoch. A part that a script
does not have, or that is not clear, is None, and nobody guesses.
"""

import ast
import re
from functools import cached_property

from .command_line import CommandLine
from .training import Training

AUTOCAST = ("autocast", "GradScaler")


def recognise(script):
    """The `Shape` of a script."""
    return Shape(script)


class Shape(CommandLine):
    """The recognised parts; nodes are of `script.module`."""

    @cached_property
    def full(self):
        """Whether the script has the whole shape: parser, spawned worker with args, process group."""
        parts = (self.last_argument, self.parsed, self.main, self.worker, self.args, self.group, self.process)
        return all(part is not None for part in parts) and self.spawned is not None

    # The processes

    @cached_property
    def spawn(self):
        """The only call of torch.multiprocessing.spawn."""
        found = self.script.calls(self.script.module, "torch.multiprocessing.spawn")
        return found[0] if len(found) == 1 else None

    @cached_property
    def main(self):
        """The function that spawns."""
        return self.script.function(self.spawn) if self.spawn else None

    def _spawn_argument(self, name, place):
        found = [it.value for it in self.spawn.keywords if it.arg == name]
        return (found + self.spawn.args[place : place + 1] + [None])[0]

    @cached_property
    def worker(self):
        """The function that runs in every process."""
        fn = self._spawn_argument("fn", 0) if self.spawn else None
        return self._functions.get(fn.id) if isinstance(fn, ast.Name) else None

    @cached_property
    def _passed(self):
        """{parameter of the worker: text that main passes}, without the process number."""
        given = self._spawn_argument("args", 1)
        names = [it.arg for it in self.worker.args.args]
        texts = map(self.script.code, given.elts if isinstance(given, ast.Tuple) else ())
        return dict(zip(names[1:], texts, strict=False))

    @cached_property
    def process(self):
        """The parameter of the worker that is the number of its process."""
        return self.worker.args.args[0].arg if self.worker and self.worker.args.args else None

    @cached_property
    def args_in_main(self):
        """The name of args in main."""
        return self.parsed.targets[0].id if self.parsed else None

    @cached_property
    def args(self):
        """The name of args in the worker."""
        if not (self.worker and self.parsed):
            return None
        found = [name for name, text in self._passed.items() if text == self.args_in_main]
        is_global = self.parsed in self.script.module.body
        return found[0] if found else self.args_in_main if is_global else None

    @cached_property
    def processes(self):
        """main's expression for the number of processes of this host (`nprocs`), or None."""
        return self._spawn_argument("nprocs", 2) if self.spawn else None

    @cached_property
    def count(self):
        """The worker's parameter for the number of processes of this host, or None."""
        text = self.script.code(self.processes) if self.processes else None
        return next((name for name, given in self._passed.items() if given == text), None)

    @property
    def count_text(self):
        """What the worker writes for the number of processes of this host, or None."""
        return self.count or ("len(process_device_map)" if self.script.style == "article" else None)

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

    @cached_property
    def card_statement(self):
        """The statement `args.gpu = gpu` of the worker (or what migrate makes of it), or None."""
        for node in self.script.walk(self.worker):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                value = node.value
                value = value.slice if isinstance(value, ast.Subscript) else value
                value = value.values[0] if isinstance(value, ast.BoolOp) else value
                if self.script.code(node.targets[0].value) == self.args and self.script.name(value) == self.process:
                    return node
        return None

    @cached_property
    def first_of_worker(self):
        """The first statement of the worker after its docstring and `global`."""
        for node in self.worker.body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not (is_text or isinstance(node, ast.Global)):
                return node
        return self.worker.body[-1]

    @cached_property
    def card(self):
        """The worker's text for the number of its card: "args.gpu", or a name of its own where args has none."""
        if self.card_statement is not None:
            return self.script.code(self.card_statement.targets[0])
        return "card" if self.script.style == "article" else self.process

    @cached_property
    def device(self):
        """The name that the worker has for its torch.device, or None."""
        made = ("torch.device", "torch.accelerator.current_accelerator")
        found = [it for it in self._assigned(self.worker, lambda value: self.script.calls(value, *made))
                 if self.script.function(it) is self.worker]
        return found[0].targets[0].id if found else None

    @property
    def place(self):
        """What the worker writes for its card: `loc`, or its torch.device in the modern style."""
        return "loc" if self.script.style == "article" else self.device or "device"

    def place_in(self, function):
        """What a function writes for the card of its process."""
        if function is self.worker:
            return self.place
        around = [function, *(it for it in self.script.parents(function) if isinstance(it, ast.FunctionDef))]
        names = {it.arg for outer in around for it in outer.args.args}
        inside = [it for it in self.script.walk(function) if isinstance(it, ast.Name)]
        names |= {it.id for it in inside if isinstance(it.ctx, ast.Store)}
        if "device" in names:
            return "device"
        args = self.training.args_in(function)
        quote = self.script.quote
        if args and self.card_statement:
            return f"f{quote}npu:{{{args}.{self.card_statement.targets[0].attr}}}{quote}"
        return f"{quote}npu{quote}"  # the card of set_device

    # The process group

    @cached_property
    def group(self):
        """The only init_process_group call of the worker."""
        if not self.worker:
            return None
        found = self.script.calls(self.worker, "torch.distributed.init_process_group")
        return found[0] if len(found) == 1 else None

    @cached_property
    def distributed(self):
        """The worker's condition for several processes: "args.distributed", "" where it is always so."""
        for node in self.script.parents(self.group):
            if isinstance(node, ast.If):
                return self.script.code(node.test)
        return ""

    def group_keyword(self, name):
        """The text that init_process_group gets for a keyword, or None."""
        return next((self.script.code(it.value) for it in self.group.keywords if it.arg == name), None)

    # The training

    @cached_property
    def training(self):
        """The `Training` of the worker, or None."""
        return Training(self) if self.worker else None

    @cached_property
    def apex(self):
        """Whether mixed precision comes, or came, from apex: the script needs `from apex import amp`."""
        return self.initialized == "apex" or (self.script.style == "article" and self.scalable)

    @cached_property
    def scalable(self):
        """Whether mixed precision can be put into the script: it has none, and the places for it are clear."""
        return self.full and not self.scaled and self.training.complete

    @cached_property
    def scaled(self):
        """Whether the script has autocast or a GradScaler."""
        return any(getattr(it, "attr", getattr(it, "id", "")) in AUTOCAST for it in self._nodes)

    @cached_property
    def initialized(self):
        """"apex" after amp.initialize, "scaler" where a GradScaler called `scaler` follows args.amp, else ""."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and self.script.name(node.func).endswith("amp.initialize"):
                return "apex"
            made = isinstance(node, ast.Assign) and self.script.called(node.value).endswith("GradScaler")
            if made and self.script.code(node).startswith("scaler =") and f"{self.args}.amp" in self.script.code(node):
                return "scaler"
        return ""

    @cached_property
    def wrapped_anew(self):
        """The statement of the worker right after amp.initialize that wraps the model in DDP, or None."""
        body = self.worker.body
        for node, following in zip(body, body[1:], strict=False):
            calls = [it for it in self.script.walk(node) if isinstance(it, ast.Call)]
            if any(self.script.name(it.func).endswith("amp.initialize") for it in calls):
                return following if any(it in self.script.walk(following) for it in self.training.wrappings) else None
        return None

    @cached_property
    def _nodes(self):
        return list(self.script.walk(self.script.module))
