"""Move a CUDA training script to Ascend NPUs, step by step, and show what was done.

    migration = migrate("main.py")
    print(migration.diff())      # every hunk names its step
    print(migration.report())    # what was changed, what was not, and what only you can choose
"""

import importlib

from .steps import STEPS, Step

_HOME = {
    "migrate": "engine", "Migration": "engine", "Change": "engine", "Note": "notes", "MigrationError": "source",
}  # fmt: skip

__all__ = ["STEPS", "Change", "Migration", "MigrationError", "Note", "Step", "migrate"]


def __getattr__(name):
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
