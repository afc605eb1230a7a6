"""The sixteen steps in which a training script moves from CUDA to Ascend NPUs, in the order of Huawei's guide.

The guide ("manual migration, one host with several cards") walks through PyTorch's ImageNet script in this order
(guide.py has its edits). Every hunk that `migrate` writes belongs to one of these steps, or to 17: what the guide has
not got and a training needs.
"""

from dataclasses import dataclass

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
