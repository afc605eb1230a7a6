"""torch.cuda.X becomes torch.npu.X wherever torch_npu has an X, however the script has imported it."""

import ast
import re

from ..chains import chains, home
from ..counterparts import MODULES, counterpart
from ..edits import delete_import, insert_after
from ..places import step_of


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
    """Import from torch_npu what is inside torch.cuda, unless the script uses something that torch_npu has not got."""
    uses = {}
    for chain in chains(script):
        if chain.root.startswith("torch.cuda"):
            found = [node for node in script.bindings(chain.first) if isinstance(node, (ast.Import, ast.ImportFrom))]
            of = min(found, key=lambda it: it.lineno, default=None)
            uses.setdefault((of, chain.first.id), []).append(chain)
    for node in script.of(ast.Import):
        _import(script, node, uses)
    for node in script.of(ast.ImportFrom):
        _import_from(script, node, uses)


def _import(script, node, uses):
    for alias in node.names:
        if alias.name not in MODULES:
            continue
        if alias.asname is not None:
            new = _settle(script, alias.name, uses.get((node, alias.asname), ()), alias.asname)
            script.edit_span(*script.name_span(alias), home(new or alias.name))
        elif len(node.names) == 1 and another_torch(script, node):
            script.delete(node)
        else:  # it binds torch
            script.edit_span(*script.name_span(alias), "torch")


def another_torch(script, node):
    """Whether another import in the block of `node` binds the name torch."""
    imports = [each for each in script.block(node) if isinstance(each, ast.Import)]
    return any(alias.name == "torch" and not alias.asname for each in imports for alias in each.names)


def _import_from(script, node, uses):
    module = "" if node.level else node.module
    if node.names[0].name == "*" and module in MODULES:
        script.edit_span(*script.name_span(node), home(MODULES[module]))
        return
    moving = {}  # alias -> (module, "name" or "name as local")
    for alias in node.names:
        name = f"{module}.{alias.name}"
        place = _moved(script, node, alias, name, uses) if (name + ".").startswith("torch.cuda.") else None
        moving |= {alias: place} if place else {}
    modules = sorted({module for module, _ in moving.values()})
    if len(moving) == len(node.names) and len(modules) == 1:
        script.edit_span(*script.name_span(node), modules[0])
        for alias, (_, text) in moving.items():
            script.edit(alias, text)
        return
    for module in modules:
        text = ", ".join(text for home, text in moving.values() if home == module)
        insert_after(script, node, f"from {module} import {text}")
    delete_import(script, node, list(moving))


def _moved(script, node, alias, name, uses):
    """(module, text) of the import of one name instead; None: it has to stay."""
    plain = counterpart(name)
    if plain is None:
        return None
    local = alias.asname or alias.name
    new = _settle(script, name, uses.get((node, local), ()), local)
    if new is None:
        return None
    module, _, last = home(new).rpartition(".")
    return module, last if last == local else f"{last} as {local}"


def _settle(script, name, uses, wanted):
    """Edit the uses of what was imported as `name`; its new full name, or None where it has to stay."""
    torch, plain = script.torch, counterpart(name)
    found = [(chain, *chain.counterpart()) for chain in uses]
    known = [
        (chain, node, new, chain.modern(node, new))
        for chain, node, new in found
        if node is not None and (torch or new.startswith("torch.npu") or new == plain)
    ]
    target = plain
    if known and name != "torch.cuda" and all(later != new for *_, new, later in known):  # all uses are of torch.amp
        target = plain.replace("torch.npu.amp", "torch.amp")
    stays = len(known) < len(found)
    for chain, node, new, later in known:
        inside = [each for each in (later, new) if (each + ".").startswith(target + ".")]
        if inside and not stays:
            new = inside[0]
            text = wanted + new.removeprefix(target)
        else:
            new = later if torch else new
            text = new.replace("torch", torch, 1) if torch else home(new)
        chain.rename(node, text, new, step_of(script, node))
    return None if stays else target


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
