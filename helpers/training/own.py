"""What a reader's own model and data need before training, found out on a few samples."""

from contextlib import suppress

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from ..compiler.copies import tensors, twin, without_trace
from ..data import loaders, sets

READ_TWICE = 32  # samples; a flip of every second picture is then overlooked once in four billion times


def input_path(config, train_set, device) -> tuple:
    """(the input path of a run, a note): samples that are random at each reading are not to be read once for all."""
    own = config.input_path == "fast" and not isinstance(train_set, (sets.ImageSet, sets.TokenSet))
    with without_trace(device):
        twice = (loaders.collate([train_set[i], train_set[i]]) for i in range(min(READ_TWICE, len(train_set))) if own)
        if all(torch.equal(*torch.nan_to_num(part)) for pair in twice for part in pair):
            return config.input_path, ""
    return "workers", "the samples are random at each reading, so workers read them anew in every epoch"


def prepare(model, data, device, ask) -> list:
    """Let lazy layers see two samples: then they have their weights before these are counted, wrapped or compiled.

    If `ask`, the names of the parameters that no output depends on, on any rank; [] also if that cannot be told.
    """
    lazy = any(map(is_lazy, (*model.parameters(), *model.buffers())))
    few = next(loaders.eval_batches(data, device=device, batch=2))[0] if lazy or ask else None
    if lazy:
        with without_trace(device), torch.no_grad():
            model.eval()(few)
        model.train()
    if not ask:
        return []
    names, found = [], [None] * dist.get_world_size()
    with suppress(Exception), without_trace(device):  # the first step says what is wrong, with the reader's own lines
        copy = twin(model)
        sum(tensor.abs().sum() for tensor in tensors(copy(few)) if tensor.requires_grad).backward()
        names = [name for name, p in copy.named_parameters() if p.requires_grad and p.grad is None]
    dist.all_gather_object(found, names)
    return list(dict.fromkeys(sum(found, [])))
