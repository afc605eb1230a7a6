"""Dotted names of a script that start with something imported."""

import ast

from .counterparts import MODULES, counterpart

_POSITIONAL = {"autocast": ("enabled", "dtype", "cache_enabled"), "GradScaler": ()}


class Chain:
    """A dotted name in the text: `nodes` from `t` to `t.cuda.amp`; `root` is what `t` stands for."""

    def __init__(self, script, nodes, root):
        self.script, self.nodes, self.root = script, nodes, root
        self.name = ".".join([root, *(node.attr for node in nodes[1:])])  # "torch.cuda.amp"

    @property
    def first(self):
        """The Name that it starts with."""
        return self.nodes[0]

    @property
    def places(self):
        """The offsets at which its names start."""
        return [self.script.span(self.first)[0], *(self.script.name_span(node)[0] for node in self.nodes[1:])]

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

    def rename(self, node, text, new, step):
        """Let the part `node` read `text`, its full name is then `new`; only what differs changes."""
        nodes, parts = self.nodes[: self.nodes.index(node) + 1], text.split(".")
        if len(parts) != len(nodes):
            self.script.edit(node, text, step)
        for old, part in zip(nodes, parts, strict=False) if len(parts) == len(nodes) else ():
            start, end = self.script.span(old) if old is self.first else self.script.name_span(old)
            self.script.edit_span(start, end, part, step)
        if new.startswith("torch.amp."):
            self._name_device(self.script.parent(node), _POSITIONAL[new.rpartition(".")[2]], step)

    def _name_device(self, call, names, step):
        script, given = self.script, self.script.arguments(call)
        if not given:
            script.insert(script.source.rindex(")", 0, script.span(call)[1]), '"npu"', step)
            return
        script.insert(script.argument_span(call, given[0])[0], '"npu", ', step)
        for arg, name in zip(call.args, names, strict=False):
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
        if isinstance(nodes[0], ast.Name) and isinstance(nodes[0].ctx, ast.Load):
            # Of several meanings (an import in try, another in except) that of torch counts.
            names = sorted(script.names(nodes[0]), key=lambda name: (not name.startswith("torch"), name))
            yield from (Chain(script, nodes, root) for root in names[:1])
