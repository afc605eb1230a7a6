"""The control channel of platforms.horovod against strangers: forged, cut, oversized, replayed and random messages."""

import os
import socket
import struct
import threading
from pathlib import Path

import pytest
from hvd_cases import lost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel import ROOT

import helpers
from platforms.horovod.core import wire

SECRET = b"s" * 32
MESSAGES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
quick = settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))


class Wiretap:
    """A socket that remembers what was sent through it."""

    def __init__(self, sock):
        self._sock, self.sent = sock, []

    def sendall(self, data):
        self.sent.append(bytes(data))
        self._sock.sendall(data)

    def __getattr__(self, name):
        return getattr(self._sock, name)


def pair(server_secret=SECRET, client_secret=SECRET):
    """(listening end, calling end, tapped socket of the calling end) of one connection."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(100)
    tap = Wiretap(theirs)
    greeted = []
    thread = threading.Thread(target=lambda: greeted.append(wire.greet(ours, server_secret)))
    thread.start()
    greeting = wire._read(tap, len(wire.GREETING) + wire.NONCE)
    nonce = os.urandom(wire.NONCE)
    tap.sendall(nonce)
    thread.join()
    caller = wire.Channel(tap, client_secret, greeting[len(wire.GREETING) :] + nonce, b"c", b"s")
    return greeted[0], caller, tap


@quick
@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_messages_arrive_as_they_were_sent(messages):
    server, client, _ = pair()
    for message in messages:
        client.send(message)
        assert server.receive() == message
        server.send(message)
        assert client.receive() == message
    client.close()
    with pytest.raises(wire.Closed):
        server.receive()
    server.close()


def listens(data, limit=wire.SMALL, key=None):
    """What the listening end makes of bytes that a stranger sends; with `key` they come after a greeting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(100)
        theirs.sendall((b"n" * wire.NONCE if key else b"") + data)
        theirs.shutdown(socket.SHUT_WR)
        listener = wire.greet(ours, SECRET)
        listener._key = key or listener._key
        return listener.receive(limit)


@quick
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused(data, greeted):
    with pytest.raises(wire.WireError):
        listens((b"n" * wire.NONCE if greeted else b"") + data)


@quick
@given(MESSAGES, st.data())
def test_a_changed_or_cut_frame_is_refused(message, data):
    server, client, tap = pair()
    client.send(message)
    server.receive()
    frame = bytearray(tap.sent[-1])
    assert listens(frame, wire.LARGE, server._key) == message
    if data.draw(st.booleans(), "cut"):
        frame = frame[: data.draw(st.integers(0, len(frame) - 1))]
    else:
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(wire.WireError):
        listens(frame, wire.LARGE, server._key)
    server.close(), client.close()


def test_a_wrong_secret_is_refused_by_both_ends():
    server, client, _ = pair(client_secret=b"t" * 32)
    client.send({"rank": 1})
    server.send({"welcome": 1})
    for end in (server, client):
        with pytest.raises(wire.WireError, match="proof"):
            end.receive()
        end.close()


def test_frames_are_neither_replayed_nor_sent_back_nor_exchanged():
    server, client, tap = pair()
    client.send("one")
    client.send("two")
    assert [server.receive(), server.receive()] == ["one", "two"]
    tap._sock.sendall(tap.sent[-1])  # the last frame once more
    with pytest.raises(wire.WireError, match="proof"):
        server.receive()
    back, front, tapped = pair()
    front.send("mine")
    back._sock.sendall(tapped.sent[-1])  # sent back to its sender
    with pytest.raises(wire.WireError, match="proof"):
        front.receive()
    late, early, tapped = pair()
    frames = []
    early._sock = type("Held", (), {"sendall": staticmethod(frames.append)})
    early.send("first"), early.send("second")
    tapped.sendall(frames[1] + frames[0])  # in another order
    with pytest.raises(wire.WireError, match="proof"):
        late.receive()


def test_a_whole_session_cannot_be_replayed():
    server, client, tap = pair()
    client.send({"rank": 1, "members": [0, 1]})
    assert server.receive()["rank"] == 1
    with pytest.raises(wire.WireError, match="proof"):
        listens(b"".join(tap.sent))


def test_no_length_is_believed_beyond_its_bound():
    for limit in (wire.SMALL, wire.LARGE):
        with pytest.raises(wire.WireError, match="announced"):
            listens(b"n" * wire.NONCE + struct.pack(">I", limit + 1), limit)  # and nothing after it
    server, client, _ = pair()
    with pytest.raises(ValueError):
        client.send("x" * (wire.LARGE + 1))
    client.send("still usable")
    assert server.receive() == "still usable"


def test_nothing_in_the_core_can_unpickle():
    for path in (ROOT / "platforms" / "horovod" / "core").glob("*.py"):
        for word in ("import pickle", "cloudpickle", "marshal", "shelve", "torch.load", "eval(", "exec("):
            assert word not in path.read_text(encoding="utf-8"), f"{path.name}: {word}"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folders = [str(tmp_path_factory.mktemp("meeting")) for _ in range(3)]
    unsafe = Path(folders[2], f"helpers-hvd-{os.getuid()}")
    unsafe.mkdir()
    unsafe.chmod(0o777)
    stories = [
        {"work": "besieged", "size": 2, "started": 3, "folder": folders[0], "silent": 150},
        {"work": "killed_while_waiting", "size": 2, "started": 1, "folder": folders[1]},
        {"work": "meets_again", "size": 2, "folder": folders[1]},
        {"work": "open_folder", "size": 2, "folder": folders[2], "env": {"HOROVOD_START_TIMEOUT": "2"}},
    ]
    stories = [{**story, "module": "hvd_cases.siege"} for story in stories]
    (told,) = helpers.launch(lost.mother, 1, stories, threads=1, timeout=900)
    return told


def test_strangers_do_not_disturb_the_job(seen):
    told = seen[0]
    assert told["codes"] == [0, 0, 0], told
    first, second, stranger = told["ranks"]
    assert stranger["modes"] == ["0o700", "0o600"], "folder and file of the meeting are private"
    assert stranger["address"] == "127.0.0.1"
    for saw in (first, second):
        assert saw["totals"] == [2.0] and not saw["canary"]
        assert saw["grown"] < 60_000, f"memory grew by {saw['grown']} kB"
        assert set(saw["doors"]) <= {"127.0.0.1", "::1"}, saw["doors"]
        assert not saw["files"], "the meeting file was left behind"
    assert second["took"] < 150, f"rank 1 needed {second['took']:.1f} s to come in"
    assert "Traceback" not in told["said"], told["said"]


def test_a_notice_that_a_dead_job_left_is_harmless(seen):
    assert seen[1]["codes"] == [-9]
    assert seen[2]["ranks"] == [{"sum": [2.0], "stale": 1}] * 2, seen[2]


def test_a_folder_that_others_can_write_is_not_used(seen):
    for saw in seen[3]["ranks"]:
        assert saw and "helpers-hvd" in saw["text"], seen[3]
