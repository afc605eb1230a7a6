"""One submitted collective on its way, and which of them a decision lets run."""

import threading
import time


class Entry:
    """One submitted collective: `request` travels; what `inputs` and `outputs` are, only the plane knows."""

    __slots__ = ("request", "inputs", "outputs", "ready", "done", "ended", "error", "result", "submitted")

    def __init__(self, request, inputs=(), outputs=(), ready=None):
        self.request, self.inputs, self.outputs, self.ready = request, inputs, outputs, ready
        self.done, self.error, self.result = threading.Event(), None, None
        self.ended = False  # error or result stand; `done` is set right after
        self.submitted = time.monotonic()

    @property
    def key(self):
        return self.request["set"], self.request["name"]

    def value(self):
        """The result of what has ended, or its error."""
        if self.error is not None:
            raise self.error
        return self.result


def keys(message):
    """The (set, name) of what a decision lets run."""
    if "run" in message:
        return [(message["set"], name) for name in message["run"]]
    return [(0, message["name"])] if "number" in message else []
