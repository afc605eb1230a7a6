"""How the worker of an ImageNet-shaped script brings its model to devices, and what of that stays."""

import ast

from .fold import Branch, Facts
from .syntax import Unclear

SETTERS = ("torch.cuda.set_device", "torch.npu.set_device", "torch.accelerator.set_device_index")
PARALLEL = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel")


class Placement:
    """The statements of the worker that move or wrap the model."""

    def __init__(self, shape):
        self.shape, self.tree, self.worker, self.training = shape, shape.tree, shape.worker, shape.training

    def kind(self, node):
        """"set" (the device), "move", "parallel" (DataParallel), "ddp", or None for anything else."""
        if not isinstance(node, (ast.Expr, ast.Assign)):
            return None
        value = node.value
        if self.tree.called(value) in SETTERS:
            return "set"
        if any(it in self.tree.walk(value) for it in self.training.wrappings):
            return "ddp"
        if isinstance(node, ast.Assign) and self._root(node.targets[0]) != self.training.model:
            return None
        if self.tree.calls(value, *PARALLEL):
            return "parallel"
        return "move" if self._moves(value) else None

    def _moves(self, value):
        """Whether an expression is `model.cuda()`, `model.to(device)`, `model.features.cuda(0)` and nothing else."""
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            return False
        words = {it.arg for it in value.keywords}
        is_device = value.func.attr in ("cuda", "npu") or (value.func.attr == "to" and len(value.args) == 1)
        return is_device and "memory_format" not in words and self._root(value.func.value) == self.training.model

    def _root(self, node):
        return self.tree.name(node).split(".")[0]

    def statements(self):
        """The statements of the worker's own body that hold something of the kinds, but set_device alone."""
        return [it for it in self.worker.body if self.kinds(it) - {"set"} and not isinstance(it, ast.For)]

    def kinds(self, statement):
        """All kinds in a statement."""
        return {self.kind(it) for it in self.tree.walk(statement) if isinstance(it, ast.stmt)} - {None}

    def rest(self, statement, drop):
        """What is left of a statement without the kinds in `drop` (what follows a dropped DDP goes with it)."""
        return self._strip(Facts(self.shape).fold([statement]), drop)

    def _strip(self, pieces, drop):
        kept = []
        for piece in pieces:
            if isinstance(piece, Branch):
                body, orelse = self._strip(piece.body, drop), self._strip(piece.orelse, drop)
                if body or orelse:
                    kept.append(Branch(piece.node, piece.test, body, orelse))
            elif self.kind(piece) not in drop:
                kept.append(piece)
            elif self.kind(piece) == "ddp":
                break
        return kept

    def wrapping(self, indent):
        """The text that wraps the model in DDP where there are several processes, at `indent`."""
        tree, call, model = self.tree, self.training.ddp, self.training.model
        statement = tree.statement(call)
        tests = []
        inside = statement
        for node in tree.parents(statement):
            if node is self.worker:
                break
            if not isinstance(node, ast.If):
                raise Unclear(node, "DDP wraps the model in an unusual place", "Wrap it right after the optimizer.")
            code = tree.code(node.test)
            tests.insert(0, code if inside in node.body else f"not ({code})")
            inside = node
        words = [it for it in call.keywords if it.arg not in ("device_ids", "output_device")]
        given = [model, f"device_ids=[{self.shape.card}]"]
        given += [f"{it.arg}={tree.code(it.value)}" if it.arg else f"**{tree.code(it.value)}" for it in words]
        inner = indent + tree.unit if tests else indent
        newline = self.shape.script.newline
        text = f"{indent}if {' and '.join(tests)}:{newline}" if tests else ""
        text += f"{inner}{model} = {tree.code(call.func)}({', '.join(given)}){newline}"
        block = tree.block(statement)
        if tests:  # what follows in the branch may need the wrapped model
            text += "".join(tree.shown(it, inner) for it in block[block.index(statement) + 1 :])
        return text
