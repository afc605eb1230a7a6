"""One visit to a contender: fresh kernels, its cells run, the times taken, failures planted, leftovers counted.

A visit returns findings: dicts with "row", "samples" of one number, and, where a reader would be let down, "bad"
with the words why.
"""

import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import peers_kernel

CAP = 10.0  # s after which something counts as not shown, or a launch as hanging
START = 60.0  # s that setting up or one launch may take when nothing is wrong with it
SETTLE = 1.0  # s that ranks may take to end after a failure was shown
GONE = 3.0  # s that processes may take to end after their kernel has
FEW = 3  # launches after the first in one visit, if they are quick
WORKED = r"sum 2\.0"
RANK = r"(?i)\b(?:rank|process|worker|engine)[\s:_=\[(]*1\b|local_rank *: *1\b|\[1:\w+\]|\[\w*default1\]"
WORDS = {
    "exception": (r"planted mistake",),
    "lost": (r"SIGKILL", r"(?i)signal 9\b", r"(?i)exit ?code:? *-9\b", r"(?i)\b(?:was killed|died|lost|terminated)\b"),
    "hang": (r"KeyboardInterrupt", r"(?i)\binterrupted\b"),
}
TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    model(torch.randn(64, 3, 32, 32)).square().mean().backward()
    optimizer.step()
"""
FIRST, LATER = "first launch", "later launch"
SHOWN = {"exception": "exception shown", "lost": "killed rank shown", "hang": "interrupt shown"}
NAMED, FAILED = "message names the rank", "failed cell fails"
AGAIN, TRAINED, VALUES = "works after a failure", "works after training", "returns values"
LEFT_RUN, LEFT_KERNEL, LEFT_KILLED = "left after a failure", "left after a shutdown", "left by a killed kernel"
SECONDS = (FIRST, LATER, *SHOWN.values())
COUNTS = (LEFT_RUN, LEFT_KERNEL, LEFT_KILLED)
CAN = (AGAIN, TRAINED, VALUES, NAMED, FAILED)
ROWS = (*SECONDS, *COUNTS, *CAN)


class Stuck(RuntimeError):
    """The kernel can no longer be used: a cell in it does not end, or its launcher does not start anything."""


@dataclass
class Visit:
    """What is found out about one contender in one round; `folder` is the visit's own."""

    contender: object
    python: str
    folder: Path
    cap: float = CAP
    known: frozenset = (
        frozenset()
    )  # rows that were bad in an earlier visit: looking again takes long, and tells no more
    findings: list = field(default_factory=list)
    marks: int = 0
    slowest: float = 0.0  # s of a launch when nothing was wrong

    @property
    def patience(self):
        """Seconds after which a launch that has to work again is taken to hang: the cap above its usual time."""
        return self.cap + 2 * self.slowest

    def note(self, row, number, bad=None):
        self.findings.append({"row": row, "sample": float(number), **({"bad": bad} if bad else {})})

    def can(self, row, it_can, why):
        self.note(row, it_can, None if it_can else why)

    # -- kernels

    @contextmanager
    def fresh(self, first=True):
        """A kernel in which the contender has launched once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with peers_kernel.kernel(self.python, self.folder) as kernel:
            began, text = time.monotonic(), ""
            for code in (*self.contender.setup, self.contender.cell("all_reduce")):
                outcome = kernel.run(code, START)
                text += outcome.text + outcome.error
                if outcome.error or outcome.seconds is None:
                    break
            took = time.monotonic() - began
            if not self.worked(kernel, outcome):
                raise Stuck(f"the first launch did not work: {text.strip()[-300:] or 'no answer'}")
            if first:
                self.note(FIRST, took)
            yield kernel

    def worked(self, kernel, outcome):
        """Whether the launch in that cell did its work; what ranks print may come a moment after the cell's end."""
        end = time.monotonic() + 2
        while outcome.seconds is not None and not outcome.error and time.monotonic() < end:
            if re.search(WORKED, outcome.text):
                return True
            kernel.late(outcome)
        return False

    def launch(self, kernel, cap, fn="all_reduce"):
        """Seconds of one more launch, or None if it did not work within `cap` seconds."""
        outcome = kernel.run(self.contender.cell(fn), cap)
        return outcome.seconds if self.worked(kernel, outcome) else None

    # -- the two kinds of visits

    def failures(self):
        """First and later launches, then all three failures; the kernel is shut down as a reader does."""
        todo = [what for what in SHOWN if SHOWN[what] not in self.known]
        first = True
        while first or todo:
            with self.fresh(first) as kernel:
                if first:
                    self.later_launches(kernel)
                    values = kernel.run(self.contender.values, self.cap).text
                    self.can(VALUES, "[2.0, 2.0]" in values, "gives no values")
                first = False
                usable = self.plant(kernel, todo)
                if usable or not todo:
                    kernel.close()
                    self.count(LEFT_KERNEL, kernel.processes, GONE)

    def plant(self, kernel, todo):
        """Let ranks fail in the ways of `todo`, which loses what is done; whether the kernel can still launch."""
        before = None
        try:
            while todo:
                self.fail(kernel, todo, before)
                before = todo.pop(0)
            if before:
                works = self.launch(kernel, self.patience) is not None
                self.can(AGAIN, works, f"no launch after {said(before)}")
        except Stuck as stuck:
            self.note(AGAIN, 0, str(stuck))
            return False
        return True

    def later_launches(self, kernel):
        spent = 0.0
        for _ in range(FEW):
            took = self.launch(kernel, START)
            if took is None:
                raise Stuck("the second launch did not work")
            self.note(LATER, took)
            self.slowest = max(self.slowest, took)
            spent += took
            if spent > 1:
                break

    def training(self):
        """A launch after the kernel has trained; then the kernel is killed while ranks run."""
        with self.fresh() as kernel:
            self.later_launches(kernel)
            trained = kernel.run(TRAINING, START)
            if trained.error or trained.seconds is None:
                raise Stuck(f"the training itself did not work: {trained.error[-300:]}")
            works = self.launch(kernel, self.patience, "training") is not None
            self.can(TRAINED, works, f"hangs, for over {self.cap:g} s")
            if works:
                self.kill_kernel(kernel)
        if not works:
            with self.fresh(first=False) as kernel:
                self.kill_kernel(kernel)

    def kill_kernel(self, kernel):
        self.until_marked(kernel, "hang")
        kernel.close(politely=False)
        self.count(LEFT_KILLED, kernel.processes, GONE)

    def count(self, row, processes, patience):
        """How many processes there still are after `patience` seconds, or as soon as there is none."""
        end = time.monotonic() + patience
        while (left := processes()) and time.monotonic() < end:
            time.sleep(0.05)
        self.note(row, len(left), f"{len(left)} left" if left else None)

    # -- failures

    def until_marked(self, kernel, what):
        """Start the ranks that are to fail; returns (outcome so far, when rank 1 came to it)."""
        self.marks += 1
        mark = self.folder / f"mark-{self.marks}"
        outcome = kernel.send(self.contender.cell(what, mark))
        end = time.monotonic() + self.patience
        while not mark.exists():
            ended = outcome.seconds is not None
            if ended or time.monotonic() > end:
                raise Stuck("no launch")
            kernel.finish(outcome, 0.02, WORDS[what])
        return outcome, float(mark.read_text())

    def fail(self, kernel, todo, before):
        """Plant the first failure of `todo` and find out when and how it is shown; once it is planted it is done."""
        what, there = todo[0], kernel.processes()
        try:
            outcome, when = self.until_marked(kernel, what)
        except Stuck as stuck:
            if before is None:  # a fresh kernel would do no better
                todo.pop(0)
            raise Stuck(f"{stuck} after {said(before)}" if before else f"{stuck} that could fail") from None
        if what == "hang":
            time.sleep(0.3)
            when = time.monotonic()
            kernel.interrupt()
        if outcome.seconds is None:
            kernel.finish(outcome, when + self.cap - time.monotonic(), WORDS[what])
        if outcome.seconds is not None:
            kernel.late(outcome, WORDS[what])
        took = outcome.started + outcome.shown - when if outcome.shown is not None else None
        late = None if took is not None else f"not within {self.cap:g} s"
        self.note(SHOWN[what], self.cap if late else took, late)
        if what != "hang":
            self.can(NAMED, bool(re.search(RANK, outcome.text + outcome.error)), f"not that of {said(what)}")
            self.can(FAILED, bool(outcome.error), f"passes with {said(what)}")
        if outcome.seconds is None:
            todo.pop(0)
            raise Stuck(f"the cell goes on after {said(what)}")
        self.count(LEFT_RUN, lambda: kernel.processes() - there, SETTLE)


def said(what):
    return {"exception": "an exception", "lost": "a killed rank", "hang": "an interrupt"}[what]


def visit(contender, python, folder, kind, cap=CAP, known=frozenset()):
    """The findings of one visit of `kind` "failures" or "training"; `known` are rows that need no other look."""
    here = Visit(contender, python, Path(folder) / f"{contender.name}-{os.urandom(3).hex()}", cap, known)
    try:
        getattr(here, kind)()
    except Stuck as stuck:
        here.note(FIRST, START, str(stuck))
    return here.findings
