"""The progress of runs from a command line: lines, as a training script prints them."""

import time

from ..language import Message
from ..launcher.display import Row, Text
from ..launcher.progress import Progress


class Log(Progress):
    """A line every so many steps, as a training script prints it; for runs from a command line.

    Batch time and samples/s are means over the steps since the line before; the first line's include the warm-up.
    """

    def __init__(self, every=10):
        super().__init__(to=Text())
        self.opened, self.every = True, every

    def begin(self, label):
        """A run starts."""
        self.row, self.logged, self.spent = Row(label, "running", began=time.monotonic()), 0, 0.0
        self.note(Message("{label}: starting", label=label))

    def event(self, event):
        """An event of a rank."""
        if event.get("event") == "note":
            self.note(event["text"])
        if event.get("event") != "step" or event["step"] < min(self.logged + self.every, event["steps"]):
            return
        batch_s = (event["trained_s"] - self.spent) / (event["step"] - max(self.logged, event["first_step"]))
        rate = event["images_per_s"] * event["step_s"] / batch_s
        self.logged, self.spent = event["step"], event["trained_s"]
        values = {name: event[name] for name in ("epoch", "step", "steps")}
        values |= {"batch_s": f"{batch_s:.3f}", "rate": f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"}
        values |= {"peak": f"{event['peak_memory'] / 2**20:,.0f}", "loss": f"{event['loss']:.4f}"}
        self.note(
            Message(
                "epoch {epoch}  step {step}/{steps}  batch time {batch_s} s  {rate} samples/s  "
                "peak memory {peak} MiB  loss {loss}",
                **values,
            )
        )
