"""Strings that name a device, a backend or a variable of the environment: "cuda:0", "nccl", CUDA_VISIBLE_DEVICES."""

import ast
import re

from ..counterparts import ENVIRONMENT, counterpart
from ..places import step_of

# A device, perhaps with a place for its number: "cuda:%d" % i, "cuda:{}".format(i), "cuda:" + str(i).
_DEVICE = re.compile(r"cuda(?=$|:(\d+|%[dsi]|\{[^{}]*\})?$)")
_BACKENDS = re.compile(r"(?:(?:cpu|cuda|npu|xpu|mps):)?\w+(?:,(?:cpu|cuda|npu|xpu|mps):\w+)*")
_OTHERS = {"cpu", "mps", "xpu", "hpu", "xla", "meta", "tpu", "rocm", "auto", "gloo", "mpi"}
_BY_KEY = {  # functions that take the name of an entry, in this place
    **dict.fromkeys(("getattr", "hasattr", "setattr", "delattr"), 1),
    **dict.fromkeys(("get", "pop", "setdefault", "getboolean", "getint", "index", "has_option"), 0),
}


def translate(script):
    """Change strings that are such a name from the first to the last letter; prose stays."""
    for node in script.of(ast.Constant):
        token = script.string(node)
        if token is None or isinstance(script.parent(node), ast.Expr):  # or a docstring
            continue
        new = translated(token.inside)
        if new != token.inside and not _is_key(script, node, token.inside):
            step = step_of(script, node)
            step = 7 if "hccl" in new.lower() and step != 2 else step
            script.edit_span(token.at, token.at + len(token.inside), new, step)
    for node in script.of(ast.JoinedStr):  # f"cuda:{index}"
        whole = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        start = re.match(r"\w+(['\"]{3}|['\"])cuda", script.code(node))
        if start and _DEVICE.match(whole):
            end = script.span(node)[0] + start.end()
            script.edit_span(end - len("cuda"), end, "npu", step_of(script, node))


def translated(text):
    """The counterpart of a string of CUDA's, or the string."""
    if text in ENVIRONMENT:
        return ENVIRONMENT[text]
    if _DEVICE.match(text):
        return _DEVICE.sub("npu", text)
    if "nccl" in text and _BACKENDS.fullmatch(text):
        return re.sub(r"\bcuda:", "npu:", re.sub(r"(^|:)nccl(?=,|$)", r"\1hccl", text))
    return counterpart(text) or text if text.startswith("torch.cuda") else text


def _is_key(script, node, text):
    """Whether the string is the name of an option or entry rather than a device: config["cuda"]."""
    if ":" in text or "." in text or text in ENVIRONMENT:
        return False
    parent = script.parent(node)
    outer = script.parent(parent)
    if isinstance(parent, ast.Dict) and node in parent.keys:
        return not (_by_device(parent) or _asked_by_type(script, parent))
    if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Subscript):
        node, parent = parent, outer
    if isinstance(parent, ast.Subscript) and parent.slice is node:
        return not (script.code(parent.value).endswith("Literal") or _device_table(script, parent.value))
    argument, call = (parent, outer) if isinstance(parent, ast.keyword) else (node, parent)
    return isinstance(call, ast.Call) and argument is not call.func and _key_argument(script, argument, call)


def _by_device(table):
    """Whether a dictionary is keyed by devices (or backends), and not yet for the NPU."""
    keys = {getattr(key, "value", None) for key in table.keys}
    return bool(keys & _OTHERS) and not keys & {"npu", "hccl"}


def _asked_by_type(script, table):
    """Whether a dictionary is asked for an entry by the type of a device: `{"cuda": 3}[x.device.type]`."""
    above, asked = script.parent(table), [table]
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
        asked = [it for it in script.of(ast.Name) if above.targets[0] in script.bindings(it)]
    keys = []
    for node in map(script.parent, asked):
        keys += [node.slice] if isinstance(node, ast.Subscript) else []
        keys += script.parent(node).args[:1] if getattr(node, "attr", "") == "get" else []
    new = {getattr(key, "value", None) for key in table.keys} & {"npu", "hccl"}
    return not new and any(getattr(key, "attr", "") == "type" for key in keys)


def _device_table(script, node):
    """Whether a node is a dictionary that is keyed by devices."""
    made = [script.parent(each) for each in script.bindings(node) if isinstance(each, ast.Name)]
    tables = [it for it in [node, *(getattr(each, "value", None) for each in made)] if isinstance(it, ast.Dict)]
    return bool(tables) and all(map(_by_device, tables))


def _key_argument(script, argument, call):
    function = script.code(call.func).rpartition(".")[2]
    given = script.arguments(call)
    if function == "add_argument":
        return getattr(argument, "arg", None) in (None, "dest", "metavar")
    if function == "get" and _device_table(script, getattr(call.func, "value", None)):
        return False
    named = function.endswith("attr") and "torch" in script.names(given[0])
    return given.index(argument) == _BY_KEY.get(function) and not named
