"""Dotted names of a script that start with something imported."""

import libcst as cst

from .counterparts import MODULES, counterpart


class Chain:
    """A dotted name in the text: `nodes` from `t` to `t.cuda.amp`; `root` is what `t` stands for."""

    def __init__(self, script, nodes):
        self.nodes = nodes
        # Of several meanings (an import in try, another in except) that of torch counts.
        self.root = min(script.names(nodes[0]), key=lambda name: (not name.startswith("torch"), name))
        self.attributes = [node.attr.value for node in nodes[1:]]

    @property
    def name(self):
        """The full name, "torch.cuda.amp"."""
        return ".".join([self.root, *self.attributes])

    def counterpart(self):
        """(the longest part that has one, as a node, its new full name), or (None, None)."""
        for length in range(len(self.nodes), 0, -1):
            name = ".".join([self.root, *self.attributes[: length - 1]])
            new = counterpart(name)
            # A module is more than its names: one that torch_npu lacks keeps torch.cuda.
            if new and (name not in MODULES or length == len(self.nodes)):
                return self.nodes[length - 1], new
        return None, None

    def edit(self, script, node, first, rest, step):
        """Let `node`, a part of the chain, read `first` + `rest` (".npu.Stream"); only what differs changes."""
        place = self.nodes.index(node)
        parts = rest.split(".")[1:]
        if len(parts) != place:
            script.edit(node, first + rest, step)
            return
        script.edit(self.nodes[0], first, step)
        for old, part in zip(self.nodes[1 : place + 1], parts, strict=True):
            script.edit(old.attr, part, step)


def chains(script):
    """All of them, in the order of the text."""
    for node in script.of(cst.Name, cst.Attribute):
        if isinstance(script.parent(node), cst.Attribute):  # part of a longer name, or the name of an attribute
            continue
        nodes = [node]
        while isinstance(nodes[0], cst.Attribute):
            nodes.insert(0, nodes[0].value)
        if isinstance(nodes[0], cst.Name) and script.is_read(nodes[0]) and script.names(nodes[0]):
            yield Chain(script, nodes)
