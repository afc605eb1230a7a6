"""The cell magic `%%ranks`: the cell runs on every rank, or on those that are named.

%%ranks 0,2
loss = model(batch).sum()     # names stay from cell to cell
loss                          # the last expression is shown, rank by rank
"""

import argparse
import linecache
import shlex
import time
from collections import deque
from html import escape

from .. import display, scope
from ..language import said
from ..progress import plain
from . import cell, handle

LIVE = 30  # lines of output that are shown as they come; more of them go into tabs
MOST = 2000  # lines of each rank that its tab holds
REDRAW = 0.25  # s
STYLE = """<style>
.helpers-ranks > input {position: absolute; opacity: 0}
.helpers-ranks > label {display: inline-block; padding: .1rem .7rem; cursor: pointer;
  border-bottom: 2px solid transparent}
.helpers-ranks > input:checked + label {border-color: var(--jp-brand-color1, #1976d2); font-weight: 600}
.helpers-ranks > input:focus-visible + label {outline: 1px solid var(--jp-brand-color1, #1976d2)}
.helpers-ranks > div {display: none; max-height: 28rem; overflow: auto}
</style>"""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"%%ranks: {message}. {self.format_usage().strip()}")


_parser = _Parser(prog="%%ranks", add_help=False, description="Run the cell on every kept rank.", allow_abbrev=False)
_parser.add_argument("ranks", nargs="?", help="numbers, such as 0,2 or 1:3 (default: all)")
_parser.add_argument("--on", help="the same")
_parser.add_argument("--timeout", type=float, help="seconds that the cell may take")


def run(line, cell):
    """What `%%ranks` does with its line and its cell."""
    try:
        _run(line, cell)
    except (ValueError, TypeError, RuntimeError) as error:
        # All that matters is in the message: the rank's own traceback, with the lines of this cell.
        text = f"{type(error).__name__}: {said(str(error))}"
        error._render_traceback_ = lambda: text.splitlines()
        raise


def _run(line, body):
    options = _parser.parse_args(shlex.split(line))
    if options.ranks and options.on:
        raise ValueError("%%ranks: name the ranks once, as in %%ranks 0,2")
    if not handle.opened:
        raise RuntimeError("%%ranks: no ranks are open; open them with ranks = helpers.ranks(2)")
    ranks = handle.opened[-1]
    numbers = chosen(options.ranks or options.on, ranks.nprocs)
    name = _registered(line, body)
    source = "\n" + body  # so that the first line below %%ranks is line 2, as in the notebook
    _check(source, name)
    output = Output(numbers)
    shown = {}
    try:
        with ranks.printing_to(output.take):
            values = ranks._call(numbers, cell.run, (source, name), {}, options.timeout, "the cell")
            shown = dict(zip(numbers, values, strict=True))
    finally:
        output.end(shown)


def chosen(text, nprocs):
    """The ranks that `text` names: "0", "0,2", "1:3". Raises ValueError."""
    if text is None:
        return list(range(nprocs))
    found = []
    for part in text.split(","):
        try:
            ends = [int(end) if end.strip() else None for end in part.split(":")]
            numbers = list(range(nprocs)[slice(*ends)]) if len(ends) > 1 else [range(nprocs)[ends[0]]]
        except (ValueError, TypeError):
            raise ValueError(f"%%ranks: {text!r} names no ranks; write 0 or 0,2 or 1:3") from None
        except IndexError:
            raise ValueError(f"%%ranks: there is no rank {part}; there are {nprocs}, 0 to {nprocs - 1}") from None
        found += [number for number in numbers if number not in found]
    if not found:
        raise ValueError(f"%%ranks: {text!r} names no ranks; there are {nprocs}, 0 to {nprocs - 1}")
    return found


def _registered(line, body):
    """A file name for the cell, whose lines tracebacks then show, here and on the ranks."""
    import IPython

    name = f"<%%ranks cell {IPython.get_ipython().execution_count}>"
    text = f"%%ranks {line}\n{body}"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name


def _check(source, name):
    """Refuse what is no Python before any rank sees it."""
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        if (error.text or "").lstrip().startswith(("%", "!")):
            raise ValueError(f"%%ranks: line {error.lineno} is no Python; magics and ! do not run on ranks") from None
        raise


class Output:
    """What the ranks of one cell print and return: as it comes while it is short, else a tab a rank."""

    def __init__(self, numbers):
        self.texts = {rank: deque(maxlen=MOST) for rank in numbers}
        self.lines, self.line, self.drawn = 0, None, 0.0
        self.tabbed = display.in_notebook() and not plain()

    def take(self, rank, stream, text):
        """Show whole lines of a rank, or of the launcher."""
        if rank is not None:
            self.texts.setdefault(rank, deque(maxlen=MOST)).extend(text.splitlines())
            self.lines += text.count("\n")
        if rank is None or not self.tabbed or self.lines <= LIVE:
            scope.write(rank, stream, text)
        elif time.monotonic() - self.drawn > REDRAW:
            self._show_last()

    def _show_last(self):
        """A line that is replaced: how much was printed, and what each rank printed last."""
        from IPython.display import display as show

        self.drawn = time.monotonic()
        last = "".join(f"[rank {rank}] {texts[-1]}\n" for rank, texts in self.texts.items() if texts)
        text = {"text/plain": f"… {self.lines} lines so far; the last of each rank:\n{last}"}
        if self.line is None:
            self.line = show(text, raw=True, display_id=True)
        else:
            self.line.update(text, raw=True)

    def end(self, shown):
        """The cell has ended; `shown` has what the last expression shows on each rank."""
        for rank, bundle in shown.items():
            if bundle is not None:
                self._show_value(rank, bundle)
        if self.line is not None or (self.tabbed and self.lines > LIVE):
            self._show_tabs()

    def _show_value(self, rank, bundle):
        if self.tabbed and "text/html" in bundle:
            from IPython.display import display as show

            show({**bundle, "text/html": f"<b>rank {rank}</b>{bundle['text/html']}"}, raw=True)
        else:
            self.take(rank, "stdout", bundle["text/plain"] + "\n")

    def _show_tabs(self):
        import IPython

        IPython.display.clear_output(wait=True)
        number = IPython.get_ipython().execution_count
        parts = [_tab(f"helpers-ranks-{number}", *item) for item in enumerate(self.texts.items())]
        text = "".join(scope.labelled(rank, "\n".join([*lines, ""])) for rank, lines in self.texts.items())
        html = f'{STYLE}<div class="helpers-ranks">{"".join(parts)}</div>'
        IPython.display.display({"text/plain": text, "text/html": html}, raw=True)


def _tab(group, place, item):
    """Switched by radio buttons alone, so that it works in saved pages; where styles are removed all are shown."""
    rank, lines = item
    ident, first = f"{group}-{rank}", " checked" if place == 0 else ""
    return (
        f"<style>#{ident}:checked ~ #{ident}-text {{display: block}}</style>"
        f'<input type="radio" name="{group}" id="{ident}"{first}><label for="{ident}">rank {rank}</label>'
        f'<div id="{ident}-text"><pre>{escape(chr(10).join(lines))}</pre></div>'
    )
