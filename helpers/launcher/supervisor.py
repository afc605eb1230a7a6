"""Watches one run from the notebook's side.

It streams what the ranks print, collects their answers, finds out which rank failed first,
and never leaves before every rank has ended.
"""

import os
import pickle
import re
import selectors
import signal
import socket
import time
from contextlib import suppress
from linecache import getline
from multiprocessing.connection import Connection

from .. import releases
from . import context, errors, forkserver, shortage

SETTLE = 0.05  # s to wait after a failure for one that happened earlier but is reported later
GRACE = 0.2  # s between asking a rank to stop and killing it
LOST = 3.0  # s at most for the notice of a rank that has ended, once another has found its connection closed
STACKS = 3.0  # s for the ranks to write their stacks, at most; milliseconds unless the machine is busy
OUTERMOST = re.compile(r"( in <module>|^  \.\.\.)\s*\Z", re.MULTILINE)  # the last line of a whole stack
MOST_FRAMES = 15  # of a stack, the innermost
TICK = 0.1  # s between looks at whether somebody asked to stop
PARTIAL = 1.0  # s after which an unfinished line is shown


class Supervisor:
    """One run of `nprocs` ranks; use it as a context manager, which stops whatever still runs."""

    def __init__(self, server, nprocs, file, on_event=None):
        self.nprocs, self.on_event = nprocs, on_event
        self.pids, self.answers, self.exits, self.failures, self.stacks = {}, {}, {}, [], {}
        self.channels, self.readers = {}, {}
        self.stopping, self.line = False, None
        self.selector = selectors.DefaultSelector()
        try:
            self.line = server.open_run()
            self._hand_over(file)
        except BaseException as error:  # the stop button too: `with` cannot clean up after __init__
            self.close()
            if isinstance(error, (OSError, errors.Shortage)):
                raise errors.LauncherError(f"the run could not be started: {shortage.explained(error)}") from None
            raise

    def _hand_over(self, file):
        """Give the server the plan and the far ends of all pipes; watch the near ends."""
        shortage.check_ports(self.nprocs)
        raw = socket.socket(fileno=os.dup(self.line.fileno()))
        # Listening before anybody connects: no port is ever picked, released and hoped for.
        with raw, socket.create_server(("127.0.0.1", 0), backlog=max(64, self.nprocs)) as store:
            self.line.send({"nprocs": self.nprocs, "port": store.getsockname()[1]})
            socket.send_fds(raw, [b"f"], [file.fileno(), store.fileno()])
            for rank in range(self.nprocs):
                theirs = self._pipes(rank)
                try:
                    socket.send_fds(raw, [b"f"], [theirs[name] for name in forkserver.FDS_OF_RANK])
                finally:
                    for fd in theirs.values():
                        os.close(fd)
        self.selector.register(self.line, selectors.EVENT_READ, (self._server_says, None))

    def _pipes(self, rank):
        theirs = {}
        for name, stream in (("out", "stdout"), ("err", "stderr"), ("stacks", None)):
            ours, theirs[name] = os.pipe()
            os.set_blocking(ours, False)
            self.readers[ours] = OutputReader(rank, stream)
            self.selector.register(ours, selectors.EVENT_READ, (self._read_pipe, rank))
        ours, far = socket.socketpair()
        theirs["channel"] = far.detach()
        self.channels[rank] = Connection(ours.detach())
        self.selector.register(self.channels[rank], selectors.EVENT_READ, (self._rank_says, rank))
        return theirs

    # -- what can happen ------------------------------------------------------------------

    def pump(self, timeout):
        """Handle what has happened; wait up to `timeout` seconds for something to happen."""
        for key, _ in self.selector.select(timeout):
            if key.fileobj in self.selector.get_map():  # an exit handled just before may have closed it
                handle, rank = key.data
                handle(key.fileobj, rank)
        for reader in self.readers.values():
            reader.show_unfinished()
        if progress := context.progress():
            progress.tick()

    def _read_pipe(self, fd, _):
        data = os.read(fd, 1 << 16)
        self.readers[fd].feed(data)
        if not data:
            self.selector.unregister(fd)

    def _rank_says(self, channel, rank):
        try:
            kind, *rest = channel.recv()
        except (EOFError, OSError):
            self.selector.unregister(channel)
            return
        self._take(rank, kind, rest)

    def _take(self, rank, kind, rest):
        """Take one message of a rank."""
        if kind == "event":
            if self.on_event is not None:
                self.on_event(rest[0])
        elif kind == "result":
            self.answers[rank] = rest[0]
            if len(self.answers) == self.nprocs:  # rank 0, which serves the store, can go
                with suppress(OSError):
                    self.channels[0].send("all done")
        elif not self.stopping:
            text, pickled, when = rest
            self.failures.append(errors.Failure(rank, when, text, loaded(pickled)))

    def _server_says(self, line, _):
        try:
            message = line.recv()
        except (EOFError, OSError):
            raise errors.LauncherError("the fork server was lost; all ranks of the run were stopped") from None
        if message[0] == "started":
            self.pids = message[1]
            return
        if message[0] == "refused":
            raise errors.LauncherError(f"the run could not be started: {message[1]}")
        _, rank, code = message
        self.exits[rank] = code
        self._drain(rank)
        if rank not in self.answers and not self.stopping and all(f.rank != rank for f in self.failures):
            self.failures.append(errors.Failure(rank, time.monotonic(), exitcode=code))

    def _drain(self, rank):
        """Read what an ended rank left in its pipes; a child it leaves behind may keep them open."""
        watched, channel = self.selector.get_map(), self.channels[rank]
        while channel in watched and channel.poll():
            self._rank_says(channel, rank)
        for fd, reader in self.readers.items():
            while reader.rank == rank and fd in watched:
                try:
                    self._read_pipe(fd, rank)
                except BlockingIOError:
                    break

    # -- the course of a run --------------------------------------------------------------

    def run(self, timeout=None):
        """The ranks' pickled return values in rank order. Raises RankError or RankTimeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while len(self.exits) < self.nprocs and not self.failures:
            context.raise_if_stopped()
            left = TICK if end is None else min(TICK, end - time.monotonic())
            if left <= 0:
                waiting = sorted(set(range(self.nprocs)) - set(self.answers))
                self.ask_for_stacks()
                self.stop()
                raise errors.timeout_error(timeout, self.stacks, waiting, self.nprocs)
            self.pump(left)
        if self.failures:
            raise self._failed()
        return [self.answers[rank] for rank in range(self.nprocs)]

    def _failed(self):
        """The error of the run, once the failure that caused it is known and all ranks have ended."""
        self._pump_until(self._all_reported, SETTLE)
        if errors.first_failure(self.failures).secondary:
            self._pump_until(lambda: self._all_reported() or not errors.first_failure(self.failures).secondary, LOST)
        finished = set(self.answers)
        killed = (errors.first_failure(self.failures).exitcode or 0) < 0
        self.stop(0 if killed else GRACE)  # those who have lost a rank have nothing to tell
        return errors.rank_error(self.failures, finished, self.nprocs)

    def _pump_until(self, done, seconds):
        end = time.monotonic() + seconds
        while not done() and (left := end - time.monotonic()) > 0:
            self.pump(left)

    def stop(self, grace=GRACE):
        """End every rank: ask, then kill after `grace` seconds; returns when all have ended."""
        self.stopping = True
        if grace:
            self._signal(signal.SIGINT)
            self._pump_until(self._ended, grace)
        if not self._ended():
            self._signal(signal.SIGKILL)
            self._pump_until(self._ended, 5)

    def _all_reported(self):
        """Whether each rank has answered, failed or ended."""
        return len({failure.rank for failure in self.failures}.union(self.answers, self.exits)) == self.nprocs

    def _ended(self):
        return len(self.exits) == self.nprocs

    def _signal(self, signum):
        with suppress(OSError):  # no server, no ranks
            self.line.send(("signal", int(signum), set(range(self.nprocs)) - set(self.exits)))

    def ask_for_stacks(self):
        """Collect each rank's stack trace, as text, in `self.stacks`."""
        alive = set(range(self.nprocs)) - set(self.exits)
        readers = {r.rank: r for r in self.readers.values() if r.stream is None and r.rank in alive}
        for reader in readers.values():
            reader.text = ""
        self._signal(signal.SIGUSR1)
        self._pump_until(
            lambda: all(OUTERMOST.search(r.text) for r in readers.values() if r.rank not in self.exits), STACKS
        )
        self.stacks = {rank: readable_stack(reader.text) for rank, reader in readers.items()}

    def close(self):
        """Drop the run: the server kills whatever is left of it."""
        if self.line is not None:
            self.line.close()
        for channel in self.channels.values():
            channel.close()
        for fd, reader in self.readers.items():
            reader.finish()
            os.close(fd)
        self.selector.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def loaded(pickled):
    """The rank's exception, or None if this process cannot load it; its text is there all the same."""
    try:
        return pickle.loads(pickled) if pickled else None
    except Exception:  # loading runs the exception's own code
        return None


class OutputReader:
    """Our end of one pipe of a rank: shows whole lines with the rank's number before them."""

    def __init__(self, rank, stream):
        self.rank, self.stream = rank, stream  # stream None: keep the text, show nothing
        self.text, self.since = "", None
        self.pending = b""

    def feed(self, data):
        """Take bytes as they come; b"" means the end."""
        if self.stream is None:
            self.text += data.decode(errors="replace")
            return
        *lines, self.pending = (self.pending + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self.since = time.monotonic() if self.pending else None
        self._show(lines)
        if not data:
            self.finish()

    def show_unfinished(self):
        """A prompt or a row of dots without a line end is shown after a moment too."""
        if self.since is not None and time.monotonic() - self.since > PARTIAL:
            self.finish()

    def finish(self):
        if self.pending:
            self._show([self.pending])
        self.pending, self.since = b"", None

    def _show(self, lines):
        text = releases.strip_gloo_banner("".join(f"{line.decode(errors='replace')}\n" for line in lines))
        if text:
            context.printed(self.rank, self.stream, text)


def readable_stack(dump):
    """faulthandler's text, innermost call last as in a traceback, with source lines, ours left out.

    Of several threads it shows the main one, which faulthandler writes last.
    """
    main_thread = dump.rpartition("(most recent call first)")[2]
    shown = []
    for file, number, function in reversed(re.findall(r'File "(.*)", line (\d+) in (.*)', main_thread)):
        if not file.startswith(errors.OURS) and file != "<string>":
            source = getline(file, int(number)).strip()
            shown.append(f'  File "{file}", line {number}, in {function}' + (f"\n    {source}" if source else ""))
    if len(shown) > MOST_FRAMES:  # of a rank that was importing something, for example
        shown[: len(shown) - MOST_FRAMES] = [f"  … {len(shown) - MOST_FRAMES} calls further out"]
    return errors.in_cells("\n".join(shown))
