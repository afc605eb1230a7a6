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
import threading
import time
from contextlib import suppress
from linecache import getline
from multiprocessing.connection import Connection

from . import context, errors, forkserver, shared_message, shortage
from .output import Output, OutputReader

SETTLE = 0.05  # s to wait after a failure for one that happened earlier but is reported later
GRACE = 0.2  # s between asking a rank to stop and killing it
LOST = 3.0  # s at most for the notice of a rank that has ended, once another has found its connection closed
STACKS = 3.0  # s for the ranks to write their stacks, at most; milliseconds unless the machine is busy
OUTERMOST = re.compile(r"( in <module>|^  \.\.\.)\s*\Z", re.MULTILINE)  # the last line of a whole stack
MOST_FRAMES = 15  # of a stack, the innermost
TICK = 0.1  # s between looks at whether somebody asked to stop


class Supervisor:
    """One run of `nprocs` ranks; use it as a context manager, which stops whatever still runs.

    Attributes:
        waiting: the ranks that have not ended.
        answers: what those returned that have, for `shared_message.opened`.
        failures: those that ended in another way.
    """

    def __init__(self, server, nprocs, message, on_event=None):
        self.nprocs, self.on_event = nprocs, on_event
        self.pids, self.answers, self.exits, self.failures, self.stacks = {}, {}, {}, [], {}
        self.waiting, self.channels, self.readers = list(range(nprocs)), {}, {}
        self.stopping, self.line, self.output = False, None, Output()
        self.fate = f"all {nprocs} ranks were stopped" if nprocs > 1 else "the rank was stopped"
        self.selector = selectors.DefaultSelector()
        try:
            self.line = server.open_run()
            self._hand_over(message)
        except BaseException as error:  # the stop button too: `with` cannot clean up after __init__
            self.close()
            if isinstance(error, (OSError, errors.Shortage)):
                raise errors.LauncherError(f"the run could not be started: {shortage.explained(error)}") from None
            raise

    def _hand_over(self, message):
        """Give the server the plan and the far ends of all pipes; watch the near ends."""
        shortage.check_ports(self.nprocs)
        raw = socket.socket(fileno=os.dup(self.line.fileno()))
        # Listening before anybody connects: no port is ever picked, released and hoped for.
        with raw, socket.create_server(("127.0.0.1", 0), backlog=max(64, self.nprocs)) as store:
            plan = {"nprocs": self.nprocs, "port": store.getsockname()[1], "payload": message.head}
            self.line.send(plan)
            socket.send_fds(raw, [b"f"], [message.file.fileno(), store.fileno()])
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
            self.readers[ours] = OutputReader(rank, stream, self.output.show)
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
        if kind == "event" and self.on_event is not None:
            self.on_event(rest[0])
        if kind == "display":
            self._read_pipes(rank)  # what it printed before
            context.displayed(rank, *rest)
        if kind == "answer":
            number, how, head = rest
            self._take(rank, number, how, shared_message.receive(channel, head, copy=True))

    def _take(self, rank, number, how, received):
        """Take the answer of a rank; that to call 0, the payload, is its last."""
        if how == "value":
            self.answers[rank] = received
            if len(self.answers) == self.nprocs:  # rank 0, which serves the store, can go
                self._tell([0], "all done")
        elif not self.stopping:
            self.failures.append(failure(rank, received))

    def _tell(self, ranks, *message):
        for rank in ranks:
            with suppress(OSError):  # it has ended: the server says so in a moment
                self.channels[rank].send(message)

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
        self.waiting = [one for one in self.waiting if one != rank]
        if rank not in self.answers and not self.stopping and all(f.rank != rank for f in self.failures):
            self.failures.append(errors.Failure(rank, time.monotonic(), exitcode=code))

    def _drain(self, rank):
        """Read what an ended rank left in its pipes; a child it leaves behind may keep them open."""
        watched, channel = self.selector.get_map(), self.channels[rank]
        while channel in watched and channel.poll():
            self._rank_says(channel, rank)
        self._read_pipes(rank)

    def _read_pipes(self, rank):
        watched = self.selector.get_map()
        for fd, reader in self.readers.items():
            while reader.rank == rank and fd in watched:
                try:
                    self._read_pipe(fd, rank)
                except BlockingIOError:
                    break

    # -- the course of a run --------------------------------------------------------------

    def run(self, timeout=None):
        """The ranks' return values, to be opened, in rank order. Raises RankError, RankTimeout or KeyboardInterrupt."""
        self._wait(timeout)
        return [self.answers[rank] for rank in range(self.nprocs)]

    def _wait(self, timeout):
        """Wait for the ranks; raise what ended this otherwise, once the ranks have been dealt with."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        try:
            while self.waiting and not self._any_failed():
                context.raise_if_stopped()
                left = end - time.monotonic()
                if left <= 0:
                    waiting = self._give_up()
                    raise errors.timeout_error(timeout, self.stacks, waiting, self.nprocs, self.fate)
                self.pump(min(TICK, left))
        except KeyboardInterrupt:  # the kernel's stop button, or the panel's
            waiting = self._give_up()
            context.folded("Where each rank stood", errors.stacks_text(self.stacks, waiting))
            raise context.Stopped(self.fate) from None
        if self._any_failed():
            raise self._failed()

    def _give_up(self):
        """Collect the stacks of the ranks that are waited for, end the call, and return which these were."""
        waiting = [rank for rank in self.waiting if rank not in self.answers] or self.waiting
        try:
            self.ask_for_stacks()
        finally:
            self.end_call()
        return waiting

    def _any_failed(self):
        return bool(self.failures)

    def end_call(self):
        """Have the ranks that are waited for do so no more."""
        self.stop()

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
        self.output.end()
        self.selector.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def failure(rank, received):
    """The Failure that a rank has sent; its exception is None if this process cannot load it."""
    text, pickled, when = shared_message.opened(received)
    try:
        exception = pickle.loads(pickled) if pickled else None
    except Exception:  # loading runs the exception's own code
        exception = None
    return errors.Failure(rank, when, text, exception)


def readable_stack(dump):
    """faulthandler's text, innermost call last as in a traceback, with source lines, ours left out.

    Of several threads it shows the main one, which faulthandler writes last; another where that waits for threads.
    """
    for thread in reversed(dump.split("(most recent call first)")):
        shown = []
        for file, number, function in reversed(re.findall(r'File "(.*)", line (\d+) in (.*)', thread)):
            if not file.startswith(errors.OURS) and file not in ("<string>", threading.__file__):
                source = getline(file, int(number)).strip()
                shown.append(f'  File "{file}", line {number}, in {function}' + (f"\n    {source}" if source else ""))
        if shown:
            break
    if len(shown) > MOST_FRAMES:  # of a rank that was importing something, for example
        shown[: len(shown) - MOST_FRAMES] = [f"  … {len(shown) - MOST_FRAMES} calls further out"]
    return errors.in_cells("\n".join(shown))
