"""The command line: `python -m tools.soak --help`."""

import argparse
import json
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from . import drive, judge, report
from .plans import plan

SPARE = 40.0  # s before the bound at which no launch is started any more; only a kernel that is stuck takes longer
SETTLED = 50  # launches after which memory has to be flat; a third of them if there are fewer


@dataclass
class Soak:
    """One kernel's share of the work, done in a thread of its own.

    `numbers` are those of the launches to perform, `plants` the mistakes to make for the tests:
    {number of the launch: names that inside.sabotage knows}.
    """

    kernel: int
    seed: int
    numbers: list
    deadline: float  # of time.monotonic()
    plants: dict = field(default_factory=dict)
    launches: list = field(default_factory=list)
    readings: list = field(default_factory=list)
    violations: list = field(default_factory=list)

    @property
    def wanted(self):
        return len(self.numbers)

    @property
    def first(self):
        """The launch from which on memory has to be flat."""
        return min(SETTLED, self.wanted // 3)

    @property
    def planted(self):
        return sum(launch.plan.kind != "healthy" for launch in self.launches)

    @property
    def passed(self):
        return not self.violations and len(self.launches) == self.wanted

    def run(self):
        """Perform all launches; what goes wrong is in `violations`, and printed when it happens."""
        try:
            with drive.started(self.environment()) as driver:
                driver.warm_up()
                self.perform(driver)
        except drive.Stuck as error:
            number = self.numbers[min(len(self.launches), self.wanted - 1)]
            self.blame(drive.Launch(plan(self.seed, self.kernel, number), 0.0, {}), str(error))
        except Exception:  # a thread's exception would be lost
            self.say(f"kernel {self.kernel}: the soak itself failed:\n{traceback.format_exc()}")

    def environment(self):
        """Every second kernel shows panels, as if a browser looked at it."""
        return {"HELPERS_PROGRESS": "plain"} if self.kernel % 2 else {"JPY_SESSION_NAME": "soak.ipynb"}

    def perform(self, driver):
        self.readings = driver.readings
        for place, number in enumerate(self.numbers, 1):
            if time.monotonic() > self.deadline:
                self.say(f"kernel {self.kernel}: stopped before launch {number}, since the time is up")
                return
            due = self.first <= place < self.first + judge.READINGS or place > self.wanted - judge.READINGS
            launch = driver.perform(
                plan(self.seed, self.kernel, number), due or place % 10 == 0, self.plants.get(number, ())
            )
            self.launches.append(launch)
            for problem in launch.problems:
                self.blame(launch, problem)
        for problem in driver.left_behind(at_last=True):
            self.say(f"kernel {self.kernel}, seed {self.seed}, at the end: {problem}")
        if self.wanted > 2 * judge.READINGS:
            for problem in judge.growth(self.readings, self.first):
                self.say(f"kernel {self.kernel}, seed {self.seed}: {problem}")

    def blame(self, launch, problem):
        self.say(report.violation(self.kernel, launch, problem, self.seed))

    def say(self, text):
        self.violations.append(text)
        print(text, flush=True)


def soak(soaks):
    """Run all of them at the same time, with a line of progress every few seconds."""
    began = time.monotonic()
    threads = [threading.Thread(target=one.run, daemon=True) for one in soaks]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            end = time.monotonic() + report.EVERY
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            print(report.progress(soaks, time.monotonic() - began), flush=True)
        except KeyboardInterrupt:  # the kernels are in sessions of their own: end them in order
            for one in soaks:
                one.deadline = 0.0


def main(arguments=None) -> int:
    options = _options(arguments)
    began = time.monotonic()
    kernel, number = options.only or (None, None)
    numbers = list(range(1, options.launches + 1)) if number is None else [number] * options.times
    deadline = began + 60 * options.minutes - SPARE
    plants = {}
    for what, _, number in (text.rpartition("@") for text in options.plant):
        plants.setdefault(int(number), []).append(what)
    soaks = [
        Soak(k, options.seed, numbers, deadline, plants) for k in range(1, options.kernels + 1) if kernel in (None, k)
    ]
    print(f"{len(soaks)} kernel(s), {len(numbers)} launches each, seed {options.seed}", flush=True)
    soak(soaks)
    seconds = time.monotonic() - began
    print(f"\n{report.table(soaks)}\n")
    if options.json:
        options.json.write_text(json.dumps(report.as_json(soaks, options.seed, seconds), indent=1), encoding="utf-8")
    wrong = sum(len(one.violations) for one in soaks)
    if all(one.passed for one in soaks):
        print(f"passed in {seconds:.0f} s: every launch did what it had to, and nothing is left of any")
        return 0
    print(f"FAILED after {seconds:.0f} s: {wrong} violation(s), listed above")
    return 1


def _options(arguments):
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--launches", type=int, default=300, metavar="N", help="in each kernel (default: 300)")
    parser.add_argument("--kernels", type=int, default=2, metavar="N", help="at the same time (default: 2)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the plans (default: a new one)")
    parser.add_argument("--minutes", type=float, default=10.0, help="that it may take (default: 10)")
    parser.add_argument("--only", type=_place, metavar="KERNEL.LAUNCH", help="perform that launch alone, say 2.17")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how often, with --only (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was seen there")
    parser.add_argument("--plant", action="append", default=[], help=argparse.SUPPRESS)  # WHAT@LAUNCH, for the tests
    options = parser.parse_args(arguments)
    if sys.platform != "linux":
        parser.error("this needs Linux: it looks at processes through /proc")
    if min(options.launches, options.kernels, options.times) < 1 or options.minutes <= SPARE / 60:
        parser.error(f"nothing to do: give at least one launch, one kernel and {2 * SPARE / 60:g} minutes")
    return options


def _place(text):
    kernel, _, number = text.rpartition(".")
    return int(kernel or 1), int(number)


if __name__ == "__main__":
    sys.exit(main())
