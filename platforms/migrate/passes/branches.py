"""Branches on CUDA, MPS and "is there a device" of an ImageNet-shaped script become straight code.

On an NPU such conditions are settled. What is left of the branches is for the passes after this one; each line
counts for the step of its place.
"""

import ast
from dataclasses import dataclass
from functools import cached_property

from ..places import loop_step
from ..tree import Unclear
from .kinds import shaped

PRESENT = {f"torch.{device}.is_available" for device in ("cuda", "npu", "accelerator")}
ABSENT = {f"torch.{device}.is_available" for device in ("backends.mps", "mps", "xpu", "hpu")}
MOVES = {
    "cuda",
    "npu",
    "to",
    "device",
    "load",
    "set_device",
    "set_device_index",
    "current_accelerator",
    "DataParallel",
    "DistributedDataParallel",
}


@dataclass
class Branch:
    """An `if` that stays, and what is left of its two sides."""

    node: ast.If
    body: list
    orelse: list


class Facts:
    """What is true on an NPU in a script of a known shape."""

    def __init__(self, shape):
        self.shape, self.script = shape, shape.script
        self.card = None  # "args.gpu", where every process has a card
        if shape.card_statement is not None:
            self.card = self.script.code(shape.card_statement.targets[0])

    def known(self, node, in_main=False):
        """True or False where a condition is settled, None where it is not."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.known(node.operand, in_main)
            return None if value is None else not value
        if isinstance(node, ast.BoolOp):
            values = [self.known(it, in_main) for it in node.values]
            decisive = isinstance(node.op, ast.Or)
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        if self.script.called(node) in PRESENT | ABSENT:
            return self.script.called(node) in PRESENT
        if isinstance(node, ast.Name):
            return True if node.id in self.switches else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, in_main)
        if not in_main and self.card and self.script.code(node) == self.card:
            return True
        return None

    def _compared(self, node, in_main):
        left, op, right = node.left, node.ops[0], node.comparators[0]
        word = getattr(right, "value", ()) if isinstance(right, ast.Constant) else ()
        if not in_main and self.card and self.script.code(left) == self.card and word is None:
            return {ast.Is: False, ast.IsNot: True}.get(type(op))
        if isinstance(left, ast.Attribute) and left.attr == "type" and isinstance(op, (ast.Eq, ast.NotEq)):
            if word in ("cuda", "npu", "cpu", "mps", "xpu"):
                return (word in ("cuda", "npu")) == isinstance(op, ast.Eq)
        if word == "nccl" and isinstance(op, (ast.Eq, ast.NotEq)):
            return isinstance(op, ast.NotEq)
        return None

    @cached_property
    def switches(self):
        """{name: statement} of what says whether there is a device: `use_accel = not args.no_accel and …`."""
        found = {}
        for node in self.script.walk(self.script.module):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values = node.value.values if isinstance(getattr(node.value, "op", None), ast.And) else [node.value]
                if any(self.script.called(it) in PRESENT for it in values):
                    found.setdefault(node.targets[0].id, node)
        return found

    def fold(self, statements, in_main=False):
        """What is left of `statements`: statements, and a `Branch` for every `if` that is not settled."""
        left = []
        for node in statements:
            if not isinstance(node, ast.If):
                left.append(node)
                continue
            value = self.known(node.test, in_main)
            if value is None:
                body, orelse = self.fold(node.body, in_main), self.fold(node.orelse, in_main)
                left.append(Branch(node, body, orelse))
            else:
                left += self.fold(node.body if value else node.orelse, in_main)
        return left


def render(script, pieces, indent):
    """The text of what is left, every line indented by `indent`."""
    parts = []
    for piece in pieces:
        if not isinstance(piece, Branch):
            parts.append(script.shown(piece, indent))
            continue
        body, orelse, unit = piece.body, piece.orelse, indent + script.unit
        test, newline = script.code(piece.node.test), script.newline
        if not body and not orelse:
            continue
        if not body:
            body, orelse, test = orelse, [], f"not {test}" if test.replace(".", "_").isidentifier() else f"not ({test})"
        if "\n" in test:
            raise Unclear(piece.node, "a condition over several lines is in the way", "Simplify it and migrate again.")
        parts += [script.comments(piece.node, indent), f"{indent}if {test}:{newline}", render(script, body, unit)]
        if orelse:
            parts += [f"{indent}else:{newline}", render(script, orelse, unit)]
    return "".join(parts)


@shaped(8)
def fold_branches(script, shape):
    """Fold the settled branches around whatever has to do with the device."""
    facts = Facts(shape)
    for node in script.module.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                _fold_in(facts, function, function.body)
    for name, statement in facts.switches.items():
        if isinstance(statement.value, ast.BoolOp):  # not only the device was asked for
            script.left(statement, f"{name} no longer chooses the CPU", "This trains on an NPU: take its option out.")


def _fold_in(facts, function, statements):
    for node in statements:
        if isinstance(node, ast.If) and not facts.script.is_elif(node) and _concerned(facts, function, node):
            try:
                _replace(facts, function, node)
                continue
            except Unclear as unclear:
                facts.script.left(unclear.node, unclear.text, unclear.advice)
        for block in ("body", "orelse", "finalbody"):
            _fold_in(facts, function, getattr(node, block, None) or [])


def _concerned(facts, function, node):
    """Whether an `if` is about devices and something in the conditions of its chain is settled."""
    in_main = function is facts.shape.main
    words = {"device_count"} if in_main else MOVES
    if not any(it.attr in words for it in ast.walk(node) if isinstance(it, ast.Attribute)):
        return False
    chain = [node]
    while len(chain[-1].orelse) == 1 and facts.script.is_elif(chain[-1].orelse[0]):
        chain += chain[-1].orelse
    return any(facts.known(it.test, in_main) is not None for it in chain)


def _replace(facts, function, node):
    script, in_main = facts.script, function is facts.shape.main
    pieces = facts.fold([node], in_main)
    text = render(script, pieces, script.indent(node))
    if not text and len(script.block(node)) == 1:
        text = f"{script.indent(node)}pass{script.newline}"
    rendered = bool(pieces) and isinstance(pieces[0], Branch) and pieces[0].node is node
    start, end = script.lines(node, comments=rendered or not text)
    script.edit_span(start, end, text, _step(facts, function, node))


def _step(facts, function, node):
    script, worker = facts.script, facts.shape.worker
    if function is facts.shape.main:
        return 5
    top = script.top(node, worker)
    if function is not worker or isinstance(top, ast.For):
        return loop_step(script, node, 17)
    if script.calls(top, "torch.load"):
        return 11
    return 8
