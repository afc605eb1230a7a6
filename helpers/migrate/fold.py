"""Conditions that are settled once a script runs on an NPU, and what is left of the branches on them."""

import ast
from dataclasses import dataclass
from functools import cached_property

from .syntax import Unclear

PRESENT = {f"torch.{device}.is_available" for device in ("cuda", "npu", "accelerator")}
ABSENT = {f"torch.{device}.is_available" for device in ("backends.mps", "mps", "xpu", "hpu")}


@dataclass
class Branch:
    """An `if` that stays: its condition (text), and what is left of its two sides."""

    node: ast.If
    test: str
    body: list
    orelse: list


class Facts:
    """What is true on an NPU in a script of a known shape."""

    def __init__(self, shape):
        self.shape, self.tree = shape, shape.tree
        self.card = None  # "args.gpu", where every process has a card
        if shape.card_statement is not None:
            self.card = self.tree.code(shape.card_statement.targets[0])

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
        if self.tree.called(node) in PRESENT | ABSENT:
            return self.tree.called(node) in PRESENT
        if isinstance(node, ast.Name):
            return True if node.id in self.switches else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, in_main)
        if not in_main and self.card and self.tree.code(node) == self.card:
            return True
        return None

    def _compared(self, node, in_main):
        left, op, right = node.left, node.ops[0], node.comparators[0]
        word = getattr(right, "value", ()) if isinstance(right, ast.Constant) else ()
        if not in_main and self.card and self.tree.code(left) == self.card and word is None:
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
        for node in self.tree.walk(self.tree.module):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values = node.value.values if isinstance(node.value, ast.BoolOp) else [node.value]
                if any(self.tree.called(it) in PRESENT for it in values) and not _is_or(node.value):
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
                left.append(Branch(node, self.rest(node.test, in_main), body, orelse))
            else:
                left += self.fold(node.body if value else node.orelse, in_main)
        return left

    def rest(self, node, in_main=False):
        """The text of a condition without the parts of it that are settled."""
        if isinstance(node, ast.BoolOp):
            open_parts = [it for it in node.values if self.known(it, in_main) is None]
            if 0 < len(open_parts) < len(node.values):
                word = " or " if _is_or(node) else " and "
                return word.join(self.tree.code(it) for it in open_parts)
        return self.tree.code(node)


def render(tree, pieces, indent):
    """The text of what is left, every line indented by `indent`."""
    parts = []
    for piece in pieces:
        if not isinstance(piece, Branch):
            parts.append(tree.shown(piece, indent))
            continue
        body, orelse, unit = piece.body, piece.orelse, indent + tree.unit
        test, newline = piece.test, tree.script.newline
        if not body and not orelse:
            continue
        if not body:
            body, orelse, test = orelse, [], f"not {test}" if test.replace(".", "_").isidentifier() else f"not ({test})"
        if "\n" in test:
            raise Unclear(piece.node, "a condition over several lines is in the way", "Simplify it and migrate again.")
        parts += [tree.comments(piece.node, indent), f"{indent}if {test}:{newline}", render(tree, body, unit)]
        if orelse:
            parts += [f"{indent}else:{newline}", render(tree, orelse, unit)]
    return "".join(parts)


def _is_or(node):
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
