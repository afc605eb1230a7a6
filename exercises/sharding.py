"""Checks of sharded training: notebook 12's script with three errors, and notebook 13's fastest layout."""

import os
import runpy
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import releases
from helpers.data import sets
from helpers.group.process_group import distributed
from helpers.profile.memory import count_memory
from helpers.training.gpt import GPT, gpt, next_token_loss

from .ranks import call, on_ranks
from .verdict import exercise, script_of

CPU = {"CUDA_VISIBLE_DEVICES": "", "KINETO_LOG_LEVEL": "99"}  # fully_shard takes a card where there is one


@exercise
def fsdp_script(answer, say):
    """`answer`: the text of a script that trains a sharded GPT and saves `checkpoint`, or the name of its file."""
    yield releases.fsdp_refusal("cpu")
    sets.ensure("tokens")
    script, models = script_of(answer), []
    for n in (2, 1):  # what one rank makes of the reader's script is what two have to make of it
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(script, encoding="utf-8")
            steps = [
                step for rank in on_ranks(call, n, partial(_watched, folder), named=False, env=CPU) for step in rank
            ]
            yield not all(updated for updated, *_ in steps) and say("optimizer")
            yield n == 2 and not all(sharded for _, sharded, _ in steps) and say("whole")
            both = set.intersection(*(set(read) for *_, read in steps[:: len(steps) // 2])) if n == 2 else ()
            yield both and say("same", n=len(both))
            saved = Path(folder, "checkpoint")
            yield not saved.exists() and say("unsaved")
            dcp_to_torch_save(saved, f"{folder}/model.pt")
            models.append(torch.load(f"{folder}/model.pt")["model"].values())
    yield max((one - other).abs().max() for one, other in zip(*models, strict=True)) > 1e-4 and say("otherwise")


def _watched(folder):
    """On a rank: run the script; of each step whether weights were updated, whether all are shards, what was read."""
    steps, read = [], []

    def forward(module, given):
        if isinstance(module, GPT):
            read.extend(map(tuple, given[0].tolist()))

    def update(optimizer, *_):
        updated = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        steps.append((len(updated), all(hasattr(p, "to_local") for p in updated), read.copy()))
        read.clear()

    modules.register_module_forward_pre_hook(forward)
    optimizers.register_optimizer_step_pre_hook(update)
    os.chdir(folder)
    runpy.run_path("train.py", run_name="__main__")
    return steps or [(0, True, [])]


LIMIT, SEQUENCES, FEWEST = 120, 12, 27  # MB; of a rank; messages of a step: 9 parts, gathered twice and reduced


@exercise
def fastest_layout(answer, say):
    """`answer(model)`, called on two ranks: (the model, its optimizer, the number of micro-batches)."""
    yield releases.fsdp_refusal("cpu")
    key, messages, peak = on_ranks(_try_layout, 2, answer, named=False, patience=6, env=CPU)[0]
    yield key and say(key)
    most = max(("activations", "gathered weights"), key=peak.get)
    places = {"peak": sum(peak.values()), "activations": peak["activations"], "gathered": peak["gathered weights"]}
    too_much = places["peak"] > LIMIT
    yield too_much and say("whole" if peak["parameters"] > 30 else most.partition(" ")[0], limit=LIMIT, **places)
    yield messages > FEWEST and say("slow", messages=messages, fewest=FEWEST, **places)


class _Messages(TorchDispatchMode):
    """Counts the collectives that are asked for."""

    count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op.namespace == "c10d"
        return op(*args, **(kwargs or {}))


def _try_layout(answer):
    """(the hint or None, messages of the second step, {kind: MB} at its peak)."""
    (key, messages), _, _, held = count_memory(_train, [answer], {}, 2)
    peak = max((of for _, of in held[0]), key=lambda of: sum(of.values())) if held else {}
    return key, messages, {kind: size / 1e6 for kind, size in peak.items()}


def _train(answer):
    """Two steps of notebook 12's GPT: (the hint or None, messages of the second)."""
    with distributed("cpu") as world:
        torch.manual_seed(0)
        got = answer(gpt(8, 320, 5, 60, 64))
        if not (isinstance(got, tuple) and len(got) == 3 and isinstance(got[1], torch.optim.Optimizer)):
            return "returned", 0
        model, optimizer, pieces = got
        if pieces not in range(1, SEQUENCES + 1) or SEQUENCES % pieces:
            return "pieces", 0
        tokens = torch.randint(60, (SEQUENCES, 65), generator=torch.Generator().manual_seed(world.rank))
        for _ in range(2):
            with _Messages() as messages:
                for some in tokens.chunk(pieces):
                    (next_token_loss(model(some[:, :-1]), some[:, 1:]) / pieces).backward()
            optimizer.step()
            optimizer.zero_grad()
        return None, messages.count
