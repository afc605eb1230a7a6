"""Run the text of a training script on a rank, and note what it does: for notebook 08 and its check."""

import contextlib
import io
import os
from unittest import mock

import torch
from torch import nn
from torch.optim import optimizer as hooks
from torch.utils.data import TensorDataset

from helpers import device


def observe(script, folder, updates=12):
    """On a rank: run `script` in the folder host<rank> of `folder`, as if each rank had a host of its own.

    New weights are drawn from the rank's number, as those of processes that nobody has seeded differ.

    Returns:
        dict: images (their numbers, in the order of training), weights (before the first of `updates` updates and after
        each, flat), bound (the numbers of the device it has asked for), split (whether nn.DataParallel was to use all
        devices), saved and loaded (how often), files (in the folder at the end), said (the lines it has printed), lr,
        and rank and size (None without hvd.init()).
    """
    number = int(os.environ["RANK"])
    torch.manual_seed(number)
    images, weights, bound, split, saved, loaded = {}, [], [], [], [], []

    def noting(notes, function, what=lambda *given, **named: None):
        def noted(*given, **named):
            notes.append(what(*given, **named))
            return function(*given, **named)

        return noted

    def image(data, index):
        images.setdefault(len(data), []).append(int(index))

    def flat(optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return torch.cat([p.detach().flatten() for p in parameters]).double().cpu()

    def before(optimizer, *_):
        if not weights:
            weights.append(flat(optimizer))

    def after(optimizer, *_):
        if len(weights) <= updates:
            weights.append(flat(optimizer))

    def ids(*_, device_ids=None, **__):
        return device_ids

    set_device = torch.cuda.set_device if torch.cuda.is_available() else lambda number: None
    patches = (
        (TensorDataset, "__getitem__", noting([], TensorDataset.__getitem__, image)),
        (nn.DataParallel, "__init__", noting(split, nn.DataParallel.__init__, ids)),
        (device, "of_rank", noting(bound, device.of_rank, lambda number=0, *_: number)),
        (torch.cuda, "set_device", noting(bound, set_device, lambda number: torch.device("cuda", number).index)),
        (torch, "save", noting(saved, torch.save)),
        (torch, "load", noting(loaded, torch.load, lambda file, *_, **__: not isinstance(file, io.BytesIO))),
    )
    place, said, left = os.path.join(folder, f"host{number}"), io.StringIO(), {"__name__": "__main__"}
    os.makedirs(place, exist_ok=True)
    os.chdir(place)
    with contextlib.ExitStack() as stack:
        for owner, name, noted in patches:
            stack.enter_context(mock.patch.object(owner, name, noted))
        for hook in (hooks.register_optimizer_step_pre_hook(before), hooks.register_optimizer_step_post_hook(after)):
            stack.callback(hook.remove)
        stack.enter_context(contextlib.redirect_stdout(said))
        exec(compile(script, "<script>", "exec"), left)
    hvd = next((value for value in left.values() if callable(getattr(value, "is_initialized", None))), None)
    begun = hvd is not None and hvd.is_initialized()
    return {
        "images": images[max(images)] if images else [],
        "weights": weights,
        "bound": bound,
        "split": None in split,
        "saved": len(saved),
        "loaded": sum(loaded),  # from files: tensors that another rank has sent are loaded, too
        "files": sorted(os.listdir(place)),
        "said": said.getvalue().splitlines(),
        "lr": left["optimizer"].param_groups[0]["lr"] if "optimizer" in left else None,
        "rank": hvd.rank() if begun else None,
        "size": hvd.size() if begun else None,
    }


def weights_apart(found):
    """The largest difference between two ranks' weights: before the first update, and after each."""
    return [(a - b).abs().max().item() for a, b in zip(found[0]["weights"], found[1]["weights"], strict=True)]
