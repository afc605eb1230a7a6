"""What a reader's own model and data need before training, found out on a few samples."""

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from ..compiler.copies import twin, without_trace
from ..data import loaders, sets

READ_TWICE = 32  # samples; a flip of every second picture is then overlooked once in four billion times


def input_path(config, train_set, device) -> tuple:
    """(the input path of a run, a note): samples that are random at each reading are not to be read once for all."""
    prepared = isinstance(train_set, (sets.ImageSet, sets.TokenSet))
    if config.input_path == "workers" or prepared or not _is_random(train_set, device):
        return config.input_path, ""
    return "workers", "the samples are random at each reading, so workers read them anew in every epoch"


def _is_random(data, device):
    with without_trace(device):
        twice = (loaders.collate([data[i], data[i]]) for i in range(min(READ_TWICE, len(data))))
        return any(not torch.equal(*torch.nan_to_num(part)) for pair in twice for part in pair)


def few(data, device) -> tuple:
    """(inputs, labels) of two samples, which BatchNorm needs."""
    return next(loaders.eval_batches(data, device=device, batch=2))


def materialise(model, data, device) -> None:
    """Let lazy layers see a sample: then they have their weights before these are counted, wrapped or compiled."""
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        with without_trace(device), torch.no_grad():
            model.eval()(few(data, device)[0])
        model.train()


def unused(model, data, loss_fn, device) -> list:
    """Names of the parameters that a training step of any rank gives no gradient; [] if none, or if it cannot tell."""
    names, found = [], [None] * dist.get_world_size()
    try:
        with without_trace(device):
            copy, (inputs, labels) = twin(model), few(data, device)
            loss_fn(copy(inputs), labels).backward()
        names = [name for name, p in copy.named_parameters() if p.requires_grad and p.grad is None]
    except Exception:  # whatever is wrong, the first step says so, with the reader's own lines
        pass
    dist.all_gather_object(found, names)
    return list(dict.fromkeys(name for one in found for name in one))
