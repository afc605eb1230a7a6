"""`launch(…, memory=…)`: what each rank may hold, enforced by the system and not by the kit."""

import sys

import pytest
import torch

import helpers
from helpers import device, launch
from helpers.launcher import client, engine
from helpers.launcher.errors import OutOfMemory

ON_CPU = {"threads": 1, "env": {"HELPERS_DEVICE": "cpu"}, "timeout": 600}
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_DATA")


def megabytes(count):
    return torch.zeros(count * 250_000)


@pytest.mark.parametrize(
    "memory, error, words",
    [
        ("plenty", ValueError, "such as"),
        ("600", ValueError, "MB"),
        (600, ValueError, "at least 32 MB"),
        ("31 MB", ValueError, "threads"),
        (float("nan"), ValueError, "at least"),
        (True, TypeError, "None for no"),
        ([600], TypeError, "None for no"),
    ],
)
def test_a_bad_limit_is_refused_before_a_process_starts(memory, error, words, monkeypatch):
    monkeypatch.setattr(client, "server", lambda python=None: pytest.fail("a process was about to start"))
    with pytest.raises(error, match=f"memory.*{words}"):
        launch(megabytes, 1, 1, memory=memory)


@pytest.mark.parametrize("platform, kind, words", [("darwin", None, "RLIMIT_DATA"), ("linux", "npu", "not on npu")])
def test_where_nothing_enforces_it_it_is_refused(platform, kind, words, monkeypatch):
    monkeypatch.setattr(client, "server", lambda python=None: pytest.fail("a process was about to start"))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(device, "accelerator_kind", lambda: kind)
    monkeypatch.setattr(device, "_count", lambda kind: 1)
    with pytest.raises(ValueError, match=f"memory=.*{words}.*leave it out"):
        launch(megabytes, 1, 1, memory="1 GB", env={"HELPERS_DEVICE": kind or "cpu"})


@linux
def test_a_rank_with_a_limit_waits_until_its_server_has_imported_all(monkeypatch):
    """Else what a rank imports itself would count: 80 MB with DDP."""
    open_run, whole = client.Server.open_run, []

    def watched(server):
        whole.append(engine.PREPARED in server.said)
        return open_run(server)

    monkeypatch.setattr(client.Server, "open_run", watched)
    monkeypatch.setenv("KINETO_LOG_LEVEL", "98")  # needs a server of its own
    launch(megabytes, 1, 1, memory="64 MB", **ON_CPU)
    assert whole == [True]


def hold(rank, count):
    with helpers.distributed() as world:
        held = [megabytes(10) for _ in range(count if world.rank == rank else 1)]
    return len(held)


@linux
def test_who_holds_more_is_named():
    assert launch(hold, 2, 1, 10, memory="130 MB", **ON_CPU) == [1, 10]  # a rank has all of its own, besides threads
    with pytest.raises(helpers.RankOutOfMemory, match=r"(?s)^rank 1 .*130 MB.* asked for 10 MB.*in hold") as caught:
        launch(hold, 2, 1, 14, memory="130 MB", **ON_CPU)
    error = caught.value
    assert isinstance(error, helpers.RankError) and isinstance(error.exception, OutOfMemory) and error.rank == 1
    assert "can't allocate memory" in error.traceback  # torch's own words
    assert launch(hold, 2, 1, 14, **ON_CPU) == [1, 14]  # the next launch knows nothing of it


def numbers():
    return len([list(range(1000)) for _ in range(10_000)])


@linux
def test_memory_of_python_itself_counts():
    with pytest.raises(helpers.RankOutOfMemory, match="rank 0 .*64 MB"):
        launch(numbers, 1, memory="64 MB", **ON_CPU)


def other_errors():
    raise ValueError("planted")


@linux
def test_another_error_is_no_lack_of_memory():
    with pytest.raises(helpers.RankError, match="planted") as caught:
        launch(other_errors, 1, memory="64 MB", **ON_CPU)
    assert not isinstance(caught.value, MemoryError)


def leave_gaps():
    """As a sharded model does: blocks that stay lie between others that are freed; then a larger one is needed."""
    stay, gathered = zip(*[(megabytes(1), megabytes(4)) for _ in range(8)], strict=True)
    del gathered
    return len(stay), len(megabytes(24))


@linux
def test_what_is_freed_does_not_count():
    assert launch(leave_gaps, 1, memory="56 MB", **ON_CPU) == [(8, 6_000_000)]
