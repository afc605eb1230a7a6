"""What the system gives no more of is named, with its limit and what to do."""

import errno

import pytest

from helpers import launch
from helpers.launcher import shortage
from helpers.launcher.errors import LauncherError, RankError


@pytest.mark.parametrize(
    "error, words",
    [
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1_2_0>"), "/dev/shm.*num_workers=0"),
        (RuntimeError("can't start new thread"), "processes.*fewer ranks"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes.*fewer ranks"),
    ],
)
def test_shortages_are_named_with_what_to_do(error, words):
    def short():
        raise error

    with pytest.raises(RankError, match=f"rank 0 failed: .*{words}"):
        launch(short, 1)


def test_no_free_ports_are_found_before_ranks_start(monkeypatch):
    def none(*_):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(shortage.socket, "create_server", none)
    with pytest.raises(LauncherError, match="no 6 free ports for 2 ranks.*ip_local_port_range"):
        launch(int, 2)


def test_other_errors_stay_as_they_are():
    for error in (
        ValueError("no"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EADDRINUSE, "port"),
    ):
        assert shortage.explained(error) is error
