"""Branches on CUDA, MPS and "is there a device" of an ImageNet-shaped script become straight code.

What is left of them is for the passes after this one; each line counts for the step of its place.
"""

import ast

from ..fold import Branch, Facts, render
from ..syntax import Unclear

STEP = None
MOVES = {"cuda", "npu", "to", "device", "load", "set_device", "set_device_index", "current_accelerator",
         "DataParallel", "DistributedDataParallel"}  # fmt: skip


def apply(script):
    """Fold the settled branches around whatever has to do with the device."""
    shape = script.shape
    if not shape.full:
        return None
    facts = Facts(shape)
    for node in shape.tree.module.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                _fold_in(facts, function, function.body)
    for name, statement in facts.switches.items():
        if isinstance(statement.value, ast.BoolOp):  # not only the device was asked for
            script.left(
                statement.lineno, f"{name} no longer chooses the CPU", "This trains on an NPU: take its option out."
            )  # fmt: skip
    return script.edited()


def _fold_in(facts, function, statements):
    for node in statements:
        if isinstance(node, ast.If) and not facts.tree.is_elif(node) and _concerned(facts, function, node):
            try:
                _replace(facts, function, node)
                continue
            except Unclear as unclear:
                facts.tree.script.left(unclear.node.lineno, unclear.text, unclear.advice)
        for block in ("body", "orelse", "finalbody"):
            _fold_in(facts, function, getattr(node, block, None) or [])


def _concerned(facts, function, node):
    """Whether an `if` is about devices and something in the conditions of its chain is settled."""
    in_main = function is facts.shape.main
    words = {"device_count"} if in_main else MOVES
    if not any(it.attr in words for it in ast.walk(node) if isinstance(it, ast.Attribute)):
        return False
    chain = [node]
    while len(chain[-1].orelse) == 1 and facts.tree.is_elif(chain[-1].orelse[0]):
        chain += chain[-1].orelse
    tests = [it.test for it in chain]
    return any(facts.known(it, in_main) is not None or facts.rest(it, in_main) != facts.tree.code(it) for it in tests)


def _replace(facts, function, node):
    tree, in_main = facts.tree, function is facts.shape.main
    pieces = facts.fold([node], in_main)
    text = render(tree, pieces, tree.indent(node))
    if not text and len(tree.block(node)) == 1:
        text = f"{tree.indent(node)}pass{tree.script.newline}"
    rendered = bool(pieces) and isinstance(pieces[0], Branch) and pieces[0].node is node
    start, end = tree.lines(node, comments=rendered or not text)
    tree.script.edit_span(start, end, text, _step(facts, function, node))


def _step(facts, function, node):
    tree, worker = facts.tree, facts.shape.worker
    if function is facts.shape.main:
        return 5
    top = tree.top(node, worker)
    if function is not worker or isinstance(top, ast.For):
        return 15
    if tree.calls(top, "torch.load"):
        return 12
    names = {it.attr for it in ast.walk(node) if isinstance(it, ast.Attribute)}
    return 9 if names & {"DataParallel", "DistributedDataParallel", "cuda", "npu"} else 8
