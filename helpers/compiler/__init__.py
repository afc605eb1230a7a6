"""The compiler path: `optimize` picks the fastest right plan, `compiler_stats` says what was compiled.

    model = optimize(model)          # before or after DistributedDataParallel
    for images, labels in loader:    # the loop as it was
        ...
    print(model.tuner)
"""

from .optimize import clear_decisions, optimize
from .plan import Plan
from .stats import compiler_stats
from .tuner import Tuner

__all__ = ["Plan", "Tuner", "clear_decisions", "compiler_stats", "optimize"]
