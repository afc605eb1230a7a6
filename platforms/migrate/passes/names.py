"""torch.cuda.X becomes torch.npu.X wherever torch_npu has an X, however the script has imported it."""

import ast
import re

from ..chains import chains, home
from ..counterparts import MODULES, counterpart
from ..edits import insert_after
from ..steps import step_of


def rename(script):
    """Rename what is reached through torch; what was imported from inside torch.cuda is for `import_from_npu`."""
    for chain in chains(script):
        node, plain = chain.counterpart()
        if node is None or plain == chain.root or chain.root.startswith("torch.cuda"):
            continue
        for new in (chain.modern(node, plain), plain):
            below = new.startswith(chain.root + ".")
            if below or script.torch:  # else there is nothing to call it by
                root, first = (chain.root, chain.first.id) if below else ("torch", script.torch)
                chain.rename(node, first + new.removeprefix(root), new, step_of(script, node))
                break


def import_from_npu(script):
    """Import from torch_npu what is inside torch.cuda, where it has all that a statement imports; else that stays."""
    uses = {}
    for chain in chains(script):
        if chain.root.startswith("torch.cuda"):
            uses.setdefault(chain.first.id, []).append(chain)
    for node in script.of(ast.Import, ast.ImportFrom):
        moved = [_moved(script, node, alias, uses) for alias in node.names]
        if isinstance(node, ast.Import):
            for alias, new in zip(node.names, moved, strict=True):
                if alias.name not in MODULES:
                    continue
                if alias.asname is None and len(node.names) == 1 and another_torch(script, node):
                    script.delete(node)
                elif alias.asname is None or new:  # without `as` it binds torch
                    script.edit_span(*script.name_span(alias), "torch" if alias.asname is None else home(new))
        elif all(moved) and len({home(new).rpartition(".")[0] for new in moved}) == 1:
            script.edit_span(*script.name_span(node), home(moved[0]).rpartition(".")[0])
            for alias, new in zip(node.names, moved, strict=True):
                last, local = new.rpartition(".")[2], alias.asname or alias.name
                script.edit(alias, last if last == local else f"{last} as {local}")


def another_torch(script, node):
    """Whether another import in the block of `node` binds the name torch."""
    imports = [each for each in script.block(node) if isinstance(each, ast.Import)]
    return any(alias.name == "torch" and not alias.asname for each in imports for alias in each.names)


def _moved(script, node, alias, uses):
    """The new full name of something that is imported from inside torch.cuda, or None; its uses are edited."""
    name = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
    plain, local = counterpart(name), alias.asname or alias.name
    if getattr(node, "level", 0) or plain is None or not name.startswith("torch.cuda"):
        return None
    found = [(chain, *chain.counterpart()) for chain in uses.get(local, ()) if node in script.bindings(chain.first)]
    found = [(chain, part, new, part and chain.modern(part, new)) for chain, part, new in found]
    target = plain
    if found and name != "torch.cuda" and all(later != new for *_, new, later in found):  # all uses are of torch.amp
        target = plain.replace("torch.npu.amp", "torch.amp")
    inside = [next((it for it in (later, new) if f"{it}.".startswith(f"{target}.")), None) for *_, new, later in found]
    if not all(inside):
        return None
    for (chain, part, *_), new in zip(found, inside, strict=True):
        chain.rename(part, local + new.removeprefix(target), new, step_of(script, part))
    return target


def repeat(script):
    """`cudnn.deterministic = True` becomes the switch of torch itself, which NPUs obey."""
    for chain in chains(script) if script.torch else ():
        statement, used = script.parent(chain.nodes[-1]), script.code(chain.nodes[-1])
        if chain.name.endswith("backends.cudnn.deterministic") and script.code(statement) == f"{used} = True":
            script.edit(statement, f"{script.torch}.use_deterministic_algorithms(True, warn_only=True)")


# The import of torch_npu

_NPU = "import torch_npu  # registers the device"
_APEX = "from apex import amp"
_DEVICES = re.compile(r"(?<![A-Za-z])(npu|NPU)(?![a-z])|(?<![A-Za-z])(hccl|HCCL)(?![a-z])|(?i:accelerator)|^--device$")


def import_torch_npu(script):
    """Import torch_npu after the first import of torch, where the script has to do with devices.

    At module level once; else once in every function that imports torch. It is the last of its group, so that it
    sees whether the others change anything. `from apex import amp` follows where another pass has used it.
    """
    words = (each.inside for each in script.tokens if each.kind in ("name", "string"))
    if not script.pending and not any(map(_DEVICES.search, words)):
        return
    imported = [(alias.name, alias.asname) for node in script.of(ast.Import) for alias in node.names]
    missing = [] if ("torch_npu", None) in imported else [_NPU]
    for node in script.of(ast.Attribute):  # an `amp` that nothing binds yet
        if script.code(node) in ("amp.initialize", "amp.scale_loss") and not script.bindings(node.value):
            missing += [_APEX] * (_APEX not in missing)
    first = {}
    for node in script.of(ast.Import, ast.ImportFrom):
        if _of_torch(script, node):
            first.setdefault(next(reversed(script.definitions(node)), None), node)
    for node in [first[None]] if None in first else first.values():
        for statement in missing:
            insert_after(script, node, statement)


def _of_torch(script, node):
    if any("TYPE_CHECKING" in script.code(each.test) for each in script.parents(node, ast.If)):
        return False
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return not getattr(node, "level", 0) and any(name.partition(".")[0] == "torch" for name in names)
