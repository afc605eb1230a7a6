"""Strings that name a device, a backend or a variable of the environment: "cuda:0", "nccl", CUDA_VISIBLE_DEVICES."""

import ast
import re

from ..counterparts import ENVIRONMENT, counterpart
from ..places import step_of
from .kinds import anywhere

# A device, perhaps with a place for its number: "cuda:%d" % i, "cuda:{}".format(i), "cuda:" + str(i).
_DEVICE = re.compile(r"cuda(?=$|:(\d+|%[dsi]|\{[^{}]*\})?$)")
_BACKENDS = re.compile(r"(?:(?:cpu|cuda|npu|xpu|mps):)?\w+(?:,(?:cpu|cuda|npu|xpu|mps):\w+)*")
_OTHER_DEVICES = {"cpu", "mps", "xpu", "hpu", "xla", "meta", "tpu", "rocm", "auto"}


@anywhere(8)
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
    for node in script.of(ast.JoinedStr):
        _formatted(script, node)


def translated(text):
    """The counterpart of a string of CUDA's, or the string."""
    if text in ENVIRONMENT:
        return ENVIRONMENT[text]
    if _DEVICE.match(text):
        return _DEVICE.sub("npu", text)
    if "nccl" in text and _BACKENDS.fullmatch(text):
        return re.sub(r"\bcuda:", "npu:", re.sub(r"(^|:)nccl(?=,|$)", r"\1hccl", text))
    if text.startswith("torch.cuda"):
        return counterpart(text) or text
    return text


def _formatted(script, node):
    """f"cuda:{index}"."""
    whole = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    start = re.match(r"\w+(['\"]{3}|['\"])", script.code(node))
    if _DEVICE.match(whole) and start and script.code(node).startswith("cuda", start.end()):
        at = script.span(node)[0] + start.end()
        script.edit_span(at, at + len("cuda"), "npu", step_of(script, node))


def _is_key(script, node, text):
    """Whether the string is the name of an option or entry rather than a device: config["cuda"]."""
    if ":" in text or "." in text or text in ENVIRONMENT:
        return False
    parent = script.parent(node)
    if isinstance(parent, ast.Dict) and node in parent.keys:
        return not (_by_device(parent) or _asked_by_type(script, parent))
    outer = script.parent(parent)
    if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Subscript):
        node, parent = parent, outer
    if isinstance(parent, ast.Subscript) and parent.slice is node:
        return not (script.code(parent.value).endswith("Literal") or _device_table(script, parent.value))
    call = outer if isinstance(parent, ast.keyword) else parent
    return isinstance(call, ast.Call) and _key_argument(script, parent if parent is not call else node, call)


def _by_device(table):
    """Whether a dictionary is keyed by devices (or backends), and not yet for the NPU."""
    keys = {getattr(key, "value", None) for key in table.keys}
    return bool(keys & (_OTHER_DEVICES | {"gloo", "mpi"})) and not keys & {"npu", "hccl"}


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
    if isinstance(node, ast.Dict):
        return _by_device(node)
    made = [script.parent(each) for each in script.bindings(node) if isinstance(each, ast.Name)]
    tables = [each.value for each in made if isinstance(each, ast.Assign) and isinstance(each.value, ast.Dict)]
    return bool(tables) and all(map(_by_device, tables))


def _key_argument(script, argument, call):
    function = script.code(call.func).rpartition(".")[2]
    given = script.arguments(call)
    place = given.index(argument) if argument in given else None  # else it is what is called
    if function in ("getattr", "hasattr", "setattr", "delattr"):
        return place == 1 and "torch" not in script.names(given[0])
    if function == "get":  # table.get("cuda", ...)
        return place == 0 and not _device_table(script, getattr(call.func, "value", None))
    if function in ("pop", "setdefault", "getboolean", "getint", "index", "has_option"):
        return place == 0
    return function == "add_argument" and getattr(argument, "arg", None) in (None, "dest", "metavar")
