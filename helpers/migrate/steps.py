"""The sixteen steps in which a training script moves from CUDA to Ascend NPUs.

Huawei's guide to manual migration walks through PyTorch's ImageNet script in this order (CANN
documentation, "Manual porting: training on one host with several devices"). Every hunk that
`migrate` writes belongs to one of these steps.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step: its `number` from 1, a `title` of a few words, and `why` an NPU needs it."""

    number: int
    title: str
    why: str

    def __str__(self):
        return f"step {self.number} · {self.title}"


STEPS = tuple(
    Step(number, title, why)
    for number, (title, why) in enumerate(
        (
            ("imports", "PyTorch knows the device only once torch_npu is imported; apex brings mixed precision."),
            ("arguments", "Cards, address, mixed precision and the hccl backend are chosen when the script starts."),
            ("process map", "Processes are numbered from 0, the cards that you were given perhaps are not."),
            ("rendezvous", "HCCL meets at MASTER_ADDR:MASTER_PORT; someone has to set them."),
            ("processes per host", "One process a card: torch.cuda.device_count() is 0 here."),
            ("card of this process", "The process's number becomes the number of its card."),
            ("process group", "NCCL speaks to NVIDIA cards only; HCCL is its counterpart."),
            ("device and shares", "Without set_device all work on card 0; batch and workers are per process."),
            ("model", "The CUDA branches and nn.DataParallel go; the model moves to the card."),
            ("loss and optimizer", "The loss moves too; the optimizer must see the parameters on the card."),
            ("mixed precision and DDP", "amp.initialize changes model and optimizer, so DDP wraps what it returns."),
            ("checkpoint and resume", "A checkpoint is read onto this card, and carries the loss scale along."),
            ("data loaders", "Pinned memory is CUDA's; a last, smaller batch makes every kernel compile again."),
            ("learning rate", "The schedule must survive the move: it is part of the result."),
            ("batches", "Images and int32 labels go to the card, and so does what validation adds up."),
            ("backward", "Half-precision gradients underflow unless the loss is scaled first."),
        ),
        start=1,
    )
)
