"""The notes about what still speaks of CUDA when all is done. No place is left out; the text stays."""

import ast
import re

from helpers.language import N_, Message

from .. import advice
from ..advice import WORD
from ..chains import chains
from ..counterparts import ENVIRONMENT

_WHOLE = ("torch.cuda", "torch.backends.cuda")  # shown with the name inside
_METHODS = {
    "double": (N_("double(): float64"), advice.FLOAT64),
    "share_memory": (
        N_("share_memory()"),
        N_(
            "Processes share the memory of the CPU only: on NPUs every process trains a model of its own, and "
            "DistributedDataParallel keeps them alike."
        ),
    ),
}
_CARD = N_(
    "A barrier, and npu without a number, then mean card 0 in all of them: call torch.npu.set_device(card) "
    "before init_process_group, with the number of the process on its host."
)
_KEY = N_("Where a device's type or a backend is looked up, the key is now 'npu' or 'hccl'.")
_VARIABLE = (
    N_("An NPU has no use for it: take it out."),
    N_("HCCL does not read it; its own variables begin with HCCL_."),
)


def report_leftovers(script):
    """Add the notes about CUDA."""
    told = _torch(script) | _packages(script)
    for node in script.of(ast.Call):
        _call(script, node)
    _cards(script)
    names, texts = _mentions(script, told)
    if names:
        lines = set().union(*names.values())
        text = N_("They are not PyTorch's and work as they are; rename your own if you like.")
        script.left(lines, Message("other names: {shown}", shown=", ".join(sorted(names))), text)
    if texts:
        said = "comments and texts speak of CUDA, cuDNN, NCCL or NVIDIA on {count} line{s}"
        said = Message(said, count=len(texts), s="s" * (len(texts) > 1))
        script.left(texts, said, N_("Comments change nothing; read the texts, and reword both."))


def _torch(script):
    """Notes about what torch offers for CUDA only; returns the offsets of the names in them."""
    told = set()
    for chain in chains(script):
        known = advice.of_name(chain.name) or advice.of_name(chain.name, advice.PACKAGES)
        if known is None and chain.root.partition(".")[0] == "torch":
            known = chain.name, advice.with_version(advice.TORCH["torch.cuda"])
        if known and (known[0] in advice.TORCH or WORD.search(chain.name)):
            told |= set(chain.places)
            whole = known[0] in _WHOLE or known[0] in advice.PACKAGES
            script.left(chain.first, chain.name if whole else known[0], known[1])
    return told


def _packages(script):
    """Notes about packages for CUDA where they are imported; returns the offsets of the names."""
    told = set()
    for node in script.of(ast.Import, ast.ImportFrom):
        for alias in node.names if not getattr(node, "level", 0) else ():
            name = alias.name
            if isinstance(node, ast.ImportFrom):
                name = node.module if name == "*" else f"{node.module}.{name}"
            known = advice.of_name(name, advice.PACKAGES)
            if known is None and WORD.search(name) and name.startswith("torch."):
                known = name, (advice.of_name(name) or advice.of_name("torch.cuda"))[1]
            if known:
                script.left([node.lineno, alias.lineno], Message("import of {known}", known=known[0]), known[1])
                told |= {*range(*script.span(alias)), *range(*script.name_span(node))}
    return told


def _call(script, node):
    """Methods and arguments that are CUDA's, and training loaders whose last batch is smaller."""
    names, method = script.names(node), getattr(node.func, "attr", "")
    if not names and not script.arguments(node) and method in _METHODS:
        script.left(node, *_METHODS[method])
    options = {word.arg: script.code(word.value) for word in node.keywords if word.arg}
    if any(name.startswith("torch.utils.data") and name.endswith(".DataLoader") for name in names):
        trains = options.get("shuffle", "False") != "False" or "train" in options.get("sampler", "")
        if trains and "drop_last" not in options and "batch_sampler" not in options:
            advice = N_("A last, smaller batch makes every kernel compile again; drop_last=True leaves it out.")
            script.left(node, N_("a training loader without drop_last"), advice)


def _cards(script):
    groups = [] if "hccl" not in script.source else script.calls(script.module, "torch.distributed.init_process_group")
    words = {token.inside for token in script.tokens if token.kind in ("name", "string")}
    chosen = words & {"set_device", "set_device_index", "ASCEND_RT_VISIBLE_DEVICES"}
    if groups and not chosen and not any(script.keyword(call, "device_id") for call in groups):
        script.left(groups[0], N_("no process chooses its card"), _CARD)


def _mentions(script, told):
    """({name of the script's own: its lines}, lines of comments and texts)."""
    names, texts = {}, set()
    for token in script.tokens:
        text = token.inside
        if token.start in told or not WORD.search(text):
            continue
        line = script.line_at(token.start)
        if token.kind == "name":
            owner = re.search(r"(\w+\.)*\Z", script.source[max(token.start - 200, 0) : token.start])[0]  # "args."
            names.setdefault(owner + token.code, set()).add(line)
        elif text in ("cuda", "nccl") and token.kind == "string":
            script.left(line, Message("the key {value}", value=repr(text)), _KEY)
        elif "nvidia-smi" in text and token.kind != "comment":
            script.left(line, "nvidia-smi", N_("`npu-smi info` shows the cards; its output is another."))
        elif token.kind == "string" and re.fullmatch(r"[A-Z][A-Z0-9_]+", text) and "_" in text:
            script.left(line, Message("environment variable {text}", text=text), _VARIABLE["NCCL" in text])
        elif token.kind == "string" and re.fullmatch(r"[\w-]+", text) and text not in ENVIRONMENT:
            names.setdefault(text, set()).add(line)
        else:
            texts |= {line + at for at, part in enumerate(token.code.split("\n")) if WORD.search(part)}
    return names, sorted(texts)
