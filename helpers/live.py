"""Progress of runs: a bar in a terminal, a line that updates in a notebook, plain text elsewhere.

The plain text does not change from run to run, so that executed notebooks can be compared. It
is chosen by HELPERS_PROGRESS=plain and wherever the output is neither a terminal nor a notebook.
"""

import os
import shutil
import sys
import time

WORDS = {"completed": "done", "failed": "FAILED", "stopped": "stopped"}
REDRAW = 0.2  # s


class Progress:
    """Shows the events of one run after the other; `event` fits launch's `on_event`."""

    def __init__(self, runs=1):
        self.runs, self.number, self.label = runs, 0, ""
        self.draw = _drawing()
        self.drawn, self.share = 0.0, 0.0
        self.advised = set()

    def begin(self, label):
        """A run starts."""
        self.number, self.label, self.share = self.number + 1, label, 0.0
        self.draw.start(f"{self._name()}: starting")

    def event(self, event):
        """An event of a rank: a training step, or a note on what takes long."""
        now = time.monotonic()
        if event.get("event") == "note":
            self.draw.update(self._name(), self.share, event["text"])
        if event.get("event") != "step" or (now - self.drawn < REDRAW and event["step"] < event["steps"]):
            return
        self.drawn = now
        self.share = event["step"] / event["steps"]
        numbers = (
            f"step {event['step']}/{event['steps']}  loss {event['loss']:.3f}  {event['images_per_s']:.0f} images/s"
        )
        self.draw.update(self._name(), self.share, numbers)

    def end(self, status):
        """The run has ended as `status` says."""
        self.draw.finish(f"{self._name()}: {WORDS[status]}")

    def note(self, text):
        """Something that has to be said between runs."""
        self.draw.say(text)

    def advise(self, text):
        """Something to know before a run starts; said once, however many runs it holds for."""
        subject = text.partition(":")[0]  # the numbers after it are measured anew in each process
        if text and subject not in self.advised:
            self.advised.add(subject)
            self.draw.say(text)

    def _name(self):
        return f"[{self.number}/{self.runs}] {self.label}" if self.runs > 1 else self.label


class Log(Progress):
    """A line every so many steps, with what a training script prints; for runs from a command line."""

    def __init__(self, every=10):
        super().__init__()
        self.every, self.logged = every, 0

    def begin(self, label):
        """A run starts."""
        self.label, self.logged = label, 0
        print(f"{label}: starting", flush=True)

    def event(self, event):
        """An event of a rank."""
        if event.get("event") == "note":
            print(event["text"], flush=True)
        if event.get("event") != "step" or event["step"] < min(self.logged + self.every, event["steps"]):
            return
        self.logged = event["step"]
        print(
            f"epoch {event['epoch']}  step {event['step']}/{event['steps']}  batch time {event['step_s']:.3f} s  "
            f"{event['images_per_s']:,.0f} samples/s  peak memory {event['peak_memory'] / 2**20:,.0f} MiB  "
            f"loss {event['loss']:.4f}",
            flush=True,
        )

    def end(self, status):
        """The run has ended as `status` says."""
        print(f"{self.label}: {WORDS[status]}", flush=True)

    def note(self, text):
        """Something that has to be said."""
        print(text, flush=True)

    def advise(self, text):
        """Something to know before the run starts."""
        if text:
            print(text, flush=True)


class Plain:
    """One line when a run starts and one when it ends, without numbers."""

    def start(self, text):
        pass

    def update(self, name, share, numbers):
        pass

    def finish(self, text):
        self.say(text)

    def say(self, text):
        print(text, flush=True)


class Terminal(Plain):
    """A bar that redraws itself on one line."""

    def start(self, text):
        self._line(text)

    def update(self, name, share, numbers):
        self._line(f"{name:<21} {bar(share, 12)} {share:4.0%}  {numbers}")  # fits 80 columns

    def finish(self, text):
        self._line("")
        self.say(text)

    def _line(self, text):
        columns = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[2K{text[:columns]}")
        sys.stdout.flush()


class Notebook(Plain):
    """A line of text below the cell that is replaced in place."""

    def start(self, text):
        from IPython.display import display

        self.line = display(self._text(text), raw=True, display_id=True)

    def update(self, name, share, numbers):
        self.line.update(self._text(f"{name}  {bar(share, 24)} {share:4.0%}  {numbers}"), raw=True)

    def finish(self, text):
        self.line.update(self._text(text), raw=True)

    @staticmethod
    def _text(text):
        return {"text/plain": text}


def bar(share, width) -> str:
    """`share` (0 to 1) of `width` characters filled."""
    filled = round(share * width)
    return "█" * filled + "·" * (width - filled)


def _drawing():
    if os.environ.get("HELPERS_PROGRESS") == "plain":
        return Plain()
    if in_notebook():
        return Notebook()
    return Terminal() if sys.stdout.isatty() else Plain()


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
