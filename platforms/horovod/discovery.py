"""Ranks that come and go with the hosts: `--host-discovery-script`, as in "Elastic Horovod" of Horovod's documentation.

The script prints a line "host:slots" for each host, and is run every second. Only slots of this machine count. Where
there is a slot without a rank, after a loss or because the script names more slots, a rank is started; it joins when
the others call `state.commit()`. Where there are fewer slots, the ranks that came last leave.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from . import start
from .core import roster

EVERY = 1.0  # seconds between two runs of the script
LONGEST = 30.0  # seconds that the script may take
FAILURES = 3  # ranks started later that end before they have joined; then no more are started


class Discovery:
    """Starts ranks for slots, as a context manager around the job's life.

    Args:
        script: the command of the discovery script. least, most: numbers of ranks.
    """

    def __init__(self, script, least, most):
        self.script, self.least, self.most = script, least, most
        self.slots, self.looked, self.complained = 0, 0.0, False
        self.members, self.left, self.useless = set(), set(), 0

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="helpers-hvd-roster-"))
        os.environ[roster.VARIABLE] = str(self.folder)
        return self

    def __exit__(self, *exception):
        del os.environ[roster.VARIABLE]
        shutil.rmtree(self.folder, ignore_errors=True)

    def first(self):
        """Wait for enough slots; the number of ranks to start with.

        Raises:
            TimeoutError: there were too few for HOROVOD_ELASTIC_TIMEOUT seconds (600).
        """
        limit = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", 600))
        until = time.monotonic() + limit
        while self._look() < self.least:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{self.script} named {self.slots} slot(s) of this machine for {limit:g} s, and --min-np is "
                    f"{self.least} (HOROVOD_ELASTIC_TIMEOUT)"
                )
            time.sleep(0.1)
        return min(self.slots, self.most)

    def _look(self):
        """The number of slots that the script names now; that of before if it fails, once in a second."""
        if time.monotonic() - self.looked >= EVERY:
            try:
                done = subprocess.run([self.script], stdout=subprocess.PIPE, check=True, timeout=LONGEST, text=True)
                self.slots, self.complained = start.slots(done.stdout.splitlines())[0], False
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                if not self.complained:
                    start.say(f"{self.script} did not work, so the ranks stay as they are: {error}")
                self.complained = True
            self.looked = time.monotonic()
        return self.slots

    def follow(self, ranks):
        """Watch the ranks until the job has ended: (exit status, a sentence or None)."""
        self.members = set(range(len(ranks.processes)))
        roster.publish(self.folder, self.members)
        failed = {}
        while True:
            time.sleep(start.POLL)
            codes = {number: process.poll() for number, process in enumerate(ranks.processes)}
            self._note_failures(codes, failed)
            finished = {number for number in self._joined() - self.left if codes[number] == 0}
            alive = {number for number in self.members if codes[number] is None}
            if finished and all(start.is_frozen(ranks.processes[number].pid) for number in alive):
                return 0, start.told(failed) + start.WITHOUT if failed else None
            if not finished and len(alive) < self.least:
                time.sleep(start.TOGETHER)
                codes = {number: process.poll() for number, process in enumerate(ranks.processes)}
                self._note_failures(codes, failed)
                rest = f"; fewer than --min-np {self.least} were left, and the others were stopped"
                return start.status(failed), start.told(failed) + rest
            if not finished:
                self._adapt(ranks, codes, alive)

    def _joined(self):
        return {int(path.name[3:]) for path in self.folder.glob("in-*")}

    def _note_failures(self, codes, failed):
        new = {number: code for number, code in codes.items() if code and number not in failed}
        self.useless += len(set(new) - self._joined() - self.left)
        failed.update(new)

    def _adapt(self, ranks, codes, alive):
        """Let ranks join and leave, so that there are as many as slots."""
        wanted = min(self._look(), self.most)
        later = {number for number, code in codes.items() if code is None} - self.members - self.left
        ready = {number for number in later if self.folder.joinpath(f"ready-{number}").exists()}
        here = sorted(alive | ready)
        leaving = set(here[max(wanted, self.least) :])
        # Survivors find each other by themselves; only a rank that is waiting to join needs the new list after a loss.
        waited_for_in_vain = alive < self.members and not self.members <= self._joined()
        if ready or leaving or waited_for_in_vain:
            self.left |= leaving
            self.members = set(here) - leaving
            roster.publish(self.folder, self.members)
            start.say(f"ranks from the next commit on: {', '.join(map(str, sorted(self.members)))}")
        elif len(alive) + len(later) < wanted and self.useless < FAILURES:
            ranks.add()
            if ranks.verbose:
                start.say(f"a slot is free; rank {len(ranks.processes) - 1} was started and joins at the next commit")
