"""The notes about what still speaks of CUDA when all is done. No place is left out; the text stays."""

import ast
import re

from .. import advice
from ..chains import chains
from ..counterparts import ENVIRONMENT, offered
from .kinds import anywhere

_WORD = advice.WORD
_WHOLE = ("torch.cuda", "torch.backends.cudnn", "torch.backends.cuda")  # shown with the name inside
_FLOAT64 = "An NPU computes it as float32, with a warning, and HCCL refuses it: use float32."
_METHODS = {
    "double": ("double(): float64", _FLOAT64),
    "share_memory": (
        "share_memory()",
        "Processes share the memory of the CPU only: on NPUs every process trains a model of its own, and "
        "DistributedDataParallel keeps them alike.",
    ),
    "pin_memory": ("pin_memory()", "Pinned memory is CUDA's; torch_npu has its own. Take it out if it fails."),
}


@anywhere(1)
def report_leftovers(script):
    """Add the notes about CUDA."""
    told = _torch(script) | _packages(script) | _keys(script)
    _methods(script)
    _options(script)
    _cards(script)
    names, texts = _mentions(script, told)
    if names:
        shown = ", ".join(sorted(names))
        lines = sorted({line for lines in names.values() for line in lines})
        text = "They are not PyTorch's and work as they are; rename your own if you like."
        script.left(lines, f"other names: {shown}", text)
    if texts:
        count = len(texts)
        script.left(
            texts,
            f"comments and texts speak of CUDA, cuDNN, NCCL or NVIDIA on {count} line{'s' * (count > 1)}",
            "Comments change nothing; read the texts, and reword both.",
        )


def _torch(script):
    """Notes about what torch offers for CUDA only; returns the offsets of the names in them."""
    told = set()
    for chain in chains(script):
        known = advice.of_name(chain.name) or advice.of_name(chain.name, advice.PACKAGES)
        if known is None and chain.root.partition(".")[0] == "torch":
            known = chain.name, advice.TORCH["torch.cuda"]
        if known and (known[0] in advice.TORCH or _WORD.search(chain.name)):
            told |= set(chain.places)
            whole = known[0] in _WHOLE or known[0] in advice.PACKAGES
            text = known[1].format(version=offered()["version"])
            script.left(chain.nodes[0], chain.name if whole else known[0], text)
    return told


def _packages(script):
    told = set()
    for node in script.of(ast.Import, ast.ImportFrom):
        for name, alias in _imported(node):
            known = advice.of_name(name, advice.PACKAGES)
            if known is None and _WORD.search(name) and name.startswith("torch."):
                known = name, (advice.of_name(name) or (None, advice.TORCH["torch.cuda"]))[1]
            if known:
                lines = [node.lineno, alias.lineno]
                script.left(lines, f"import of {known[0]}", known[1].format(version=offered()["version"]))
                told |= {*range(*script.span(alias)), *range(*script.name_span(node))}
    return told


def _keys(script):
    """Notes about entries of tables under a device's old name; returns the offsets of these texts."""
    told = set()
    for node in script.of(ast.Constant):
        above = script.parent(node)
        asked = isinstance(above, ast.Call) and getattr(above.func, "attr", "") in ("get", "pop", "setdefault", "index")
        is_key = isinstance(above, ast.Dict) and node in above.keys or getattr(above, "slice", None) is node
        if node.value in ("cuda", "nccl") and (is_key or asked):
            advice = "Where a device's type or a backend is looked up, the key is now 'npu' or 'hccl'."
            script.left(node, f"the key {node.value!r}", advice)
            told.add(script.span(node)[0])
    return told


def _imported(node):
    """(full name, alias) of everything that is imported, but relatively."""
    if isinstance(node, ast.Import):
        return [(alias.name, alias) for alias in node.names]
    if node.level:
        return []
    return [(node.module if alias.name == "*" else f"{node.module}.{alias.name}", alias) for alias in node.names]


def _methods(script):
    for node in script.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and not script.arguments(node) and not script.names(node):
            found = _METHODS.get(node.func.attr)
            if found:
                script.left(node, *found)


def _options(script):
    """Arguments that ask for kernels of CUDA's, and training loaders whose last batch is smaller."""
    for node in script.of(ast.Call):
        options = {word.arg: script.code(word.value) for word in node.keywords if word.arg}
        names = script.names(node)
        if any(name.startswith("torch.optim.") for name in names):
            for option in ("fused", "capturable"):
                if options.get(option, "False") != "False":
                    script.left(node, f"{option}={options[option]}", "Kernels of CUDA's: leave it out on an NPU.")
        if any(name.startswith("torch.utils.data") and name.endswith(".DataLoader") for name in names):
            trains = options.get("shuffle", "False") != "False" or "train" in options.get("sampler", "")
            if trains and "drop_last" not in options and "batch_sampler" not in options:
                script.left(
                    node,
                    "a training loader without drop_last",
                    "A last, smaller batch makes every kernel compile again; drop_last=True leaves it out.",
                )


def _cards(script):
    """A process group in whose processes nothing chooses a card."""
    groups = [] if "hccl" not in script.source else script.calls(script.module, "torch.distributed.init_process_group")
    words = {token.inside for token in script.tokens if token.kind in ("name", "string")}
    chosen = words & {"set_device", "set_device_index", "ASCEND_RT_VISIBLE_DEVICES"}
    if groups and not chosen and not any(it.arg == "device_id" for call in groups for it in call.keywords):
        script.left(
            groups[0],
            "no process chooses its card",
            "A barrier, and npu without a number, then mean card 0 in all of them: call torch.npu.set_device(card) "
            "before init_process_group, with the number of the process on its host.",
        )


def _mentions(script, told):
    """({name of the script's own: its lines}, lines of comments and texts)."""
    names, texts = {}, set()
    attributes = {script.name_span(node)[0]: node for node in script.of(ast.Attribute)}
    for token in script.tokens:
        text = token.inside
        if token.start in told or not _WORD.search(text):
            continue
        line = script.line_at(token.start)
        if token.kind == "name":
            names.setdefault(_owner(script, token, attributes.get(token.start)), set()).add(line)
        elif "nvidia-smi" in text and token.kind != "comment":
            script.left(line, "nvidia-smi", "`npu-smi info` shows the cards; its output is another.")
        elif token.kind == "string" and re.fullmatch(r"[A-Z][A-Z0-9_]+", text) and "_" in text:
            script.left(line, f"environment variable {text}", _variable(text))
        elif token.kind != "comment" and (found := [it for it in ENVIRONMENT if it in text]):
            advice = f"In a command it has no effect on NPUs, and chooses no card: there it is {ENVIRONMENT[found[0]]}."
            script.left(line + text.count("\n", 0, text.index(found[0])), f"a text with {found[0]}", advice)
            texts |= {line + at for at, part in enumerate(token.code.split("\n")) if _WORD.search(part)}
        elif token.kind == "string" and re.fullmatch(r"[\w-]+", text):
            names.setdefault(text, set()).add(line)
        else:
            texts |= {line + at for at, part in enumerate(token.code.split("\n")) if _WORD.search(part)}
    return names, sorted(texts)


def _owner(script, token, attribute):
    """A name as it is read: "args.cuda"."""
    if attribute is None:  # perhaps of a module that is imported
        return re.search(r"(\w+\.)*\Z", script.source[: token.start][-200:])[0] + token.code
    return script.code(attribute) if isinstance(attribute.value, (ast.Name, ast.Attribute)) else token.code


def _variable(name):
    if "NCCL" in name:
        return "HCCL does not read it; its own variables begin with HCCL_."
    return "An NPU has no use for it: take it out."
