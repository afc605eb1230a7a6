"""What a rank of an XLA run calls, in the place of helpers.training.loop.train."""

import os
import sys
import time
from contextlib import ExitStack, contextmanager

import torch

from helpers import device, measure
from helpers.group.process_group import distributed
from helpers.launcher.rank import emit

from . import environment, python  # noqa: F401  what `compare` asks for, with `train`


def train(config, started=None, tell=emit):
    """Train as `config` says, like helpers.training.loop.train but through XLA; on rank 0 what was measured.

    To be called in the XLA environment. Without the variable PJRT_DEVICE the XLA device is the CPU,
    which was tested; another one ("TPU", …) was not. Its gradients would be reduced by XLA itself,
    and it is checked that XLA connects all ranks.

    Args and Raises are those of helpers.training.loop.train, and RuntimeError if XLA does not connect them.
    """
    parts = measure.TimeBreakdown()
    started = started or time.time()
    threads = config.threads or device.machine("cpu").threads
    torch.set_num_threads(threads)
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ["NPROC"] = str(threads)  # what XLA:CPU takes for the number of cores
    from .run import XlaRun  # imports torch_xla, which reads these variables

    parts.seconds["start"] = time.time() - started
    with parts.part("start"), ExitStack() as group:
        with _silent():
            world = group.enter_context(distributed("cpu"))
        return XlaRun(config, world, parts, tell if world.is_main else lambda *_, **__: None).complete()


@contextmanager
def _silent():
    """Drops what is printed in the block, by C code too: torch 2.9 greets from every process group."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
