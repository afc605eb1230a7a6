"""One contender of the benchmark of the article, in a process of its own: its script, or the kit's best path.

    torchrun --nproc-per-node 1 -m benchmarks.article_case script STEPS
    python -m benchmarks.article_case kit '{"settings": …}'

Hooks at the model and at the optimizer tell where a step is, so that neither has to be written differently.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from benchmarks import article_script, turns
from helpers import RunConfig, device, launch
from helpers.training import loop

PARTS = ("input wait", "forward", "backward", "optimizer")
OUT = "BENCH_PARTS"  # file that gets the seconds of each part, step by step, as JSON


class Marks:
    """Cuts the time of a training loop into PARTS: each second of a step belongs to exactly one.

    "input wait" is everything between two steps (the next batch, its copy to the device, the loop itself), "backward"
    begins with the loss.

    Attributes:
        steps: one {part: seconds} for each whole step.
    """

    def __init__(self, model, optimizer, turn=lambda: None, settle=lambda: None, clock=time.perf_counter):
        self._turn, self._settle, self._clock = turn, settle, clock
        self.steps, self._step, self._last = [], {}, None
        model.register_forward_pre_hook(lambda *_: self._mark("input wait"))
        model.register_forward_hook(lambda *_: self._mark("forward"))
        optimizer.register_step_pre_hook(lambda *_: self._mark("backward"))
        optimizer.register_step_post_hook(lambda *_: self._end())

    def _mark(self, part):
        self._settle()
        now = self._clock()
        if self._last is not None:
            self._step[part] = now - self._last
        self._last = now

    def _end(self):
        self._mark("optimizer")
        if len(self._step) == len(PARTS):  # the first step has no beginning
            self.steps.append(self._step)
        self._step = {}
        self._turn()  # while others have theirs, this clock stands
        self._last = self._clock()


def watched(model, optimizer, where):
    """Marks that take turns with other contenders."""
    gate = turns.Gate()
    return Marks(model, optimizer, gate.turn, lambda: device.synchronize(where))


def written(marks):
    with open(os.environ[OUT], "w") as file:
        json.dump(marks.steps, file)


def script(steps):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    where, loader, model, criterion, optimizer = article_script.parts()
    marks = watched(model, optimizer, where)
    epochs = -(-steps // len(loader))
    article_script.train(where, loader, model, criterion, optimizer, epochs, steps)
    written(marks)
    dist.destroy_process_group()


def kit_rank(settings):
    """The kit's own loop; `launch` runs this."""
    made = loop.Run.__init__

    def watching(run, *args):
        made(run, *args)
        run.marks = watched(run.wrapped, run.optimizer, run.world.device)

    def measured(run, evaluation):
        written(run.marks)

    loop.Run.__init__, loop.Run._measured = watching, measured  # of this rank, which is a process of its own
    loop.train(RunConfig(**settings))


def main(how, what):
    if how == "script":
        script(int(what))
    else:
        settings = json.loads(what)["settings"]
        launch(kit_rank, 1, settings, threads=settings["threads"])


if __name__ == "__main__":
    main(*sys.argv[1:])
