"""The modern spelling of mixed precision: torch.amp.autocast("npu") and torch.amp.GradScaler("npu")."""

import libcst as cst

_POSITIONAL = {"autocast": ("enabled", "dtype", "cache_enabled"), "GradScaler": ()}


def modern(script, node, new):
    """The name in torch.amp for the use `node` of `new` ("torch.npu.amp.autocast"), if it has one, else `new`.

    The device becomes an argument, so the use must be a call whose arguments can be told apart.
    """
    parent, _, last = new.rpartition(".")
    if script.style != "modern" or parent != "torch.npu.amp" or last not in _POSITIONAL:
        return new
    call = script.parent(node)
    if not isinstance(call, cst.Call) or call.func is not node:
        return new
    if last == "autocast" and any(arg.star == "*" for arg in call.args):
        return new
    return f"torch.amp.{last}"


def name_device(script, node, new, step):
    """Add the device to the call of `node`, now called `new`."""
    call, last = script.parent(node), new.rpartition(".")[2]
    if not call.args:
        script.insert(script.source.rindex(")", 0, script.span(call)[1]), '"npu"', step)
        return
    script.insert(script.span(call.args[0])[0], '"npu", ', step)
    positional = [arg for arg in call.args if arg.keyword is None and not arg.star]
    for arg, name in zip(positional, _POSITIONAL[last], strict=False):
        script.insert(script.span(arg)[0], f"{name}=", step)
