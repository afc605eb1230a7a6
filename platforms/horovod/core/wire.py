"""Control messages between ranks: JSON in frames that carry a proof of the job's secret.

A frame is 4 bytes of length, 32 bytes of HMAC-SHA256 and a JSON text. The key of a connection is
made from the job's secret and two fresh random numbers, and the proof covers the sender and the
number of the frame, so frames can be neither forged nor replayed nor reflected. Nothing that
comes from the network is unpickled, and lengths are bounded.
"""

import hmac
import json
import os
import select
import socket
import struct
import threading
import time

GREETING = b"hvd1"
NONCE = 16
PROOF = 32
SMALL, LARGE = 4096, 16 * 2**20  # limits in bytes: a message before the rank is known, after it


class WireError(ConnectionError):
    """The data is not from a rank of this job, or not complete."""


class TooLong(ValueError):
    """A message is longer than a rank accepts."""


class Closed(WireError):
    """The other end has closed the connection, or its process has ended."""


class Channel:
    """A connection to a rank: `send(message)` from any thread, `receive()` from one."""

    def __init__(self, sock, secret, nonces, ours, theirs):
        self._sock = sock
        self._file = sock.makefile("rb", buffering=2**16)
        self._key = proof(secret, b"session" + nonces)
        self._ours, self._theirs = ours, theirs
        self._sent = self._received = 0
        self._sending = threading.Lock()
        self.heard = time.monotonic()  # when the last message came

    def send(self, message):
        """Send a value that JSON can express.

        Raises:
            TooLong: the message is too long. ConnectionError: the other end is gone.
        """
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > LARGE:
            raise TooLong(f"a control message of {len(data)} bytes is longer than {LARGE} bytes")
        with self._sending:
            self._send(data)

    def _send(self, data):
        frame = struct.pack(">I", len(data)) + self._proof(self._ours, self._sent, data) + data
        self._sent += 1
        self._sock.sendall(frame)

    def offer(self, message):
        """Send a short message, unless it would have to wait: because of another sender, or of a full buffer.

        Raises:
            OSError, ValueError: the connection is closed.
        """
        if self._sending.acquire(blocking=False):
            try:
                if self._ready(select.POLLOUT):  # then a good part of the buffer is free
                    self._send(json.dumps(message).encode())
            finally:
                self._sending.release()

    def readable(self):
        """Whether there is something to receive. Raises ValueError when the connection is closed."""
        return self._ready(select.POLLIN)

    def _ready(self, event):
        poll = select.poll()
        poll.register(self._sock, event)
        return bool(poll.poll(0))

    def receive(self, limit=LARGE):
        """The next message.

        Raises:
            Closed: the other end is gone. WireError: the frame is too long or its proof is wrong.
        """
        (length,) = struct.unpack(">I", self._exactly(4))
        if length > limit:
            raise WireError(f"a frame of {length} bytes was announced, the limit is {limit}")
        claimed, data = self._exactly(PROOF), self._exactly(length)
        if not hmac.compare_digest(claimed, self._proof(self._theirs, self._received, data)):
            raise WireError("a frame without the proof of this job's secret")
        self._received += 1
        self.heard = time.monotonic()
        try:
            return json.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise WireError(f"a frame that is not JSON: {error}") from None

    def _proof(self, sender, number, data):
        return proof(self._key, sender + struct.pack(">Q", number) + data)

    def _exactly(self, count):
        try:
            data = self._file.read(count)
        except (OSError, ValueError) as error:  # ValueError: closed by this process
            raise Closed(str(error)) from None
        if data is None or len(data) < count:
            raise Closed("the connection was closed")
        return data

    def settimeout(self, seconds):
        """Give up sending and receiving after so many seconds (None: never)."""
        self._sock.settimeout(seconds)

    def close(self):
        """Close the connection; a thread that waits in `receive` gets Closed."""
        hang_up(self._sock)

    def fileno(self):
        """The number of the open connection."""
        return self._sock.fileno()

    def address(self):
        """This host's address on the interface that leads to the other end."""
        return self._sock.getsockname()[0]


def hang_up(sock):
    """Close a socket, also for the thread that waits on it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()


def proof(key, data):
    """HMAC-SHA256 (RFC 2104)."""
    return hmac.digest(key, data, "sha256")


def greet(sock, secret):
    """The listening end's Channel for a new connection; its first message proves whether it is from a rank."""
    ours = os.urandom(NONCE)
    sock.sendall(GREETING + ours)
    theirs = _read(sock, NONCE)
    return Channel(sock, secret, ours + theirs, b"s", b"c")


def connect(address, secret, timeout):
    """The calling end's Channel.

    Raises:
        OSError: nobody listens there. WireError: whoever listens is not a rank.
    """
    sock = socket.create_connection(address, timeout=timeout)
    try:
        tune(sock)
        greeting = _read(sock, len(GREETING) + NONCE)
        if not greeting.startswith(GREETING):
            raise WireError("whoever listens there is not a rank of a job")
        ours = os.urandom(NONCE)
        sock.sendall(ours)
        return Channel(sock, secret, greeting[len(GREETING) :] + ours, b"c", b"s")
    except BaseException:
        sock.close()
        raise


def tune(sock):
    """Send small messages at once, and notice within seconds when the other host has lost its power."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise Closed("the connection was closed")
        data += piece
    return data
