"""Check of a whole training script, as `torchrun` starts it: it runs on two ranks that are watched."""

import contextlib
import io
import os
import runpy
import tempfile
import zlib
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from .ranks import call, on_ranks
from .trials import noted_updates
from .verdict import exercise, script_of


@exercise
def ddp_script(answer, say):
    """`answer`: the text of a training script, or the name of its file.

    A script that calls its global batch BATCH has its updates counted. Samples are told apart by their numbers, so with
    random augmentation nobody sees which ones were read twice.
    """
    script = script_of(answer)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(script, encoding="utf-8")
        watched = partial(_watched, folder)
        one, two = on_ranks(call, 2, watched, named=False, env={"CUDA_VISIBLE_DEVICES": ""})
    yield not (one["updates"] and two["updates"]) and say("untrained")
    yield not one["grouped"] and say("alone")
    yield not one["trained"] and say("no loader")
    for epoch, (mine, yours) in enumerate(zip(one["trained"], two["trained"], strict=False)):
        yield sorted(mine) == sorted(yours) and say("everything", n=len(mine))
        both = (Counter(mine) & Counter(yours)).total()
        yield both > 1 and say("both", epoch=epoch, n=both)  # one may be padding
    (weights, gradients), (others, theirs) = (zip(*rank["updates"], strict=True) for rank in (one, two))
    yield weights[0] != others[0] and say("start")
    yield gradients != theirs and say("apart")
    epochs, read = len(one["trained"]), len(one["trained"][0] + two["trained"][0])
    yield epochs > 1 and one["trained"][0] == one["trained"][1] and say("order")
    each, batch = len(gradients) / epochs, one["batch"]
    yield batch and not read // batch <= each <= -(-read // batch) and say("updates", n=each, read=read, batch=batch)
    for mine, yours in zip(one["tested"], two["tested"], strict=False):
        twice = sum(n > 1 for n in Counter(mine + yours).values())
        yield twice and sorted(mine) != sorted(yours) and say("twice", n=twice)
    yield two["saved"] and say("saves")
    yield not one["saved"] and say("unsaved")
    yield two["said"] and say("prints", said=two["said"].splitlines()[0])


def _watched(folder):
    """On a rank: run train.py of the folder, and note what it reads, updates, saves and prints."""
    passes, read, said = [], DataLoader.__iter__, io.StringIO()

    def reading(loader):
        passes.append(seen := {"samples": [], "updates": 0})
        before = len(updates)
        for batch in read(loader):
            seen["samples"] += [_mark(sample) for sample in tree_leaves(batch)[0]]
            yield batch
            seen["updates"] = len(updates) - before

    os.chdir(folder)
    with (
        mock.patch.object(DataLoader, "__iter__", reading),
        mock.patch.object(torch, "save", wraps=torch.save) as save,
        mock.patch.object(dist, "init_process_group", wraps=dist.init_process_group) as meet,
        contextlib.redirect_stdout(said),
        noted_updates() as updates,
    ):
        batch = runpy.run_path("train.py", run_name="__main__").get("BATCH")
    return {
        "grouped": meet.called,
        "batch": batch,
        "trained": [one["samples"] for one in passes if one["updates"]],
        "tested": [one["samples"] for one in passes if not one["updates"]],
        "updates": [tuple(map(_mark, update)) for update in updates],
        "saved": save.called,
        "said": said.getvalue().strip(),
    }


def _mark(tensor):
    """A number that equal tensors share."""
    return zlib.crc32(tensor.detach().cpu().double().numpy().tobytes())
