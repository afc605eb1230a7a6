"""Dotted names of a script that start with something imported."""

import ast

from .counterparts import MODULES, counterpart

_POSITIONAL = {"autocast": ("enabled", "dtype", "cache_enabled"), "GradScaler": ()}


class Chain:
    """A dotted name in the text: `nodes` from `t` to `t.cuda.amp`; `root` is what `t` stands for."""

    def __init__(self, script, nodes):
        self.script, self.nodes = script, nodes
        # Of several meanings (an import in try, another in except) that of torch counts.
        self.root = min(script.names(nodes[0]), key=lambda name: (not name.startswith("torch"), name))
        self.name = ".".join([self.root, *(node.attr for node in nodes[1:])])  # "torch.cuda.amp"

    @property
    def places(self):
        """The offsets at which its names start."""
        return [self.script.span(self.nodes[0])[0], *(self.script.name_span(node)[0] for node in self.nodes[1:])]

    def counterpart(self):
        """(the longest part that has one, as a node, its new full name), or (None, None)."""
        name = self.name
        for node in reversed(self.nodes):
            new = counterpart(name)
            # A module is more than its names: one that torch_npu lacks keeps torch.cuda.
            if new and (name not in MODULES or node is self.nodes[-1]):
                return node, new
            name = name.rpartition(".")[0]
        return None, None

    def modern(self, node, new):
        """The name in torch.amp for the part `node`, now `new` ("torch.npu.amp.autocast"), if it has one, else `new`.

        The device becomes an argument, so the use must be a call whose arguments can be told apart.
        """
        parent, _, last = new.rpartition(".")
        call = self.script.parent(node)
        if self.script.style != "modern" or parent != "torch.npu.amp" or last not in _POSITIONAL:
            return new
        if not isinstance(call, ast.Call) or call.func is not node:
            return new
        starred = any(isinstance(arg, ast.Starred) for arg in call.args)
        return new if last == "autocast" and starred else f"torch.amp.{last}"

    def edit(self, node, first, new, below, step):
        """Let the part `node` read `first` instead of the name `below` in `new`; only what differs changes."""
        rest = new.removeprefix(below)
        place, parts = self.nodes.index(node), rest.split(".")[1:]
        if len(parts) != place:
            self.script.edit(node, first + rest, step)
        else:
            self.script.edit(self.nodes[0], first, step)
            for old, part in zip(self.nodes[1 : place + 1], parts, strict=True):
                self.script.edit_span(*self.script.name_span(old), part, step)
        self.name_device(node, new, step)

    def replace(self, node, new, torch, step):
        """Let the part `node` read `new`, by the name that the script has for torch (None: by torch_npu)."""
        self.script.edit(node, home(new) if torch is None else new.replace("torch", torch, 1), step)
        self.name_device(node, new, step)

    def name_device(self, node, new, step):
        """Add the device to the call of `node` where its new name is one of torch.amp."""
        if not new.startswith("torch.amp."):
            return
        script, call = self.script, self.script.parent(node)
        given = script.arguments(call)
        if not given:
            script.insert(script.source.rindex(")", 0, script.span(call)[1]), '"npu"', step)
            return
        script.insert(script.argument_span(call, given[0])[0], '"npu", ', step)
        positional = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
        for arg, name in zip(positional, _POSITIONAL[new.rpartition(".")[2]], strict=False):
            script.insert(script.argument_span(call, arg)[0], f"{name}=", step)


def home(name):
    """The name under which something of torch.npu is imported: torch.npu is an attribute of torch, not a module."""
    return name.replace("torch.npu", "torch_npu.npu", 1)


def chains(script):
    """All of them, in the order of the text."""
    for node in script.of(ast.Name, ast.Attribute):
        if isinstance(script.parent(node), ast.Attribute):  # part of a longer name
            continue
        nodes = [node]
        while isinstance(nodes[0], ast.Attribute):
            nodes.insert(0, nodes[0].value)
        first = nodes[0]
        if isinstance(first, ast.Name) and isinstance(first.ctx, ast.Load) and script.names(first):
            yield Chain(script, nodes)
