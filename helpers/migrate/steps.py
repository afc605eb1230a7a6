"""The sixteen steps in which a training script moves from CUDA to Ascend NPUs, in the order of Huawei's guide.

The guide ("manual migration, one host with several cards") walks through PyTorch's ImageNet script in this order
(guide.py has its edits). Every hunk that `migrate` writes belongs to one of these steps, or to 17: what the guide has
not got and a training needs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step: its `number` from 1, a `title` of a few words, and `why` an NPU needs it."""

    number: int
    title: str
    why: str

    def __str__(self):
        return f"{'ours' if self is OURS else f'step {self.number}'} · {self.title}"


STEPS = tuple(
    Step(number, title, why)
    for number, (title, why) in enumerate(
        (
            ("imports", "PyTorch knows the device only once torch_npu is imported; apex brings mixed precision."),
            ("arguments", "Cards, address, mixed precision and the hccl backend are chosen when the script starts."),
            ("process map", "Processes are numbered from 0, the cards that you were given perhaps are not."),
            ("address and port", "HCCL meets at MASTER_ADDR:MASTER_PORT; someone has to set them."),
            ("processes per host", "One process a card: torch.cuda.device_count() is 0 here."),
            ("card of this process", "The process's number becomes the number of its card."),
            ("process group", "HCCL takes the place of NCCL, and init_method goes."),
            ("card and shares for branches", "The CUDA branches go; set_device, batch and workers of a process come."),
            ("loss, optimizer, resume out", "They come back in step 11, behind the loaders."),
            ("data loaders", "Pinned memory is CUDA's; a last, smaller batch makes every kernel compile again."),
            ("model, loss, optimizer, amp, DDP, resume in", "Move the model, then make the optimizer, then wrap."),
            ("saving", "The state of the loss scale is a part of the checkpoint."),
            ("training batches", "Images and int32 labels go to the card."),
            ("backward", "Half-precision gradients underflow unless the loss is scaled first."),
            ("validation batches", "Images and int32 labels go to the card here, too."),
            ("launch", "The command names the cards; migrate writes it into its report."),
            ("beyond the guide", "What is added up over the ranks has to be on a card."),
        ),
        start=1,
    )
)

OURS = STEPS[-1]
