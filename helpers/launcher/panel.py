"""The panel of runs in a notebook: a bar a run, what it does, and a button that stops it.

While it is alive the panel is a widget. When all is over plain HTML takes its place, which stays in the saved notebook.
"""

from html import escape

import IPython.display
import ipywidgets

from ..language import _
from . import display

SIGNS = {
    "waiting": "○",
    "queued": "◷",
    "running": "▶",
    "completed": "✓",
    "failed": "✗",
    "stopped": "■",
    "left out": "–",
}
# Jupyter's own colours, so that dark themes hold; the values after the comma are for pages without a theme.
STYLE = """<style>
.helpers-panel {font: 13px/1.5 system-ui, sans-serif; color: var(--jp-content-font-color1, #222); max-width: 62rem}
.helpers-run {display: grid; grid-template-columns: minmax(8rem, 14rem) 6.5rem minmax(5rem, 1fr) minmax(17rem, 1.6fr);
  gap: 0 .8rem; align-items: center; padding: 2px 0}
.helpers-run progress {width: 100%; accent-color: var(--jp-brand-color1, #1976d2)}
.helpers-run span {overflow: hidden; text-overflow: ellipsis}
.helpers-run .helpers-numbers {font-variant-numeric: tabular-nums; white-space: nowrap}
.helpers-run .helpers-state {font-weight: 600}
.helpers-panel .helpers-note {margin: 2px 0 0; white-space: pre-wrap}
</style>"""


class Panel(display.NullDisplay):
    """Shows the rows of one Progress."""

    moves = True

    def __init__(self):
        self.rows, self.widget, self.messages, self.waits = [], None, [], ""

    def open(self, rows, stop):
        self.rows = rows
        tip = _("Stop these runs; what they recorded so far is kept")
        self.button = ipywidgets.Button(description=_("Stop"), icon="stop", tooltip=tip)
        self.button.on_click(lambda button: self._pressed(stop))
        self.button.layout.display = "none" if stop is None else ""
        _serve_while_a_cell_runs(self.button)
        self.text = ipywidgets.HTML()
        self.widget = ipywidgets.VBox([self.text, self.button])
        self._draw()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        bundle = {"text/plain": self._as_text(), "application/vnd.jupyter.widget-view+json": view}
        self.place = IPython.display.display(bundle, raw=True, display_id=True)

    def update(self, rows, row):
        self.waits = ""
        self._draw()

    def say(self, text, passing=False):
        if self.widget is None:
            print(text, flush=True)
        elif passing:
            self.waits = text
        else:
            self.messages.append(text)
        self._draw()

    def close(self, rows):
        """Leave the last state where the widget was, and free the widget."""
        if self.widget is None:
            return
        self.update(rows, None)
        self.place.update({"text/plain": self._as_text(), "text/html": self.html}, raw=True)
        for widget in (self.widget, self.text, self.button):
            for part in (widget.layout, getattr(widget, "style", None), widget):
                if part is not None:
                    part.close()
        self.widget = None

    def _pressed(self, stop):
        stop.set()
        self.button.disabled, self.button.description = True, _("Stopping …")

    def _as_text(self):
        """Without numbers, which differ from run to run."""
        return "\n".join(display.state(self.rows, row) for row in self.rows)

    def _draw(self):
        if self.widget is None:
            return
        bars = [f"[rank {rank}] {text}" for row in self.rows for rank, text in sorted(row.redrawn.items())]
        notes = "".join(
            f'<p class="helpers-note">{escape(text)}</p>' for text in (*bars, self.waits, *self.messages) if text
        )
        rows = "".join(_row(self.rows, row) for row in self.rows)
        begin = f'<div class="helpers-panel" role="group" aria-label="{_("Runs")}">'
        self.text.value = self.html = f"{STYLE}{begin}{rows}{notes}</div>"


def _row(rows, row):
    label, state = escape(display.name(rows, row)), row.state
    word = _(display.WORDS[state])
    share = 1.0 if state == "completed" else row.share or 0.0
    text = row.summary() if state in ("queued", "running") else " · ".join(filter(None, [row.numbers, row.why]))
    text = escape(text or (f"{row.seconds:.1f} s" if row.seconds else ""))
    return (
        f'<div class="helpers-run"><span class="helpers-label" title="{label}">{label}</span>'
        f'<span class="helpers-state">{SIGNS[state]} {word}</span>'
        f'<progress aria-label="{label}: {word}" value="{share:.3f}"></progress>'
        f'<span class="helpers-numbers" title="{text}">{text}</span></div>'
    )


def _serve_while_a_cell_runs(widget):
    """Let the front end's messages to `widget` reach the thread that it sent them to, even while a cell runs.

    ipykernel 7.4 brings them to the thread that last wrote to the widget, which the cell keeps busy; earlier
    releases of 7 do not. Release 6 has no such threads: there the button acts when the cell has ended, and the
    kernel's own stop button at once.
    """
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda data, default: default
