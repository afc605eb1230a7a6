"""What is imported from inside torch.cuda: `from torch import cuda`, `from torch.cuda.amp import autocast as ac`.

torch.npu is an attribute of torch, not a module in it, so what is inside is imported from torch_npu.
"""

import re

import libcst as cst

from ..amp_calls import modern, name_device
from ..chains import chains
from ..counterparts import MODULES, counterpart
from ..edits import delete_items, insert_after, torch_name
from ..places import step_of

STEP = 1


def apply(script):
    """Import it from torch_npu, unless the script uses something of it that torch_npu has not got."""
    uses = {}
    for chain in chains(script):
        if chain.root.startswith("torch.cuda"):
            uses.setdefault((_import_of(script, chain), chain.nodes[0].value), []).append(chain)
    for node in script.of(cst.Import):
        _import(script, node, uses)
    for node in script.of(cst.ImportFrom):
        _import_from(script, node, uses)


def _import_of(script, chain):
    """The import statement that the first name of a chain comes from."""
    found = [node for node in script.bindings(chain.nodes[0]) if isinstance(node, (cst.Import, cst.ImportFrom))]
    return min(found, key=script.line, default=None)


def _import(script, node, uses):
    for alias in node.names:
        name = script.code(alias.name)
        if name not in MODULES:
            continue
        if alias.asname is None:  # binds torch
            if len(node.names) == 1 and _another_torch(script, node):
                script.delete(node)
            else:
                script.edit(alias.name, "torch")
            continue
        local = alias.asname.name.value
        new = _settle(script, name, uses.get((node, local), ()), local, local)
        if new:
            script.edit(alias.name, _home(new))


def _another_torch(script, node):
    block = script.parent(script.parent(node))
    lines = [line for line in block.body if isinstance(line, cst.SimpleStatementLine)]
    imports = [small for line in lines for small in line.body if isinstance(small, cst.Import)]
    return any(script.code(alias.name) == "torch" and not alias.asname for each in imports for alias in each.names)


def _import_from(script, node, uses):
    module = "" if node.module is None or node.relative else script.code(node.module)
    if not (module == "torch" or (module + ".").startswith("torch.cuda.")):
        return
    if isinstance(node.names, cst.ImportStar):
        if module in MODULES:
            script.edit(node.module, _home(MODULES[module]))
        return
    moving = {}  # alias -> (module, "name" or "name as local")
    for alias in node.names:
        name = f"{module}.{script.code(alias.name)}"
        if name == "torch.cuda" or name.startswith("torch.cuda."):
            moving[alias] = _moved(script, node, alias, name, uses)
    moving = {alias: place for alias, place in moving.items() if place}
    modules = sorted({module for module, _ in moving.values()})
    if len(moving) == len(node.names) and len(modules) == 1:
        script.edit(node.module, modules[0])
        for alias, (_, text) in moving.items():
            if script.code(alias).rstrip(", \t") != text:
                start = script.span(alias.name)[0]
                script.edit_span(start, script.span(alias.asname.name if alias.asname else alias.name)[1], text)
    elif moving:
        for module in modules:
            text = ", ".join(text for home, text in moving.values() if home == module)
            insert_after(script, node, f"from {module} import {text}")
        if len(moving) == len(node.names):
            script.delete(node)
        else:
            delete_items(script, list(node.names), list(moving))


def _moved(script, node, alias, name, uses):
    """(module, text) of the import of one name instead; None: it has to stay."""
    plain = counterpart(name)
    if plain is None:
        return None
    local = alias.asname.name.value if alias.asname else alias.name.value
    last = plain.rpartition(".")[2]
    wanted = last if alias.asname is None and _may_rename(script, node, local, last) else local
    new = _settle(script, name, uses.get((node, local), ()), local, wanted)
    if new is None:
        return None
    module, _, last = _home(new).rpartition(".")
    return module, last if last == wanted else f"{last} as {wanted}"


def _home(name):
    return name.replace("torch.npu", "torch_npu.npu", 1)


def _may_rename(script, node, local, wanted):
    """Whether `local` means this import wherever it is used, and nothing else is called `wanted`."""
    if local == wanted:
        return True
    plain = [name for name in script.of(cst.Name) if not isinstance(script.parent(name), cst.Attribute)]
    outer = [item.name.value for each in script.of(cst.Global, cst.Nonlocal) for item in each.names]
    quoted = re.compile(rf"(?<![\w.]){local}\.")  # an annotation in quotes
    return (
        all(name.value != wanted for name in plain)
        and all(getattr(each, "node", None) is node for each in script.scope(node)[local])
        and local not in outer
        and "__all__" not in script.source
        and not any(quoted.match(text.raw_value) for text in script.of(cst.SimpleString))
    )


def _settle(script, name, uses, local, wanted):
    """Edit the uses of what was imported as `name`; its new full name, or None where it has to stay."""
    torch = torch_name(script)
    found = [(chain, *chain.counterpart()) for chain in uses]
    known = [
        (chain, node, new, modern(script, node, new))
        for chain, node, new in found
        if node is not None and (torch or new.startswith("torch.npu") or new == counterpart(name))
    ]
    plain = counterpart(name)
    target = plain
    if known and all(later != new for *_, new, later in known):  # every use is one of torch.amp
        if name != "torch.cuda":
            target = plain.replace("torch.npu.amp", "torch.amp")
    stays = len(known) < len(found)
    for chain, node, new, later in known:
        step = step_of(script, node)
        inside = [each for each in (later, new) if each == target or each.startswith(target + ".")]
        if inside and not stays:
            used = inside[0]
            chain.edit(script, node, wanted, used.removeprefix(target), step)
        else:
            used = later if torch else new
            script.edit(node, _absolute(used, torch), step)
        if used.startswith("torch.amp."):
            name_device(script, node, used, step)
    return None if stays else target


def _absolute(name, torch):
    if torch is None:
        return _home(name)
    return name.replace("torch", torch, 1)
