"""Move a CUDA training script to Ascend NPUs, step by step, and show what was done.

migration = migrate("main.py")
print(migration.diff())      # every hunk names its step
print(migration.report())    # what was changed, what was not, and what only you can choose
"""

from .engine import Change, Migration, migrate
from .notes import Note
from .steps import STEPS, Step
from .tree import MigrationError

__all__ = ["STEPS", "Change", "Migration", "MigrationError", "Note", "Step", "migrate"]
