"""The training in the worker of an ImageNet-shaped script: model, optimizer, epochs, batches, checkpoints."""

import ast
from functools import cached_property

DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")


def only(found):
    """The only one of several things, or None."""
    return next(iter(found)) if len(found) == 1 else None


class Training:
    """What the worker of `shape` trains and how; parts that are not clear are None."""

    def __init__(self, shape):
        self.shape, self.script, self.worker = shape, shape.script, shape.worker

    @cached_property
    def complete(self):
        """Whether all that mixed precision needs is clear."""
        parts = (self.model, self.optimizer, self.optimizer_statement, self.trainer, self.backward, self.ddp)
        if not all(parts) or self.optimizer_in_trainer is None or self.args_in(self.trainer) is None:
            return False
        if self.shape.script.style == "article":
            return self.trained == self.model  # it is wrapped only after the optimizer was made
        return bool(self.forward and self.step and self.takes_scaler and self.in_trainer(self.model))

    # What the worker makes

    @cached_property
    def _optimizers(self):
        found = self.script.assigned(self.worker, "torch.optim.*")
        return [it for it in found if "lr_scheduler" not in self.script.called(it.value)]

    @cached_property
    def optimizer(self):
        """The name of the only optimizer."""
        return only({it.targets[0].id for it in self._optimizers})

    @cached_property
    def optimizer_statement(self):
        """The last statement of the worker's own body that makes the optimizer."""
        return self.script.top(self._optimizers[-1], self.worker) if self._optimizers else None

    @cached_property
    def trained(self):
        """The name whose parameters the optimizer gets: the model, or another name for it."""
        return only(
            {
                self.script.name(it.value).split(".")[0]
                for made in self._optimizers
                for it in self.script.walk(made)
                if isinstance(it, ast.Attribute) and it.attr in ("parameters", "named_parameters")
            }
        )

    @cached_property
    def model(self):
        """The name of the model: what is trained (net of `plain = net.module`), or what DDP wraps."""
        names = {self.trained} if self.trained else {self.script.name(it.args[0]) for it in self.wrappings if it.args}
        whole = {
            self.script.name(it.value).removesuffix(".module")
            for it in self.script.walk(self.worker)
            if isinstance(it, ast.Assign) and self.script.code(it.targets[0]) in names and self.script.name(it.value)
        } - names
        return only(whole or names) or None

    @cached_property
    def wrappings(self):
        """The calls of DistributedDataParallel in the worker."""
        return self.script.calls(self.worker, *DDP)

    @cached_property
    def ddp(self):
        """The wrapping that counts: the only one, or the only one that names its device."""
        named = [it for it in self.wrappings if any(word.arg == "device_ids" for word in it.keywords)]
        found = self.wrappings if len(self.wrappings) == 1 else named
        if len(found) != 1 or not found[0].args:
            return None
        statement = self.script.statement(found[0])
        names = {self.script.code(found[0].args[0]), *map(self.script.code, getattr(statement, "targets", ()))}
        return found[0] if names == {self.model} else None

    @cached_property
    def losses(self):
        """The statements that make a loss module of torch.nn, moved to a device or not."""
        return [it for it in self.script.assigned(self.worker, "*") if self.loss_made(it.value)]

    def loss_made(self, node):
        """The call `nn.CrossEntropyLoss(...)` in `nn.CrossEntropyLoss(...).cuda(...)`, or None."""
        inner = getattr(getattr(node, "func", None), "value", None)
        node = inner if isinstance(inner, ast.Call) else node
        name = self.script.called(node)
        return node if name.startswith("torch.nn.") and name.endswith("Loss") else None

    # How it trains

    @cached_property
    def _backwards(self):
        calls = self.script.of(ast.Call)
        return [it for it in calls if getattr(it.func, "attr", "") == "backward" and not it.args]

    @cached_property
    def backward(self):
        """The only statement `loss.backward()` on a plain name."""
        call = only(self._backwards)
        statement = self.script.parent(call) if call and isinstance(call.func.value, ast.Name) else None
        return statement if isinstance(statement, ast.Expr) else None

    @cached_property
    def step(self):
        """The only statement `optimizer.step()` of the trainer, or None."""
        calls = self.script.calls(self.trainer, f"{self.optimizer_in_trainer}.step") if self.trainer else ()
        call = only([it for it in calls if not it.args])
        statement = self.script.parent(call) if call else None
        return statement if isinstance(statement, ast.Expr) else None

    @cached_property
    def forward(self):
        """The statements from the call of the model to the loss, one after the other before the backward pass."""
        if self.backward is None or not self.optimizer_in_trainer:
            return None
        block, model = self.script.block(self.backward), self.in_trainer(self.model)
        loss = self.backward.value.func.value.id
        before = block[: block.index(self.backward)]
        calls = [n for n, it in enumerate(before) if self.script.calls(it, model)]
        made = [n for n, it in enumerate(before) if _assigns(it, loss)]
        return before[calls[0] : made[-1] + 1] if calls and made and calls[0] <= made[-1] else None

    @cached_property
    def takes_scaler(self):
        """Whether the trainer can be handed one thing more, in its place."""
        if self.trainer is self.worker:
            return True
        given = self.trainer.args if self.trainer else None
        plain = given and not (given.vararg or given.kwarg or given.defaults or given.kwonlyargs)
        return bool(plain and self.call and len(self.call.args) + len(self.call.keywords) == len(given.args))

    @cached_property
    def trainer(self):
        """The function around `loss.backward()`: of the module, or the worker itself."""
        found = only({self.script.function(it) for it in self._backwards})
        return found if found is self.worker or found in self.script.module.body else None

    @cached_property
    def call(self):
        """The only call of the trainer in the worker; None where the worker trains itself."""
        if self.trainer in (None, self.worker):
            return None
        return only(self.script.calls(self.worker, self.trainer.name))

    @cached_property
    def given(self):
        """{parameter of the trainer: the worker's text for it}."""
        if self.call is None:
            return {}
        names = [it.arg for it in self.trainer.args.args]
        given = dict(zip(names, map(self.script.code, self.call.args), strict=False))
        return given | {it.arg: self.script.code(it.value) for it in self.call.keywords if it.arg}

    def in_trainer(self, name):
        """What the trainer calls the worker's `name`, or None."""
        if self.trainer is self.worker:
            return name
        return next((inner for inner, outer in self.given.items() if outer == name), None)

    @property
    def optimizer_in_trainer(self):
        """What the trainer calls the optimizer, or None."""
        return self.in_trainer(self.optimizer)

    def args_in(self, function):
        """How args are called in a function (a parameter, a closure or a global), or None."""
        name = self.shape.args
        around = [function, *self.script.functions(function)]
        if any(name in [it.arg for it in outer.args.args] for outer in around):
            return name
        name = self.shape.args_in_main
        declared = (it.names for it in self.script.walk(self.shape.main) if isinstance(it, ast.Global))
        is_global = self.shape.parsed in self.script.module.body or any(name in names for names in declared)
        return name if is_global else None

    @cached_property
    def epochs(self):
        """The outermost loop of the worker around the training, or None."""
        inner = self.call or (self.backward if self.trainer is self.worker else None)
        loops = [it for it in self.script.parents(inner) if isinstance(it, ast.For)] if inner else []
        loops = [it for it in loops if self.script.function(it) is self.worker and isinstance(it.target, ast.Name)]
        return loops[-1] if loops else None

    @cached_property
    def loader(self):
        """The worker's name of the loader that is trained on, or None."""
        around = self.script.parents(self._backwards[0]) if self._backwards else ()
        loops = [it for it in around if isinstance(it, ast.For)]
        if not loops or self.trainer is None:
            return None
        source = loops[0].iter
        while isinstance(source, ast.Call) and source.args:  # enumerate(loader), tqdm(enumerate(loader))
            source = source.args[0]
        name = self.script.name(source)
        return name if self.trainer is self.worker else self.given.get(name)

    # What it keeps

    @cached_property
    def save(self):
        """The call in the worker that writes a checkpoint (torch.save, or a function that calls it)."""
        savers = [
            it.name
            for it in self.script.module.body
            if isinstance(it, ast.FunctionDef) and it is not self.worker and self.script.calls(it, "torch.save")
        ]
        return only(self.script.calls(self.worker, "torch.save", *savers))

    @cached_property
    def saved(self):
        """The dict that is saved, where the worker writes it out, or None."""
        for given in self.save.args if self.save else ():
            if isinstance(given, ast.Name):
                made = [it.value for it in self.script.walk(self.worker) if _assigns(it, given.id)]
                given = made[-1] if made else given
            if isinstance(given, ast.Dict) and given.values:
                return given
        return None


def _assigns(node, name):
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
