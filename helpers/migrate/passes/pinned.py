"""Pinned memory is CUDA's: DataLoader gets pin_memory=False, also by way of a dictionary of options."""

import libcst as cst

STEP = 13


def apply(script):
    """Replace whatever value `pin_memory` has."""
    for node in script.of(cst.Call):
        function = script.code(node.func).rpartition(".")[2]
        if function.endswith("DataLoader") or function in ("dict", "update", "setdefault"):
            for arg in node.args:
                if arg.keyword is not None and arg.keyword.value == "pin_memory":
                    _off(script, arg.value)
    for node in script.of(cst.DictElement):
        if getattr(node.key, "raw_value", None) == "pin_memory":
            _off(script, node.value)
    for node in script.of(cst.Assign):
        target = node.targets[0].target
        if isinstance(target, cst.Subscript) and script.code(target).endswith(("['pin_memory']", '["pin_memory"]')):
            _off(script, node.value)


def _off(script, value):
    if script.code(value) not in ("False", "None", "0"):
        script.edit(value, "False")
