"""What an engine does: it starts the ranks of one run, says what becomes of them, and stops them.

`engine` has the default one; those for several machines are in `helpers.cluster`. Results, errors, output, progress and
records are the Supervisor's, the same for all of them.
"""

from typing import Protocol


class Engine(Protocol):
    """Made anew for each run, from the options that `launch(…, on=…)` was given."""

    def check(self, nprocs):
        """Raise ValueError, which says what to do, where `nprocs` ranks cannot be started; only for `on=`."""

    def start(self, nprocs, message):
        """Start ranks 0 … nprocs - 1, whose payload is `message` (a SharedMessage with a file)."""

    def events(self, timeout):
        """Yield what has happened; wait up to `timeout` seconds for something to happen.

        ("waiting", text): the run has not begun, and why. Its time does not count.
        ("started", {rank: process id}, text): the ranks have begun; the ids of those here, and where others are.
        ("refused", text): they cannot begin.
        ("output", rank, "stdout", "stderr" or "stacks", bytes), ("event", rank, dict),
        ("display", rank, data, metadata, display_id, update): what a rank prints, emits, displays.
        ("answer", rank, number of the call, "value" or "failure", parts for `shared_message.opened`).
        ("exit", rank, exit code or None, why or ""): its last event.
        """

    def signal(self, number, ranks):
        """Send a signal to some ranks."""

    def tell(self, rank, *message):
        """Send a message to a rank. Raises OSError if it has ended."""

    def close(self):
        """End what is left of the run, also of one that could not be started."""
