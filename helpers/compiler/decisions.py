"""Which plan was chosen, kept on disk, so that the next run of the same training need not try all plans again."""

import hashlib
import json
import time

import torch

from .. import device as devices
from .. import paths


def key(model, forward, plans, signature, settings) -> str | None:
    """What a decision depends on, as a hash; None if a plan has a backend that is a function, which may change.

    It is the model (its structure, its code, shapes and types of its tensors), the batch's shapes
    and types, autocast, the plans, torch, the device, its threads, and the number of ranks.
    """
    if any(callable(plan.backend) for plan in plans):
        return None
    kind = next((t.device.type for t in model.parameters()), "cpu")
    tensors = [(name, list(t.shape), str(t.dtype)) for name, t in model.state_dict().items()]
    facts = {
        "model": [type(model).__module__, type(model).__qualname__, repr(model), _code(model)],
        "tensors": tensors,
        "signature": signature,
        "plans": [str(plan) for plan in plans],
        "autocast": [torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))],
        "torch": torch.__version__,
        "device": devices.machine(kind).name,
        "threads": torch.get_num_threads(),
        **settings,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def read(name) -> dict | None:
    """The decision called `name`, {"plan", "rows", "made"}, or None."""
    try:
        return json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(name, plan, rows) -> None:
    """Keep a decision; a folder that cannot be written to only means that the next run tries again."""
    made = {"plan": plan, "rows": rows, "made": time.strftime("%Y-%m-%d %H:%M")}
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        paths.replace_file(_folder() / f"{name}.json", json.dumps(made, indent=1))
    except OSError:
        pass


def clear_decisions() -> int:
    """Forget which plans were chosen before; returns how many decisions there were."""
    found = list(_folder().glob("*.json"))
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def _folder():
    return paths.cache_root() / "plans"


def _code(model):
    """A hash of the bytecode of all forwards: a model whose structure looks the same may compute otherwise."""
    digest = hashlib.sha256()
    for kind in sorted({type(m) for m in model.modules()}, key=lambda t: (t.__module__, t.__qualname__)):
        code = getattr(kind.forward, "__code__", None)
        digest.update(repr((kind.__qualname__, code and code.co_code, code and code.co_names)).encode())
    return digest.hexdigest()
