"""What ranks print, on its way from their pipes to the cell."""

import re
import tempfile
import time
from collections import deque

from .. import releases
from ..language import _
from . import context

PARTIAL = 1.0  # s after which an unfinished line is shown
REDRAWN = 10.0  # s after which a line that is drawn again and again is shown once more, where nothing moves
MOST = 1_000_000  # characters of a run, or of a call of persistent ranks, that the cell shows
LAST = 20  # lines that it shows at the end of more
BELOW = re.compile(rb"\n([^\n]*?)\x1b\[A")  # a bar drawn a line below another, and the cursor's way back


class Output:
    """Shows what the ranks of one run print; of a flood it shows the begin and the end, and where the whole is."""

    def __init__(self):
        self.size, self.shown, self.last, self.file = 0, [], deque(maxlen=LAST), None

    def show(self, rank, stream, text):
        """Show whole lines of a rank."""
        text = releases.strip_gloo_banner(text)
        lines = context.labelled(rank, text)
        self.size += len(lines)
        if self.size > MOST and self.file is None:
            self.file = tempfile.NamedTemporaryFile(
                "w", prefix="helpers-output-", suffix=".log", encoding="utf-8", delete=False
            )
            self.file.writelines(self.shown)
            say = _("… the ranks print more than {size:g} MB; all of it is in {path}")
            context.printed(None, "stderr", say.format(size=MOST / 1e6, path=self.file.name) + "\n")
        if self.file is not None:
            self.file.write(lines)
            self.last.extend(lines.splitlines(keepends=True)[-LAST:])
        elif text:
            self.shown.append(lines)
            context.printed(rank, stream, text)

    def end(self):
        """The run has ended, or the call: the next one begins anew."""
        if self.file is not None:
            self.file.close()
            context.printed(None, "stderr", "…\n" + "".join(self.last))
        self.__init__()


class OutputReader:
    """Our end of one pipe of a rank: `show` gets whole lines."""

    def __init__(self, rank, stream, show):
        self.rank, self.stream, self.show = rank, stream, show  # stream None: keep the text, show nothing
        self.text, self.pending = "", b""
        self.since = self.redrawn = None  # when the unfinished line began; when it was last shown

    def feed(self, data):
        """Take bytes as they come; b"" means the end."""
        if self.stream is None:
            self.text += data.decode(errors="replace")
            return
        text = BELOW.sub(rb"\r\1\r", (self.pending + data).replace(b"\r\n", b"\n"))
        *lines, self.pending = text.split(b"\n")
        bar = lines and (b"\r" in lines[-1] or (self.redrawn and len(lines) == 1))
        if lines:
            self.since = self.redrawn = None
        if bar and self.pending[:1] in (b"", b"\r"):  # its end, or a move to a bar below: what follows tells
            self.pending, self.since = b"\r" + lines.pop() + b"\n" + self.pending, time.monotonic()
        self._show(lines)
        if not data:
            self.finish()
        elif b"\n" in self.pending:
            return
        elif b"\r" in self.pending:
            self._redraw(_last_drawn(self.pending))
        elif self.pending and self.since is None:
            self.since = time.monotonic()

    def _redraw(self, line):
        """A progress bar has moved."""
        now, self.since = time.monotonic(), None
        self.redrawn, self.pending = self.redrawn or now, line + b"\r"
        if not context.redrawn(self.rank, line.decode(errors="replace")) and now - self.redrawn > REDRAWN:
            self.redrawn = now
            self._show([line])

    def show_unfinished(self):
        """A prompt or a row of dots without a line end is shown after a moment too."""
        if self.since is not None and time.monotonic() - self.since > PARTIAL:
            self.finish()

    def finish(self):
        self._show(list(filter(_last_drawn, self.pending.split(b"\n"))))
        self.pending, self.since = b"", None

    def _show(self, lines):
        if lines:
            text = "".join(f"{_last_drawn(line).decode(errors='replace')}\n" for line in lines)
            self.show(self.rank, self.stream, text)


def _last_drawn(line):
    """What is seen of a line whose begin was drawn again after each carriage return."""
    parts = line.replace(b"\x1b[A", b"").split(b"\r")
    return next((part for part in reversed(parts) if part.strip()), b"") if len(parts) > 1 else line
