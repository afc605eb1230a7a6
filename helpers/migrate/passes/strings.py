"""Strings that name a device, a backend or a variable of the environment: "cuda:0", "nccl", CUDA_VISIBLE_DEVICES."""

import re

import libcst as cst

from ..counterparts import ENVIRONMENT, counterpart
from ..places import step_of

STEP = 8
# A device, perhaps with a place for its number: "cuda:%d" % i, "cuda:{}".format(i), "cuda:" + str(i).
_DEVICE = re.compile(r"cuda(?=$|:(\d+|%[dsi]|\{[^{}]*\})?$)")
_BACKENDS = re.compile(r"(?:(?:cpu|cuda|npu|xpu|mps):)?\w+(?:,(?:cpu|cuda|npu|xpu|mps):\w+)*")
_OTHER_DEVICES = {"cpu", "mps", "xpu", "hpu", "xla", "meta", "tpu", "rocm", "auto"}


def apply(script):
    """Change strings that are such a name from the first to the last letter; prose stays."""
    for node in script.of(cst.SimpleString):
        if "b" in node.prefix.lower() or _is_text(script, node):
            continue
        new = translated(node.raw_value)
        if new != node.raw_value and not _is_key(script, node):
            at = script.span(node)[0] + len(node.prefix) + len(node.quote)
            step = 7 if "hccl" in new.lower() else step_of(script, node)
            script.edit_span(at, at + len(node.raw_value), new, 2 if step_of(script, node) == 2 else step)
    for node in script.of(cst.FormattedString):
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
    first = node.parts[0] if node.parts else None
    if not isinstance(first, cst.FormattedStringText):
        return
    whole = "".join(part.value if isinstance(part, cst.FormattedStringText) else "{}" for part in node.parts)
    if _DEVICE.match(whole):
        start = script.span(first)[0]
        script.edit_span(start, start + len("cuda"), "npu", step_of(script, node))


def _is_text(script, node):
    """A docstring, or a piece of text made of several strings."""
    return isinstance(script.parent(node), (cst.Expr, cst.ConcatenatedString))


def _is_key(script, node):
    """Whether the string is the name of an option or entry rather than a device: config["cuda"]."""
    if ":" in node.raw_value or "." in node.raw_value or node.raw_value in ENVIRONMENT:
        return False
    parent = script.parent(node)
    if isinstance(parent, cst.DictElement) and parent.key is node:
        return not _by_device(script, script.parent(parent))
    if isinstance(parent, cst.Index):
        holder = script.parent(script.parent(parent))
        return not (script.code(holder.value).endswith("Literal") or _device_table(script, holder.value))
    if isinstance(parent, cst.Arg) and isinstance(script.parent(parent), cst.Call):
        return _key_argument(script, parent, script.parent(parent))
    return False


def _by_device(script, table):
    """Whether a dictionary is keyed by devices (or backends), and not yet for the NPU."""
    keys = {getattr(element.key, "raw_value", None) for element in table.elements if hasattr(element, "key")}
    return bool(keys & (_OTHER_DEVICES | {"gloo", "mpi"})) and not keys & {"npu", "hccl"}


def _device_table(script, node):
    if isinstance(node, cst.Dict):
        return _by_device(script, node)
    if not isinstance(node, cst.Name):
        return False
    made = [script.parent(script.parent(each)) for each in script.bindings(node) if isinstance(each, cst.Name)]
    tables = [each.value for each in made if isinstance(each, cst.Assign) and isinstance(each.value, cst.Dict)]
    return bool(tables) and all(_by_device(script, table) for table in tables)


def _key_argument(script, arg, call):
    function = script.code(call.func).rpartition(".")[2]
    place = call.args.index(arg)
    if function in ("getattr", "hasattr", "setattr", "delattr"):
        return place == 1 and "torch" not in script.names(call.args[0].value)
    if function == "get":  # table.get("cuda", ...)
        return place == 0 and not _device_table(script, call.func.value)
    if function in ("pop", "setdefault", "getboolean", "getint", "index", "has_option"):
        return place == 0
    return function == "add_argument" and (arg.keyword is None or arg.keyword.value in ("dest", "metavar"))
