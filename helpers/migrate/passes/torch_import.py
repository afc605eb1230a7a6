"""`import torch_npu` after the first import of torch, where the script has to do with devices.

It is the last of its group, so that it sees whether the others change anything.
So does `from apex import amp` where another pass used it.
"""

import re

import libcst as cst

from ..edits import insert_after

STEP = 1
_NPU = "import torch_npu  # registers the device"
_APEX = "from apex import amp"
_DEVICES = re.compile(r"npu|hccl|accelerator|^device$", re.IGNORECASE)


def apply(script):
    """At module level once; else once in every function that imports torch."""
    words = (getattr(node, "raw_value", None) or node.value for node in script.of(cst.Name, cst.SimpleString))
    if not script.pending and not any(_DEVICES.search(word) for word in words):
        return
    missing = [] if _bound(script, "torch_npu") else [_NPU]
    if any(_is_apex(script, node) for node in script.of(cst.Attribute)):
        missing.append(_APEX)
    first = {}
    for node in script.of(cst.Import, cst.ImportFrom):
        if _of_torch(script, node):
            outer = [each for each in script.ancestors(node) if isinstance(each, (cst.FunctionDef, cst.ClassDef))]
            first.setdefault(outer[-1] if outer else None, node)
    for node in [first[None]] if None in first else first.values():
        for statement in missing:
            insert_after(script, node, statement)


def _is_apex(script, node):
    """amp.initialize or amp.scale_loss of an `amp` that nothing binds yet."""
    called = isinstance(node.value, cst.Name) and node.value.value == "amp" and not script.bindings(node.value)
    return called and node.attr.value in ("initialize", "scale_loss")


def _bound(script, module):
    return any(
        script.code(alias.name) == module and not alias.asname
        for node in script.of(cst.Import)
        for alias in node.names
    )


def _of_torch(script, node):
    if any(isinstance(each, cst.If) and "TYPE_CHECKING" in script.code(each.test) for each in script.ancestors(node)):
        return False
    if isinstance(node, cst.Import):
        names = [script.code(alias.name) for alias in node.names]
    else:
        names = [script.code(node.module)] if node.module and not node.relative else []
    return any(name.partition(".")[0] == "torch" for name in names)
