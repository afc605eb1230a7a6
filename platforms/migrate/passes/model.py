"""The model moves to the card of its process: no branches on CUDA, no nn.DataParallel."""

import ast

from helpers.language import N_

from ..tree import Unclear
from .branches import Branch, Facts, render
from .launch import SETTERS

PARALLEL = {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"}
_INPUTS = N_(
    "DataParallel moved inputs to its cards: move what the model is given, x = x.npu(), where that is still on "
    "the CPU. For more cards start one process each (torchrun) and wrap the model in DistributedDataParallel. "
    "Checkpoints that DataParallel wrote have keys that begin with 'module.': take that off to load them."
)
_MOVES = ("cuda", "npu", "to")
_KEYS = N_(
    "It also moved inputs to its cards: check that they are moved now. "
    "Take 'module.' off the keys of an old checkpoint before a single card resumes from it."
)


class Placement:
    """The statements of the worker that move or wrap the model."""

    def __init__(self, script, shape):
        self.script, self.shape, self.worker, self.facts = script, shape, shape.worker, Facts(script, shape)

    def kind(self, node):
        """ "set" (the device), "move", "parallel" (DataParallel), "ddp", or None for anything else."""
        if not isinstance(node, (ast.Expr, ast.Assign)):
            return None
        value = node.value
        if self.script.called(value) in SETTERS:
            return "set"
        if any(it in self.script.walk(value) for it in self.shape.wrappings):
            return "ddp"
        if isinstance(node, ast.Assign) and self._root(node.targets[0]) != self.shape.model:
            return None
        if self.script.calls(value, *PARALLEL):
            return "parallel"
        return "move" if self._moves(value) else None

    def _moves(self, value):
        """Whether an expression is `model.cuda()`, `model.to(device)`, `model.features.cuda(0)` and nothing else."""
        if getattr(getattr(value, "func", None), "attr", "") not in _MOVES:
            return False
        is_device = value.func.attr != "to" or len(value.args) == 1
        own = self._root(value.func.value) == self.shape.model
        return is_device and own and self.script.keyword(value, "memory_format") is None

    def _root(self, node):
        return self.script.name(node).split(".")[0]

    def statements(self):
        """The statements of the worker's own body that hold something of the kinds, but set_device alone."""
        return [it for it in self.worker.body if self.kinds(it) - {"set"} and not isinstance(it, ast.For)]

    def kinds(self, statement):
        """All kinds in a statement."""
        return {self.kind(it) for it in self.script.walk(statement)} - {None}

    def rest(self, statement, drop):
        """What is left of a statement without the kinds in `drop` (what follows a dropped DDP goes with it)."""
        return self._strip(self.facts.fold([statement]), drop)

    def _strip(self, pieces, drop):
        kept = []
        for piece in pieces:
            if isinstance(piece, Branch):
                body, orelse = self._strip(piece.body, drop), self._strip(piece.orelse, drop)
                kept += [Branch(piece.node, body, orelse)] if body or orelse else []
            elif self.kind(piece) not in drop:
                kept.append(piece)
            elif self.kind(piece) == "ddp":
                break
        return kept

    def wrapping(self, indent):
        """The text that wraps the model in DDP where there are several processes, at `indent`."""
        script, call, model = self.script, self.shape.ddp, self.shape.model
        statement = script.statement(call)
        branch, newline = script.parent(statement), script.newline
        words = [it for it in call.keywords if it.arg not in ("device_ids", "output_device")]
        given = [model, f"device_ids=[{self.shape.card}]", *map(script.code, words)]
        text = f"{model} = {script.code(call.func)}({', '.join(given)}){newline}"
        if branch not in self.worker.body or statement not in getattr(branch, "body", ()):
            place = N_("DDP wraps the model in an unusual place")
            raise Unclear(statement, place, N_("Wrap it right after the optimizer."))
        inner, rest = indent + script.unit, branch.body[branch.body.index(statement) + 1 :]
        after = "".join(script.shown(it, inner) for it in rest)  # it may need the wrapped model
        return f"{indent}if {script.code(branch.test)}:{newline}{inner}{text}{after}"


def move_model(script, shape):
    """One `model = model.to(loc)` instead of everything that moved or spread the model."""
    model = shape.model
    if not model:
        return
    placement = Placement(script, shape)
    statements = [it for it in placement.statements() if it is not shape.wrapped_anew]
    drop = {"set", "move", "parallel"} | ({"ddp"} if shape.wrapped_anew else set())
    move = f"{model} = {model}.to({shape.place})"
    others = [it for it in statements if script.code(it) != move]
    if len(others) < len(statements) and not any(placement.kinds(it) & drop for it in others):
        return
    gone = not any(placement.rest(it, drop) for it in statements)
    place = _place(shape, statements, gone)
    line = f"{script.indent(place)}{move}{script.newline}"
    if place not in statements:
        script.insert(script.lines(place)[0], line)
    for node in statements:
        rest = render(script, placement.rest(node, drop), script.indent(node))
        rest = rest.replace(f"device_ids=[{shape.process}]", f"device_ids=[{shape.card}]")
        text = (line if node is place else "") + rest
        script.edit_span(*script.lines(node, comments=node is not place), text, None if node is place else 8)
    if any("parallel" in placement.kinds(it) for it in statements):
        text = N_("nn.DataParallel is gone: the keys of new checkpoints have no 'module.' without DDP")
        script.left(place, text, _KEYS)


def _place(shape, statements, gone):
    """The statement where the model moves: the first that moved it, but before the optimizer, as amp.initialize."""
    optimizer = shape.optimizer_statement
    if gone and shape.wrapped_anew and optimizer is not None:  # the branches are step 8, the move is step 11
        places = [optimizer, *(it for it in shape.losses if it in shape.worker.body)]
    else:
        places = statements[:1] + ([optimizer] if optimizer is not None else [])
    return min(places or shape.worker.body[-1:], key=lambda it: it.lineno)


def move_loss(script, shape):
    """`nn.CrossEntropyLoss().cuda(gpu)` becomes `.to(loc)`; a loss on its torch.device stays."""
    for statement in shape.losses:
        made, value = shape.loss_made(statement.value), statement.value
        if made is not value and script.code(value.args[0] if value.args else value) != shape.device:
            script.edit(value, f"{script.code(made)}.to({shape.place})")


def unwrap_data_parallel(script):
    """Take nn.DataParallel off in any script."""
    calls = [it for it in script.of(ast.Call) if script.names(it) & PARALLEL and it.args]
    calls = [it for it in calls if not isinstance(it.args[0], ast.Starred)]
    inside = _modules(script, calls) if calls else None
    if inside is None:
        return
    for node in inside:
        script.edit_span(script.span(node.value)[1], script.span(node)[1], "")
    for node in calls:
        inner, statement = node.args[0], script.parent(node)
        same = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if same and script.code(statement.targets[0]) == script.code(inner):  # model = DataParallel(model)
            script.delete(statement)
            continue
        (start, end), (first, last) = script.span(node), script.argument_span(node, inner)
        simple = isinstance(inner, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) or first < script.span(inner)[0]
        script.edit_span(start, first, "" if simple else "(")
        script.edit_span(last, end, "" if simple else ")")
    text = N_("nn.DataParallel is gone: this trains on one card, and inputs stay where they are")
    script.left(calls[0], text, _INPUTS)


def _modules(script, calls):
    """The `.module` to take off along with the wrapper; None where it may be that of something else."""
    functions = [node.func for node in calls]
    others = [node for node in script.of(ast.Attribute, ast.Name) if node not in functions]
    asks = any(script.names(node) & PARALLEL for node in others)
    if asks or any(token.kind == "string" and token.inside == "module" for token in script.tokens):
        return []
    holders = {script.code(it) for call in calls for it in getattr(script.parent(call), "targets", ())}
    found = [node for node in others if getattr(node, "attr", "") == "module"]
    sure = all(isinstance(it.ctx, ast.Load) and script.code(it.value) in holders for it in found)
    return found if sure and not (found and "DistributedDataParallel" in script.source) else None
