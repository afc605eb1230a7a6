"""What surrounds a launch in its thread: who may stop it, where its output goes, what shows its progress.

The kernel's stop button is noticed between two steps of the launcher, never within one: a KeyboardInterrupt between
the making of a pipe and the line that remembers it would lose the pipe, and half of a run handed over would keep the
fork server waiting for the other half.
"""

import signal
import sys
import threading
from contextlib import contextmanager
from html import escape

_local = threading.local()
_held_back = None  # inside `interrupts_held_back`: the signals that came and were not noticed yet


class Stopped(KeyboardInterrupt):
    """The kernel's stop button, the panel's, or the `stop()` of a run in the background."""

    def _render_traceback_(self):
        """What IPython shows: where the notebook happened to wait is of no use to the reader."""
        return [f"Stopped: {self}. What was recorded so far is kept."]


Stopped.__name__ = "KeyboardInterrupt"  # what a front end names: the word that the reader knows


@contextmanager
def entered(progress):
    """Launches of this thread show how they go on in `progress` (a Progress), and stop when its `stop` is set."""
    _local.stack = (*stack(), progress)
    try:
        yield
    finally:
        _local.stack = stack()[:-1]


def stack():
    """All Progress objects that this thread has entered, the innermost last."""
    return getattr(_local, "stack", ())


def progress():
    """What shows the progress in this thread, or None."""
    return stack()[-1] if stack() else None


@contextmanager
def interrupts_held_back():
    """Keep SIGINT until `raise_if_stopped` or the end of the block; a second one, before that, comes through."""
    global _held_back
    usual = signal.getsignal(signal.SIGINT)
    if _held_back is not None or not _in_main_thread() or not callable(usual):
        yield
        return
    signals = []

    def hold(*arguments):
        signals.append(arguments)
        if len(signals) > 1:  # something blocks, the reader's on_event for example
            signals.clear()
            usual(*arguments)

    signal.signal(signal.SIGINT, hold)
    try:
        _held_back = signals
        yield
    finally:
        _held_back = None
        signal.signal(signal.SIGINT, usual)
        if signals:
            usual(*signals[0])


def raise_if_stopped():
    """Raise Stopped if somebody asked to stop what this thread does."""
    pressed = _held_back and _in_main_thread()
    if pressed:
        _held_back.clear()
    if pressed or any(progress.stop.is_set() for progress in stack()):
        raise Stopped("no rank was running")


def _in_main_thread():
    return threading.current_thread() is threading.main_thread()


# -- output ----------------------------------------------------------------------------------------


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def printed(rank, stream, text):
    """Show what a rank printed: whole lines of "stdout" or "stderr"."""
    shown_by = progress()
    (shown_by.printed if shown_by else write)(rank, stream, text)


def write(rank, stream, text):
    """Print the lines, each after the number of its rank; `rank` None for messages of the launcher."""
    file = getattr(sys, stream)
    file.write(labelled(rank, text))
    file.flush()


def labelled(rank, text):
    """The lines of `text`, each after the number of its rank."""
    return text if rank is None else "".join(f"[rank {rank}] {line}\n" for line in text.split("\n")[:-1])


def redrawn(rank, text):
    """Show the line that a rank draws again and again where something moves; returns whether it does."""
    shown_by = progress()
    return shown_by is not None and shown_by.redrawn(rank, text)


def displayed(rank, data, metadata, display_id, update):
    """Show what a rank gave to display(), {type: content}, below the number of the rank; else its text."""
    shown_by = progress()
    if not in_notebook() or (shown_by and shown_by.sink is not write):
        return printed(rank, "stdout", data.get("text/plain", "") + "\n")
    from IPython.display import display

    if not update:
        printed(rank, "stdout", "\n")
    identity = {"display_id": f"{display_id}-{rank}", "update": update} if display_id else {}
    display(data, raw=True, metadata=metadata, **identity)


def moved(state, where):
    """Show that a run is "queued" or "running", and where."""
    if shown_by := progress():
        shown_by.moved(state, where)


def folded(title, text):
    """Show long text of the launcher: in a notebook below a line that opens it by a click."""
    if not in_notebook() or not _in_main_thread():
        return printed(None, "stderr", f"{title}:\n{text}\n")
    from IPython.display import display

    html = f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"
    display({"text/plain": f"{title}:\n{text}", "text/html": html}, raw=True)
