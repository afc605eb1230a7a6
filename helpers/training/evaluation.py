"""Accuracy on the whole test set, counted once, however many ranks share the work."""

import torch
import torch.distributed as dist

from ..compiler.copies import tensors
from ..data import loaders

BATCH = 256


@torch.no_grad()
def evaluate(model, test_set, world, loss_fn, forward) -> dict:
    """Test `model` on `test_set` with all ranks of `world`; the same dict on every rank.

    Each rank tests its own share, without the padding that DistributedSampler would add (a padded
    sample counts twice), and the sums are added up over the ranks, not the rates. `forward` calls
    the model as training does, in its precision.

    Returns:
        count (samples tested), loss (mean), and for classification answers (one a sample, a token or a pixel), correct
        and accuracy (0 to 1) of these, else None. Of several outputs the first one counts.
    """
    if world.size > 1:
        for buffer in model.buffers():  # BatchNorm statistics differ by rank: rank 0's model is the one saved
            dist.broadcast(buffer, 0)
    model.eval()
    correct = answers = loss = samples = 0.0
    classifies = True
    options = dict(device=world.device, rank=world.rank, world_size=world.size)
    batches = loaders.eval_batches(test_set, batch=BATCH, **options)
    for _ in range(-(-len(test_set) // (BATCH * world.size))):
        inputs, labels = next(batches, (None, None))
        if inputs is None:  # every rank calls the model equally often: FSDP's ranks wait for each other in it
            forward(model, next(loaders.eval_batches(test_set, device=world.device, batch=1))[0])
            continue
        outputs = forward(model, inputs)
        scores = tensors(outputs)[0]
        classes = 1 if scores.dim() > 3 else -1  # of pictures [N, classes, H, W], as cross_entropy wants them
        classifies = scores.select(classes, 0).shape == labels.shape and not labels.is_floating_point()
        if classifies:
            correct += (scores.argmax(classes) == labels).sum().item()
            answers += labels.numel()
        loss += loss_fn(outputs, labels).item() * len(labels)
        samples += len(labels)
    sums = [None] * world.size
    dist.all_gather_object(sums, (correct, answers, loss, samples, classifies))  # in float64: not all devices have it
    correct, answers, loss, samples, classifies = map(sum, zip(*sums, strict=True))
    assert samples == len(test_set), f"{samples} samples were tested, the set has {len(test_set)}"
    result = {"count": int(samples), "loss": loss / samples, "answers": None, "correct": None, "accuracy": None}
    if classifies == world.size:
        result.update(answers=int(answers), correct=int(correct), accuracy=correct / answers)
    return result
