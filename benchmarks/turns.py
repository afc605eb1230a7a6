"""Contenders that take turns: each round has a sample of all of them, and each round another begins.

A machine that gets slower does so for all alike, so what is compared is the ratio within a round. Training runs take
turns in processes of their own: one runs a block of steps while the others wait. Every rank of every contender has a
`Gate` in the place of its loss function. A block is measured from one call of the loss to another, so it holds whole
rounds of the loop around it: the next batch, forward, backward, update and whatever else that loop does.
"""

import contextlib
import json
import os
import selectors
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from helpers import measure

PLACE, NAME, PATIENCE = "BENCH_TURNS", "BENCH_TURNS_NAME", 180  # s in which a contender has to answer
ENDLESS = 10**9  # steps


def order(names, number):
    """`names` as round `number` (from 0) takes them: everybody is first, last and after everybody else in turn.

    The order is rotated by the round's number, and turned around in every other lap of rotations.
    """
    names = list(names)
    lap, shift = divmod(number, len(names))
    turned = names[shift:] + names[:shift]
    return turned[::-1] if lap % 2 else turned


def medians(play, casts):
    """{name: [casts] medians} of `play`, a function from a cast's number to {name: seconds by round}.

    Each cast has new processes: where memory happens to be allocated makes all steps of a process quicker or slower
    by some percent, which more rounds of the same processes do not average out.
    """
    found = [play(number) for number in range(casts)]
    return {name: [statistics.median(cast[name]) for cast in found] for name in found[0]}


def ratio(above, below, factor=1.0):
    """measure.with_interval of factor · above / below, round by round; a list of samples each, in the same order."""
    return measure.with_interval(factor * a / b for a, b in zip(above, below, strict=True))


class Gate:
    """A loss function that also waits for its turn. It can be pickled until it is called for the first time.

    Where a step should end elsewhere than at its loss, leave out `loss` and call `turn` there instead. In a process
    that is no contender it is always its turn.

    Attributes:
        rank: which of the contender's ranks this is; None: what RANK says.
        losses: of all steps so far (tensors).
    """

    def __init__(self, loss=None, rank=None):
        self._loss, self.rank, self.losses = loss, rank, []
        self._left, self._words, self._began, self._cpu = 0, None, 0.0, 0.0

    def __call__(self, outputs, labels):
        """The loss; the whole run waits here whenever its block of steps is done."""
        self.turn()
        loss = self._loss(outputs, labels)
        self.losses.append(loss.detach())
        return loss

    def turn(self):
        """A step ends and the next begins."""
        if not self._left:
            self._pause()
        self._left -= 1

    def _pause(self):
        if PLACE not in os.environ:
            self._left = ENDLESS
            return
        ended, cpu = time.perf_counter(), time.process_time()
        if self._words is None:
            self._arrive()
        else:
            self._say(seconds=ended - self._began, cpu=cpu - self._cpu)
        told = json.loads(self._words.readline() or '{"steps": 0}')
        if not told["steps"]:
            self._say(losses=[loss.item() for loss in self.losses])
            told = {"steps": ENDLESS}  # the step that is left until the run ends by itself
        self._left, self._began, self._cpu = told["steps"], time.perf_counter(), time.process_time()

    def _arrive(self):
        line = socket.socket(socket.AF_UNIX)
        line.connect(os.environ[PLACE])
        self._words = line.makefile("rw")
        rank = int(os.environ.get("RANK", 0)) if self.rank is None else self.rank
        self._say(name=os.environ[NAME], rank=rank)

    def _say(self, **words):
        self._words.write(json.dumps(words) + "\n")
        self._words.flush()


def steps_needed(rounds, block, warm=1):
    """Steps that a contender must be ready to run: `warm` + `rounds` blocks, and one at which it hears of the end."""
    return (warm + rounds) * block + 1


def measured(contenders, rounds, block, warm=1, say=lambda text: None):
    """Run all contenders and let them take turns.

    Args:
        contenders: {name: (command, ranks, environment to add)}; each rank of it makes a `Gate`.
        rounds, block: how many blocks of how many steps are measured, after `warm` blocks that are not.

    Returns:
        {name: {"seconds": [rounds] of a step, the slowest rank's; "cpu": [rounds] of a step, the mean of the
        ranks' processor time, which a busy machine hardly changes; "losses": [ranks][steps]}}.

    Raises:
        RuntimeError: a contender ended or kept silent; the end of what it printed is in the text.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turns-")))
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(folder / "place"))
        server.listen(64)
        runs = {}
        for name, (command, ranks, environment) in contenders.items():
            runs[name] = stack.enter_context(_Run(name, command, ranks, environment, folder))
            say(f"{name}: starting")
            while not runs[name].complete:  # one after the other: none is timed out by the others' imports
                runs[name].greet(server)
        found = {name: {"seconds": [], "cpu": []} for name in runs}
        for number in range(warm + rounds):
            for name in order(runs, number):
                seconds, cpu = runs[name].block(block)
                if number >= warm:
                    found[name]["seconds"].append(seconds / block)
                    found[name]["cpu"].append(cpu / block)
        return {name: {**found[name], "losses": run.end()} for name, run in runs.items()}


class _Run:
    """One contender: its process, and the lines to its ranks."""

    def __init__(self, name, command, ranks, environment, folder):
        self.name, self.ranks, self._lines = name, ranks, {}
        place = {PLACE: str(folder / "place"), NAME: name, "OMP_NUM_THREADS": "1"}
        self._printed = open(folder / f"{len(list(folder.iterdir()))}.txt", "w+")
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **place, **environment},
            stdout=self._printed,
            stderr=self._printed,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for line, words in self._lines.values():
            words.close()
            line.close()
        try:
            self._process.wait(20)  # it ends by itself, and what it started does with it
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._printed.close()

    @property
    def complete(self):
        return len(self._lines) == self.ranks

    def greet(self, server):
        """Take the call of one rank."""
        server.settimeout(1)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                line, _ = server.accept()
                break
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise self._gone() from None
        line.settimeout(PATIENCE)
        words = line.makefile("rw")
        hello = json.loads(words.readline())
        assert hello["name"] == self.name, hello
        self._lines[hello["rank"]] = line, words

    def block(self, steps):
        """Seconds that the slowest rank took for its next `steps` steps, and the ranks' mean processor time."""
        answers = self._ask(steps=steps)
        return max(a["seconds"] for a in answers), sum(a["cpu"] for a in answers) / len(answers)

    def end(self):
        return [answer["losses"] for answer in self._ask(steps=0)]

    def _ask(self, **words):
        try:
            for _, line in self._lines.values():
                line.write(json.dumps(words) + "\n")
                line.flush()
        except OSError:
            raise self._gone() from None
        return [self._heard(rank) for rank in sorted(self._lines)]

    def _heard(self, rank):
        line, words = self._lines[rank]
        until = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            while not selector.select(1):
                if self._process.poll() is not None or time.monotonic() > until:
                    raise self._gone()
        try:
            return json.loads(words.readline())
        except (ValueError, OSError):
            raise self._gone() from None

    def _gone(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)  # a rank's line is closed a little before what started it has ended
        code = self._process.poll()
        what = "kept silent" if code is None else f"ended with status {code}"
        self._printed.flush()
        self._printed.seek(0)
        return RuntimeError(f"{self.name} {what}; it had printed:\n{self._printed.read()[-4000:]}")
