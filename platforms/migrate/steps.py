"""The sixteen steps in which a training script moves from CUDA to Ascend NPUs, in the order of Huawei's guide.

The guide ("manual migration, one host with several cards") walks through PyTorch's ImageNet script in this order
(guide.py has its edits). Every hunk that `migrate` writes belongs to one of these steps, or to 17: what the guide has
not got and a training needs. A rename counts for the step of what it stands in.
"""

import ast
from dataclasses import dataclass

from .tree import DEFINITIONS, LOOPS

_TITLES = (
    "imports|arguments|process map|address and port|processes per host|card of this process|process group|"
    "card and shares for branches|loss, optimizer, resume out|data loaders|"
    "model, loss, optimizer, amp, DDP, resume in|saving|training batches|backward|validation batches|launch|"
    "beyond the guide"
)


@dataclass(frozen=True)
class Step:
    """One step: its `number` from 1 and a `title` of a few words."""

    number: int
    title: str

    def __str__(self):
        return f"{'ours' if self is OURS else f'step {self.number}'} · {self.title}"


STEPS = tuple(Step(number, title) for number, title in enumerate(_TITLES.split("|"), start=1))
OURS = STEPS[-1]

_CALLS = {  # step: the last names of what is called
    2: ("add_argument", "set_defaults"),
    5: ("device_count",),
    7: ("init_process_group", "new_group", "is_nccl_available", "init_device_mesh"),
    8: ("set_device", "device"),
    10: ("DataLoader",),
    11: ("autocast", "custom_fwd", "custom_bwd", "DistributedDataParallel", "DDP", "load", "load_state_dict"),
    14: ("GradScaler",),
}
_STEPS = {name: step for step, names in _CALLS.items() for name in names}


def step_of(script, node):
    """The number of the step that a rename at `node` belongs to."""
    if any(_adds_up(script, it) for it in script.definitions(node)):
        return 17
    for around in [node, *script.parents(node)]:
        step = _of_call(script, around)
        if step:
            return step
        if isinstance(around, LOOPS):
            return loop_step(script, around)
        if isinstance(around, DEFINITIONS):
            break
    return 8


def _of_call(script, node):
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Attribute):
        moves = node.attr == "cuda" and not script.names(node)
        return _of_move(script, node) if moves else _STEPS.get(node.attr)
    names = script.names(node) if isinstance(node, ast.Name) else ()
    return next((_STEPS[last] for name in names if (last := name.rpartition(".")[2]) in _STEPS), None)


def _of_move(script, method):
    """`x.cuda()`: a loss, a batch in a loop, else a model."""
    made = script.names(method.value) if isinstance(method.value, ast.Call) else ()
    inside = next(script.parents(method, *LOOPS, *DEFINITIONS), None)
    loss = any(name.startswith("torch.nn.") and name.endswith("Loss") for name in made)
    return loop_step(script, inside) if isinstance(inside, LOOPS) and not loss else 11


def _adds_up(script, node):
    loops = any(isinstance(it, ast.For) for it in script.walk(node))
    return isinstance(node, ast.FunctionDef) and not loops and bool(script.calls(node, "torch.distributed.all_reduce"))


def loop_step(script, node, other=15):
    """13 in the loop over training batches, 15 in another loop, else `other`."""
    loop = next((it for it in [node, *script.parents(node)] if isinstance(it, LOOPS)), None)
    if loop is None:
        return other
    calls = (it.func for it in script.walk(loop) if isinstance(it, ast.Call))
    return 13 if any(getattr(it, "attr", "") == "backward" for it in calls) else 15
