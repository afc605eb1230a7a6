"""torch.cuda.X becomes torch.npu.X wherever torch_npu has an X, whatever the script calls torch."""

from ..amp_calls import modern, name_device
from ..chains import chains
from ..edits import torch_name
from ..places import step_of

STEP = 1


def apply(script):
    """Rename what is reached through torch; what was imported from inside torch.cuda is for `cuda_imports`."""
    torch = torch_name(script)
    for chain in chains(script):
        if not chain.root.startswith("torch.cuda"):
            _rename(script, chain, torch)


def _rename(script, chain, torch):
    node, plain = chain.counterpart()
    if node is None or plain == chain.root:
        return
    step = step_of(script, node)
    for new in dict.fromkeys([modern(script, node, plain), plain]):
        if new.startswith(chain.root + "."):
            chain.edit(script, node, script.code(chain.nodes[0]), new.removeprefix(chain.root), step)
        elif torch:
            script.edit(node, new.replace("torch", torch, 1), step)
        else:
            continue  # nothing to call it by
        if new.startswith("torch.amp."):
            name_device(script, node, new, step)
        return
