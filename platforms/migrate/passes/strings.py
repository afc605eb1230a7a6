"""Strings that name a device, a backend or a variable of the environment: "cuda:0", "nccl", CUDA_VISIBLE_DEVICES."""

import ast
import re

from ..counterparts import ENVIRONMENT, counterpart
from ..steps import step_of

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
    parent = script.parent(node)
    if ":" in text or "." in text or text in ENVIRONMENT:
        return False
    if isinstance(parent, ast.Dict) and node in parent.keys:
        keys = {getattr(key, "value", None) for key in parent.keys}
        return not keys & _OTHERS or bool(keys & {"npu", "hccl"})  # by device, and not yet for the NPU
    if isinstance(parent, ast.Subscript):
        return parent.slice is node
    argument, call = (parent, script.parent(parent)) if isinstance(parent, ast.keyword) else (node, parent)
    if not isinstance(call, ast.Call) or argument is call.func:
        return False
    function, given = script.code(call.func).rpartition(".")[2], script.arguments(call)
    if function == "add_argument":
        return getattr(argument, "arg", None) in (None, "dest", "metavar")
    return given.index(argument) == _BY_KEY.get(function) and "torch" not in script.names(given[0])
