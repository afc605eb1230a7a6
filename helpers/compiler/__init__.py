"""The compiler path: `optimize` picks the fastest right plan, `compiler_stats` says what was compiled.

    model = optimize(model)          # before or after DistributedDataParallel
    for images, labels in loader:    # the loop as it was
        ...
    print(model.tuner)

optimize    the public function
plan        a plan: backend, memory layout, precision
copies      what a check works on, and what it would leave behind
numerics    are a plan's numbers right? compared with eager's
trials      plans timed in turn on training steps, by all ranks together
tuner       the model's forward: checks, trials, then the chosen plan
stats       graphs, breaks, recompilations and compile time of torch.compile
operators   the profile of a training step by kind of operator
"""

from .optimize import optimize
from .plan import Plan
from .stats import compiler_stats
from .tuner import Tuner

__all__ = ["Plan", "Tuner", "compiler_stats", "optimize"]
