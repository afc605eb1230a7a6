"""What still speaks of CUDA when all is done: every place is in a note, so that nothing is overlooked."""

import re

import libcst as cst

from .. import advice
from ..chains import chains
from ..counterparts import offered

STEP = 1
_WORD = advice.WORD
_WHOLE = ("torch.cuda", "torch.backends.cudnn", "torch.backends.cuda")  # shown with the name inside
_FLOAT64 = "An NPU computes it as float32, with a warning, and HCCL refuses it: use float32."
_METHODS = {
    "double": ("double(): float64", _FLOAT64),
    "pin_memory": ("pin_memory()", "Pinned memory is CUDA's; torch_npu has its own. Take it out if it fails."),
}


def apply(script):
    """Add the notes; the text stays."""
    told = _torch(script) | _packages(script)
    _methods(script)
    _options(script)
    names, texts = _mentions(script, told)
    if names:
        shown = ", ".join(sorted(names))
        lines = sorted({line for lines in names.values() for line in lines})
        text = "They are not PyTorch's and work as they are; rename your own if you like."
        script.left(lines, f"other names: {shown}", text)
    if texts:
        count = len(texts)
        script.left(
            texts, f"comments and texts speak of CUDA, cuDNN, NCCL or NVIDIA on {count} line{'s' * (count > 1)}",
            "They change nothing; reword them when you have read the script again.",
        )  # fmt: skip


def _torch(script):
    """Notes about what torch offers for CUDA only; returns the nodes in them."""
    told = set()
    for chain in chains(script):
        known = advice.of_name(chain.name) or advice.of_name(chain.name, advice.PACKAGES)
        if known is None and chain.root.partition(".")[0] == "torch":
            known = chain.name, advice.TORCH["torch.cuda"]
        if known and (known[0] in advice.TORCH or _WORD.search(chain.name)):
            told |= {chain.nodes[0], *(node.attr for node in chain.nodes[1:])}
            whole = known[0] in _WHOLE or known[0] in advice.PACKAGES
            text = known[1].format(version=offered()["version"])
            script.left(chain.nodes[0], chain.name if whole else known[0], text)
    return told


def _packages(script):
    told = set()
    for node in script.of(cst.Import, cst.ImportFrom):
        for name, alias in _imported(script, node):
            known = advice.of_name(name, advice.PACKAGES)
            if known is None and _WORD.search(name) and name.startswith("torch."):
                known = name, (advice.of_name(name) or (None, advice.TORCH["torch.cuda"]))[1]
            if known:
                lines = [script.line(node), script.line(alias)]
                script.left(lines, f"import of {known[0]}", known[1].format(version=offered()["version"]))
                told |= set(_inside(script, alias)) | set(_inside(script, getattr(node, "module", None)))
    return told


def _imported(script, node):
    """(full name, node) of everything that is imported, but relatively."""
    if isinstance(node, cst.Import):
        return [(script.code(alias.name), alias) for alias in node.names]
    if node.relative or node.module is None:
        return []
    module = script.code(node.module)
    if isinstance(node.names, cst.ImportStar):
        return [(module, node)]
    return [(f"{module}.{script.code(alias.name)}", alias) for alias in node.names]


def _inside(script, node):
    """The Names in an imported name, and the name itself."""
    return [name for name in script.of(cst.Name) if name is node or node in script.ancestors(name)]


def _methods(script):
    for node in script.of(cst.Call):
        if isinstance(node.func, cst.Attribute) and not node.args and not script.names(node):
            found = _METHODS.get(node.func.attr.value)
            if found:
                script.left(node, *found)


def _options(script):
    """Arguments that ask for kernels of CUDA's, and training loaders whose last batch is smaller."""
    for node in script.of(cst.Call):
        options = {arg.keyword.value: script.code(arg.value) for arg in node.args if arg.keyword is not None}
        names = script.names(node)
        if any(name.startswith("torch.optim.") for name in names):
            for option in {"fused", "capturable"} & options.keys():
                if options[option] != "False":
                    script.left(node, f"{option}={options[option]}", "Kernels of CUDA's: leave it out on an NPU.")
        if any(name.startswith("torch.utils.data") and name.endswith(".DataLoader") for name in names):
            trains = options.get("shuffle", "False") != "False" or "train" in options.get("sampler", "")
            if trains and "drop_last" not in options and "batch_sampler" not in options:
                script.left(
                    node, "a training loader without drop_last",
                    "A last, smaller batch makes every kernel compile again; drop_last=True leaves it out.",
                )  # fmt: skip


def _mentions(script, told):
    """({name of the script's own: its lines}, lines of comments and texts)."""
    names, texts = {}, set()
    for node in script.of(cst.Name, cst.Comment, cst.SimpleString, cst.FormattedStringText):
        text = node.raw_value if isinstance(node, cst.SimpleString) else node.value
        if node in told or not _WORD.search(text):
            continue
        line = script.line(node)
        if isinstance(node, cst.Name):
            names.setdefault(_owner(script, node), set()).add(line)
        elif "nvidia-smi" in text and not isinstance(node, cst.Comment):
            script.left(node, "nvidia-smi", "`npu-smi info` shows the cards; its output is another.")
        elif isinstance(node, cst.SimpleString) and re.fullmatch(r"[A-Z][A-Z0-9_]+", text) and "_" in text:
            script.left(node, f"environment variable {text}", _variable(text))
        elif isinstance(node, cst.SimpleString) and re.fullmatch(r"[\w-]+", text):
            names.setdefault(text, set()).add(line)
        else:
            for at, part in enumerate(script.code(node).split("\n")):
                if _WORD.search(part):
                    texts.add(line + at)
    return names, sorted(texts)


def _owner(script, node):
    """A name as it is read: "args.cuda"."""
    above = script.parent(node)
    if isinstance(above, cst.Attribute) and above.attr is node and isinstance(above.value, (cst.Name, cst.Attribute)):
        return script.code(above)
    return node.value


def _variable(name):
    if "NCCL" in name:
        return "HCCL does not read it; its own variables begin with HCCL_."
    return "An NPU has no use for it: take it out."
