"""What the kit sees of a machine and of the container it runs in."""

from math import inf

import pytest

from helpers import device, launch


def groups(folder, own, files):
    """A tree of control groups: {path: text}; returns the arguments of container_limits."""
    for path, text in files.items():
        (folder / "cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / path).write_text(text)
    (folder / "own").write_text(own)
    return folder / "cgroup", folder / "own"


@pytest.mark.parametrize(
    "own, files, limits",
    [
        ("0::/", {"cpu.max": "150000 100000\n", "memory.max": "1000\n"}, (1.5, 1000)),
        ("0::/", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, (inf, inf)),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000", "a/b/memory.max": "7"}, (2, 7)),
        ("0::/a/b", {"memory.max": "5", "a/memory.max": "9", "a/b/memory.max": "max"}, (inf, 5)),
        ("0::/../elsewhere", {"memory.max": "5"}, (inf, 5)),  # a group that cannot be seen from here
        ("", {}, (inf, inf)),
    ],
)
def test_the_tightest_limit_of_the_containers_holds(tmp_path, own, files, limits):
    assert device.container_limits(*groups(tmp_path, own, files)) == limits


def test_threads_and_ranks_follow_the_container(monkeypatch):
    monkeypatch.setattr(device, "container_limits", lambda: (1.0, 512e6))
    monkeypatch.setenv("HELPERS_DEVICE", "cpu")
    assert device.usable_cores() == 1 and device.usable_memory() == 512e6
    assert device.machine().threads == 1
    with pytest.raises(ValueError, match=r"5 ranks do not fit into the 0.5 GB.*at most 4"):
        launch(print, 5)
    assert launch(len, 1, "four") == [4]
