"""Notebook 08 changes a script step by step and observes what the ranks do with it."""

import contextlib
import difflib
import io
import os

import torch
from torch.optim import optimizer as hooks
from torch.utils.data import TensorDataset


def edited(script, *edits):
    """`script` with each (old, new) of `edits` replaced. Raises ValueError if an old text is not there just once."""
    for old, new in edits:
        if script.count(old) != 1:
            raise ValueError(f"{old!r} is in the script {script.count(old)} times, not once")
        script = script.replace(old, new)
    return script


def diff(old, new):
    """What changed between two scripts, in Markdown."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=1, lineterm="")
    kept = [("…" if line.startswith("@@") else line) for line in list(lines)[2:]]
    return "\n".join(["```diff", *kept, "```"])


def observe(script, folder, watch=12, **names):
    """On a rank: run the text `script` and return what it did.

    The weights of a fresh model are drawn from the rank's number, as those of processes that nobody seeded differ.
    `folder` stands for the disks of several hosts: the script's CHECKPOINT is in a folder of each rank's own.

    Args:
        watch: number of updates whose weights are noted.
        names: what else the script finds defined.

    Returns:
        dict: images (their numbers, in the order of training), weights (a list, before the first update and after
        each of `watch`), saved (whether this rank has written a checkpoint), said (the lines it has printed), and
        what the script has left behind: device, accuracy, rank, size, lr.
    """
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    seen, weights, saved = {}, [], []
    read, save = TensorDataset.__getitem__, torch.save

    def noted(data, index):
        seen.setdefault(len(data), []).append(int(index))
        return read(data, index)

    def note_weights(optimizer, *_):
        if len(weights) <= watch:
            tensors = [p for group in optimizer.param_groups for p in group["params"]]
            weights.append(torch.cat([p.detach().double().cpu().flatten() for p in tensors]))

    def note_first(optimizer, *_):
        if not weights:
            note_weights(optimizer)

    before = hooks.register_optimizer_step_pre_hook(note_first)
    after = hooks.register_optimizer_step_post_hook(note_weights)
    TensorDataset.__getitem__ = noted
    torch.save = lambda *given, **options: (saved.append(given[1]), save(*given, **options))
    place = os.path.join(folder, f"host{rank}")
    os.makedirs(place, exist_ok=True)
    left = {"__name__": "__main__", "EPOCHS": 1, "CHECKPOINT": os.path.join(place, "checkpoint.pt")}
    left.update(names)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(script, "<script>", "exec"), left)
    finally:
        TensorDataset.__getitem__, torch.save = read, save
        before.remove()
        after.remove()
    hvd = left.get("hvd")
    begun = hvd is not None and hvd.is_initialized()
    return {
        "images": seen[max(seen)] if seen else [], "weights": weights, "saved": bool(saved),
        "said": said.getvalue().splitlines(),
        "device": str(left["gpu"]), "accuracy": left["accuracy"], "lr": left["optimizer"].param_groups[0]["lr"],
        "rank": hvd.rank() if begun else None, "size": hvd.size() if begun else None,
    }  # fmt: skip


def weights_apart(found):
    """The largest difference between two ranks' weights, before the first update and after each."""
    return [(a - b).abs().max().item() for a, b in zip(found[0]["weights"], found[1]["weights"], strict=True)]
