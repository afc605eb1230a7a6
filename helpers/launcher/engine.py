"""The default engine (see `protocol`): ranks forked by a server of this machine."""

import os
import selectors
import socket
from multiprocessing.connection import Connection

from . import shared_message, shortage

FDS_OF_RANK = ("out", "err", "channel", "stacks")
FDS_OF_RUN = ("payload", "store")
READY, PREPARED = b"+", b"!"  # what the server says: it serves; all is imported
RUN, PREPARE = b"R", b"P"  # what the notebook asks for: take a run; import all now


class ForkServerEngine:
    """`plan` holds what `rank.main` takes besides; `store` is the socket at which rank 0 serves the store."""

    def __init__(self, server, plan=None, store=None):
        self.server, self.plan, self.store = server, plan or {}, store
        self.line, self.pipes, self.channels = None, {}, {}
        self.selector = selectors.DefaultSelector()

    def start(self, nprocs, message):
        """Give the server the plan and the far ends of all pipes; watch the near ends."""
        self.line = self.server.open_run()
        shortage.check_ports(nprocs)
        raw = socket.socket(fileno=os.dup(self.line.fileno()))
        # Listening before anybody connects: no port is ever picked, released and hoped for.
        with raw, self.store or socket.create_server(("127.0.0.1", 0), backlog=max(64, nprocs)) as store:
            plan = {
                "nprocs": nprocs,
                "first": 0,
                "world": nprocs,
                "address": "127.0.0.1",
                "port": store.getsockname()[1],
            }
            self.line.send({**plan, "surroundings": {}, "payload": message.head, **self.plan})
            socket.send_fds(raw, [b"f"], [message.file.fileno(), store.fileno()])
            for rank in range(nprocs):
                theirs = self._pipes(rank)
                try:
                    socket.send_fds(raw, [b"f"], [theirs[name] for name in FDS_OF_RANK])
                finally:
                    for fd in theirs.values():
                        os.close(fd)
        self.selector.register(self.line, selectors.EVENT_READ, (self._server_says, None))

    def _pipes(self, rank):
        theirs = {}
        for name, stream in (("out", "stdout"), ("err", "stderr"), ("stacks", "stacks")):
            ours, theirs[name] = os.pipe()
            os.set_blocking(ours, False)
            self.pipes[ours] = rank, stream
            self.selector.register(ours, selectors.EVENT_READ, (self._read_pipe, rank))
        ours, far = socket.socketpair()
        theirs["channel"] = far.detach()
        self.channels[rank] = Connection(ours.detach())
        self.selector.register(self.channels[rank], selectors.EVENT_READ, (self._rank_says, rank))
        return theirs

    def events(self, timeout):
        for key, _ in self.selector.select(timeout):
            if key.fileobj in self.selector.get_map():  # an exit handled just before may have closed it
                handle, rank = key.data
                yield from handle(key.fileobj, rank)

    def _read_pipe(self, fd, _):
        data = os.read(fd, 1 << 16)
        if not data:
            self.selector.unregister(fd)
        yield "output", *self.pipes[fd], data

    def _rank_says(self, channel, rank):
        try:
            kind, *rest = channel.recv()
        except (EOFError, OSError):
            self.selector.unregister(channel)
            return
        if kind == "answer":
            rest[-1] = shared_message.receive(channel, rest[-1], copy=True)
        if kind == "display":
            yield from self._read_pipes(rank)  # what it printed before
        yield kind, rank, *rest

    def _server_says(self, line, _):
        try:
            kind, *rest = line.recv()
        except (EOFError, OSError):
            yield "refused", ""
            return
        if kind == "exit":
            yield from self.drain(rest[0])
            rest.append("")
        yield kind, *rest

    def drain(self, rank):
        """Yield what an ended rank left in its pipes; a child it leaves behind may keep them open."""
        watched, channel = self.selector.get_map(), self.channels[rank]
        while channel in watched and channel.poll():
            yield from self._rank_says(channel, rank)
        yield from self._read_pipes(rank)

    def _read_pipes(self, rank):
        watched = self.selector.get_map()
        for fd, (owner, _) in self.pipes.items():
            while owner == rank and fd in watched:
                try:
                    yield from self._read_pipe(fd, rank)
                except BlockingIOError:
                    break

    def signal(self, number, ranks):
        self.line.send(("signal", int(number), set(ranks)))

    def tell(self, rank, *message):
        self.channels[rank].send(message)

    def close(self):
        """Drop the run: the server kills whatever is left of it."""
        if self.line is not None:
            self.line.close()
        for channel in self.channels.values():
            channel.close()
        for fd in self.pipes:
            os.close(fd)
        self.selector.close()
