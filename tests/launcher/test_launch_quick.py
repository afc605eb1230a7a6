"""What keeps a launch short: memory that is quick to fork, and a group that is left without a wait."""

import os
import subprocess
import sys

import pytest

import helpers
from helpers import launch
from helpers.launcher import hugepages

MEMORY = """
import mmap, os, re, sys
from helpers.launcher import hugepages

def huge():
    return int(re.search(r"AnonHugePages: *(\\d+)", open("/proc/self/smaps_rollup").read())[1]) >> 10

memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
memory[:] = written = bytes(range(256)) * (16 << 12)
memory.madvise(mmap.MADV_HUGEPAGE)  # not before it is written: small pages, whatever the system prefers
before = huge()
if sys.argv[1] == "shared" and os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
hugepages.gather()
assert memory[:] == written
print(huge() - before, flush=True)
"""


def gathered(whose):
    """MB of huge pages that a process with 16 MB, its own or shared with its parent, has made of them."""
    run = subprocess.run([sys.executable, "-c", MEMORY, whose], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


needs_collapse = pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1), reason="MADV_COLLAPSE"
)


@needs_collapse
def test_own_memory_becomes_huge_pages_and_shared_memory_stays_shared():
    own, shared = gathered("own"), gathered("shared")
    if own == 0:
        pytest.skip("this system makes no huge pages")
    assert own >= 12 and shared < own / 2


@needs_collapse
def test_ranks_are_forked_from_gathered_memory():
    if gathered("own") == 0:
        pytest.skip("this system makes no huge pages")

    def huge():
        return any(
            line.startswith("AnonHugePages") and int(line.split()[1]) > 0 for line in open("/proc/self/smaps_rollup")
        )

    helpers.prepare_launcher()
    assert launch(huge, 2, timeout=60) == [True, True]


def test_without_pagemap_nothing_happens(monkeypatch):
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert hugepages.gather() is None


def test_a_group_is_left_without_its_wait_and_nothing_of_it_stays():
    def leaves():
        import threading
        import time

        import torch
        import torch.distributed as dist

        class Recorded(threading.Thread):
            def start(self):
                threads.append(self)
                super().start()

        helpers.launcher.group.threading.Thread = Recorded
        sums, held, threads = [], [], []
        for _ in range(3):
            with helpers.distributed("cpu"):
                value = torch.ones(1)
                dist.all_reduce(value)
                sums.append(value.item())
            assert not dist.is_initialized()
            threads[-1].join()
            time.sleep(0.2)  # a thread that was joined is in the system's list for a moment still
            held.append([len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")])
        return sums, len(threads), held

    for sums, threads, held in launch(leaves, 2, threads=1, timeout=60):
        assert sums == [2.0] * 3 and threads == 3
        assert held[2][0] <= held[0][0] and held[2][1] <= held[0][1] + 2, held  # one more connection to the store each


def test_a_script_that_has_left_its_group_ends():
    code = "import helpers\nwith helpers.distributed('cpu') as world: print(world.size)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "1\n"), run.stderr
