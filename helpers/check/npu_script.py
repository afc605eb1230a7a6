"""The last check of 07_npu_migration: a script that was migrated by hand, judged by what it does on two cards."""

import contextlib
import io
import math
import re
import sys
import warnings
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..npu import counts
from ..npu.loading import shims
from .npu import needs_cards, on_cards
from .verdict import not_yet, right

TESTED, RATES = 27, [0.1, 0.01]  # images that the script of the exercise validates on, its learning rates
ERRORS = {  # what an error says: what it is about
    r"'npu'|string: npu|type hccl": "PyTorch does not know this device by itself. Who brings it (step 1)?",
    r"(?i)nccl": "Which library speaks to Ascend's (step 7)?",
    r"all on npu": "Who has told the processes which card is theirs? CUDA_VISIBLE_DEVICES means nothing here (step 8).",
    r"(?i)cuda": "Something still asks for CUDA.",
    r"same device": "What meets in one operation must be on one card (steps 9 and 15).",
    r"HCCL|No backend type": "What goes over HCCL must be on a card, in a format that it knows (step 15).",
}


@needs_cards
def migrated(script) -> bool:
    """The text `script` must train on two cards as the CUDA script of the exercise does on two GPUs."""
    if not isinstance(script, str):
        return not_yet(f"Give the check the text of a script, not {type(script).__name__}.")
    try:
        compile(script, "my_script.py", "exec")
    except SyntaxError as error:
        return not_yet(f"Line {error.lineno} is no Python: {error.msg}.")
    found, problem = on_cards(_call, 2, partial(_try_script, script))
    if problem:
        about = next((hint for words, hint in ERRORS.items() if re.search(words, problem)), "")
        return not_yet(f"{problem[0].upper()}{problem[1:]} {about}".strip())
    hint = next(filter(None, (_wrong_run(rank, facts) for rank, facts in enumerate(found))), None)
    if hint:
        return not_yet(f"It runs, but {hint}")
    return right("Two processes, a card each; the same training; and all that validation has counted.")


def _call(answer):
    return answer()


def _try_script(script):
    """On a rank: run the script, and tell what it did."""
    sys.path += shims()
    batches, rates, scaled, said = [], [], [], io.StringIO()
    cross_entropy, scale, meet = F.cross_entropy, torch.amp.GradScaler.scale, dist.init_process_group

    def met(backend=None, *given, **named):
        if "nccl" in str(backend).lower():  # in these words on any machine, whatever it has besides
            raise RuntimeError("NCCL finds no card of NVIDIA's on this host.")
        meet(backend, *given, **named)

    def watched(output, target, *given, **named):
        if torch.is_grad_enabled():
            batches.append((output.device.type, len(output)))
        return cross_entropy(output, target, *given, **named)

    F.cross_entropy = watched
    dist.init_process_group, torch.cuda.is_available, torch.cuda.device_count = met, lambda: False, lambda: 0
    torch.amp.GradScaler.scale = lambda *given: scaled.append(1) or scale(*given)
    register_optimizer_step_post_hook(lambda optimizer, *_: rates.append(round(optimizer.param_groups[0]["lr"], 9)))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(said):
        exec(compile(script, "my_script.py", "exec"), {"__name__": "__main__"})
    done = counts.of_process() if hasattr(torch, "npu") else {"devices": {}}
    done["amp"] = bool(done.get("amp") or scaled)
    return done | {"batches": batches, "rates": list(dict.fromkeys(rates)), "said": said.getvalue()}


def _wrong_run(rank, facts):
    """A hint at what is wrong with what a process did, or None."""
    kinds, sizes = ({batch[k] for batch in facts["batches"]} for k in range(2))
    if not kinds:
        return "nothing was trained, or not with cross_entropy."
    if kinds != {"npu"}:
        return f"it has trained on the {' and the '.join(sorted(kinds - {'npu'}))}, not on a card."
    if list(facts["devices"]) != [str(rank)]:
        used = " and ".join(f"npu:{card}" for card in facts["devices"])
        return f"process {rank} has used {used}. It has a card of its own, with its number (step 8)."
    sent = facts.get("collectives", {"allreduce": math.inf})  # real cards do not count
    if sent.get("allreduce", 0) < len(facts["batches"]):
        return "the processes have not exchanged their gradients: each trains a model of its own (step 11)."
    if facts.get("pinned"):
        return f"{facts['pinned']} batches went through pinned memory, which is CUDA's (step 13)."
    if len(sizes) > 1:
        return f"there are batches of {' and of '.join(map(str, sorted(sizes)))} images: kernels for each (step 13)."
    if facts["rates"] != RATES:
        return f"the learning rates are {facts['rates']}, not {RATES} (step 14)."
    if not facts["amp"]:
        return "the loss is not scaled any more: gradients in half precision underflow (step 16)."
    if rank == 0 and f"of {TESTED} images" not in facts["said"]:
        told = (facts["said"].strip().splitlines() or ["nothing"])[-1]
        return f"process 0 says {told!r}. There are {TESTED} images to validate on, over both processes (step 15)."
    return None
