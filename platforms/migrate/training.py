"""The training in the worker of an ImageNet-shaped script: model, optimizer, epochs, batches, checkpoints."""

import ast
import re

DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")


def only(found):
    """The only one of several things, or None."""
    found = list(found)
    return found[0] if len(found) == 1 else None


class Training:
    """What the worker trains and how; parts that are not clear are None.

    Attributes:
        optimizer, optimizer_statement: its name, and the last statement of the worker's own body that makes it.
        model: the name of the model: what is trained (net of `plain = net.module`), or what DDP wraps.
        wrappings, ddp: the calls of DistributedDataParallel, and the one that counts.
        losses: the statements that make a loss module of torch.nn, moved to a device or not.
        trainer, call: the function of the module around `loss.backward()`, and its only call in the worker.
        given: {parameter of the trainer: the worker's text for it}.
        backward, step, forward: of the trainer `loss.backward()`, `optimizer.step()`, and the statements from the call
            of the model to the loss.
        loader: the worker's name of the loader that is trained on.
        scalable: whether mixed precision can be put in: the script has none, and the places for it are clear.
        scaled: whether it has autocast or a GradScaler.
        scale: what scales the loss: "amp" after amp.initialize, "scaler" for a GradScaler that asks args.amp, else "".
        wrapped_anew: the statement right after amp.initialize that wraps the model in DDP.
    """

    def find_training(self, script):
        """Find all of it."""
        worker = self.worker
        made = script.assigned(worker, "torch.optim.*")
        made = [it for it in made if "lr_scheduler" not in script.called(it.value)]
        self.optimizer = only({it.targets[0].id for it in made})
        self.optimizer_statement = script.inside(made[-1], worker) if made else None
        self.wrappings = script.calls(worker, *DDP)
        parameters = [it for one in made for it in script.walk(one) if isinstance(it, ast.Attribute)]
        parameters = [it for it in parameters if it.attr in ("parameters", "named_parameters")]
        trained = only({script.name(it.value).split(".")[0] for it in parameters})
        self.model = self._model(script, trained)
        self.ddp = self._ddp(script)
        self.losses = [it for it in script.assigned(worker, "*") if self.loss_made(it.value)]
        self._find_trainer(script)
        self._find_scale(script)
        parts = (self.model, self.optimizer, self.optimizer_statement, self.trainer, self.backward, self.ddp)
        self.scalable = not self.scaled and all(parts) and bool(self.args_in(self.trainer))
        if not self.scalable or self.in_trainer(self.optimizer) is None:
            self.scalable = False
        elif self.article:
            self.scalable = trained == self.model  # it is wrapped only after the optimizer was made
        else:
            self.scalable = bool(self.forward and self.step and self._takes_scaler())

    def _model(self, script, trained):
        names = {trained} if trained else {script.name(it.args[0]) for it in self.wrappings if it.args}
        assigned = [it for it in script.walk(self.worker) if isinstance(it, ast.Assign) and script.name(it.value)]
        assigned = [it for it in assigned if script.code(it.targets[0]) in names]
        return only({script.name(it.value).removesuffix(".module") for it in assigned} - names or names) or None

    def _ddp(self, script):
        """The only wrapping, or the only one that names its device, where it wraps the model itself."""
        named = [it for it in self.wrappings if script.keyword(it, "device_ids")]
        found = only(self.wrappings) or only(named)
        if found is None or not found.args:
            return None
        targets = getattr(script.statement(found), "targets", ())
        return found if {*map(script.code, [found.args[0], *targets])} == {self.model} else None

    def loss_made(self, node):
        """The call `nn.CrossEntropyLoss(...)` in `nn.CrossEntropyLoss(...).cuda(...)`, or None."""
        inner = getattr(getattr(node, "func", None), "value", None)
        node = inner if isinstance(inner, ast.Call) else node
        name = self.script.called(node)
        return node if name.startswith("torch.nn.") and name.endswith("Loss") else None

    def _find_trainer(self, script):
        backwards = [it for it in script.methods("backward") if not it.args]
        found = only({script.function(it) for it in backwards})
        self.trainer = found if found is not self.worker and found in script.module.body else None
        self.call = only(script.calls(self.worker, self.trainer.name)) if self.trainer else None
        self.given = {}
        if self.call is not None:
            names = (it.arg for it in self.trainer.args.args)
            self.given = dict(zip(names, map(script.code, self.call.args), strict=False))
            self.given |= {it.arg: script.code(it.value) for it in self.call.keywords if it.arg}
        backward = only(backwards)
        plain = backward is not None and isinstance(backward.func.value, ast.Name)
        self.backward = _alone(script, backward if plain else None)
        steps = script.calls(self.trainer, f"{self.in_trainer(self.optimizer)}.step") if self.trainer else ()
        self.step = _alone(script, only(it for it in steps if not it.args))
        self.forward = self._forward(script) if self.backward else None
        self.loader = self._loader(script, backwards[0]) if self.trainer else None

    def _forward(self, script):
        block, model = script.block(self.backward), self.in_trainer(self.model)
        before = block[: block.index(self.backward)]
        calls = [n for n, it in enumerate(before) if script.calls(it, model)]
        loss = self.backward.value.func.value.id
        made = [n for n, it in enumerate(before) if isinstance(it, ast.Assign) and script.code(it.targets[0]) == loss]
        return before[calls[0] : made[-1] + 1] if calls and made and calls[0] <= made[-1] else None

    def _loader(self, script, backward):
        loop = next(script.parents(backward, ast.For), None)
        source = loop and loop.iter
        while isinstance(source, ast.Call) and source.args:  # enumerate(loader), tqdm(enumerate(loader))
            source = source.args[0]
        return self.given.get(script.name(source))

    def _takes_scaler(self):
        """Whether the trainer can be handed one thing more, in its place."""
        given = self.trainer.args
        plain = not (given.vararg or given.kwarg or given.defaults or given.kwonlyargs)
        return plain and self.call and len(self.call.args) + len(self.call.keywords) == len(given.args)

    def _find_scale(self, script):
        nodes = script.of(ast.Name, ast.Attribute)
        self.scaled = any(getattr(it, "attr", getattr(it, "id", "")) in ("autocast", "GradScaler") for it in nodes)
        made = re.compile(rf"scaler = .*GradScaler\(.*{self.args}\.amp")
        scaler = any(made.match(script.code(it)) for it in script.of(ast.Assign))
        calls = [it for it in script.methods("initialize") if script.called(it).endswith("amp.initialize")]
        initialize = calls[0] if calls else None
        self.scale = "amp" if initialize else "scaler" if scaler else ""
        self.wrapped_anew = None
        if statement := initialize and script.inside(initialize, self.worker):
            body = self.worker.body
            following = body[body.index(statement) + 1 :][:1]
            self.wrapped_anew = next((it for it in following if {*self.wrappings} & {*script.walk(it)}), None)

    def in_trainer(self, name):
        """What the trainer calls the worker's `name`, or None."""
        return next((inner for inner, outer in self.given.items() if outer == name), None)

    def args_in(self, function):
        """How args are called in a function (a parameter of it, or of one around it), or None."""
        around = [function, *self.script.parents(function, ast.FunctionDef)]
        return self.args if any(self.args in [it.arg for it in outer.args.args] for outer in around) else None


def _alone(script, call):
    statement = script.parent(call)
    return statement if isinstance(statement, ast.Expr) else None
