"""Branches on CUDA, MPS and "is there a device" of an ImageNet-shaped script become straight code.

On an NPU such conditions are settled. What is left of the branches is for the passes after this one; each line
counts for the step of its place.
"""

import ast
from dataclasses import dataclass

from helpers.language import N_, Message

from ..steps import loop_step
from ..tree import Unclear

_PRESENT = {f"torch.{device}.is_available" for device in ("cuda", "npu", "accelerator")}
_ABSENT = {f"torch.{device}.is_available" for device in ("backends.mps", "mps", "xpu", "hpu")}
_MOVES = {"cuda", "npu", "to", "device", "load", "set_device", "set_device_index", "current_accelerator"}
_MOVES |= {"DataParallel", "DistributedDataParallel"}


@dataclass
class Branch:
    """An `if` that stays, and what is left of its two sides."""

    node: ast.If
    body: list
    orelse: list


class Facts:
    """What is true on an NPU in a script of a known shape; `in_main`, a process has no card yet."""

    def __init__(self, script, shape, in_main=False):
        self.script = script
        self.card = None if in_main else shape.card
        self.switches = {}  # name: statement of what says whether there is a device
        for node in script.walk(script.module):  # use_accel = not args.no_accel and …
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values = node.value.values if isinstance(getattr(node.value, "op", None), ast.And) else [node.value]
                if any(script.called(it) in _PRESENT for it in values):
                    self.switches.setdefault(node.targets[0].id, node)

    def known(self, node):
        """True or False where a condition is settled, None where it is not."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.known(node.operand)
            return None if value is None else not value
        if isinstance(node, ast.BoolOp):
            values, decisive = list(map(self.known, node.values)), isinstance(node.op, ast.Or)
            unknown = None if None in values else not decisive
            return decisive if decisive in values else unknown
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node.left, node.ops[0], node.comparators[0])
        if self.script.called(node) in _PRESENT or self.script.code(node) in (self.card, *self.switches):
            return True
        return False if self.script.called(node) in _ABSENT else None

    def _compared(self, left, op, right):
        word = getattr(right, "value", ()) if isinstance(right, ast.Constant) else ()
        if word is None and self.script.code(left) == self.card:
            return {ast.Is: False, ast.IsNot: True}.get(type(op))
        equal = {ast.Eq: True, ast.NotEq: False}.get(type(op))
        if equal is not None and getattr(left, "attr", "") == "type" and word in ("cuda", "npu", "cpu", "mps", "xpu"):
            return (word in ("cuda", "npu")) == equal
        return not equal if equal is not None and word == "nccl" else None

    def fold(self, statements):
        """What is left of `statements`: statements, and a `Branch` for every `if` that is not settled."""
        left = []
        for node in statements:
            value = self.known(node.test) if isinstance(node, ast.If) else None
            if value is not None:
                left += self.fold(node.body if value else node.orelse)
            elif isinstance(node, ast.If):
                left.append(Branch(node, self.fold(node.body), self.fold(node.orelse)))
            else:
                left.append(node)
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
            text = N_("a condition over several lines is in the way")
            raise Unclear(piece.node, text, N_("Simplify it and migrate again."))
        parts += [script.comments(piece.node, indent), f"{indent}if {test}:{newline}", render(script, body, unit)]
        if orelse:
            parts += [f"{indent}else:{newline}", render(script, orelse, unit)]
    return "".join(parts)


def fold_branches(script, shape):
    """Fold the settled branches around whatever has to do with the device."""
    in_main, facts = Facts(script, shape, in_main=True), Facts(script, shape)
    for node in script.module.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                _fold_in(in_main if function is shape.main else facts, shape, function, function.body)
    for name, statement in facts.switches.items():
        if isinstance(statement.value, ast.BoolOp):  # not only the device was asked for
            text = Message("{name} no longer chooses the CPU", name=name)
            script.left(statement, text, N_("This trains on an NPU: take its option out."))


def _fold_in(facts, shape, function, statements):
    script = facts.script
    for node in statements:
        words = {"device_count"} if function is shape.main else _MOVES
        if isinstance(node, ast.If) and not script.is_elif(node) and _concerned(facts, node, words):
            try:
                _replace(facts, shape, function, node)
                continue
            except Unclear as unclear:
                script.left(unclear.node, unclear.text, unclear.advice)
        for block in ("body", "orelse", "finalbody"):
            _fold_in(facts, shape, function, getattr(node, block, None) or [])


def _concerned(facts, node, words):
    chain = [node]
    while len(chain[-1].orelse) == 1 and facts.script.is_elif(chain[-1].orelse[0]):
        chain += chain[-1].orelse
    about = any(it.attr in words for it in ast.walk(node) if isinstance(it, ast.Attribute))
    return about and any(facts.known(it.test) is not None for it in chain)


def _replace(facts, shape, function, node):
    script, pieces = facts.script, facts.fold([node])
    text = render(script, pieces, script.indent(node))
    if not text and len(script.block(node)) == 1:
        text = f"{script.indent(node)}pass{script.newline}"
    rendered = bool(pieces) and isinstance(pieces[0], Branch) and pieces[0].node is node
    top, step = script.inside(node, shape.worker), 8
    if function is shape.main:
        step = 5
    elif function is not shape.worker or isinstance(top, ast.For):
        step = loop_step(script, node, 17)
    elif script.calls(top, "torch.load"):
        step = 11
    script.edit_span(*script.lines(node, comments=rendered or not text), text, step)
