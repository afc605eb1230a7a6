"""What `launch` does apart from a notebook: results, output, environment, memory."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from kernel import running, wait_until

import helpers
from helpers import RankError, launch



def test_return_value_that_cannot_be_sent_is_explained():
    with pytest.raises(RankError, match="return value.*cannot be sent back"):
        launch(lambda: threading.Lock(), 1)


def test_exception_that_cannot_be_pickled_is_told_in_words():
    def fails():
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(a + b)

        raise Odd("very ", "odd")

    with pytest.raises(RankError, match="very odd") as caught:
        launch(fails, 1)
    assert caught.value.rank == 0 and caught.value.exception is None


def test_sys_exit_is_a_failure_that_is_named():
    with pytest.raises(RankError, match="sys.exit"):
        launch(lambda: sys.exit(3), 1)


def test_large_results_and_much_output(capfd):
    def much():
        print("x" * 100_000)
        for i in range(2000):
            print(i)
        return torch.arange(2_000_000)

    one, two = launch(much, 2, timeout=60)
    assert torch.equal(one, torch.arange(2_000_000)) and torch.equal(one, two)
    shown = capfd.readouterr().out
    for rank in (0, 1):
        assert [f"[rank {rank}] {i}" for i in range(2000)] == [
            line for line in shown.splitlines() if line.startswith(f"[rank {rank}] ") and "x" not in line
        ]


def test_environment_and_threads_reach_the_ranks():
    seen = launch(lambda: (os.environ["PLANTED"], torch.get_num_threads()), 2, env={"PLANTED": "yes"}, threads=2)
    assert seen == [("yes", 2)] * 2 and "PLANTED" not in os.environ


def test_a_child_left_behind_is_stopped_and_does_not_keep_the_run():
    start = time.monotonic()
    (pid,) = launch(lambda: subprocess.Popen(["sleep", "60"]).pid, 1)
    assert time.monotonic() - start < 10
    assert wait_until(lambda: not running(pid), 1) is not None


def test_an_error_in_on_event_stops_the_run():
    def tell():
        helpers.emit("hello")
        time.sleep(60)

    def refuse(event):
        raise RuntimeError("planted in on_event")

    with pytest.raises(RuntimeError, match="planted in on_event"):
        launch(tell, 2, on_event=refuse)


def test_memory_a_rank():
    """At most 130 MB of memory of its own for a rank that joined a process group."""
    def proportional_set_size():
        with helpers.distributed("cpu"):
            torch.distributed.barrier()
            lines = open("/proc/self/smaps_rollup").read().splitlines()
            torch.distributed.barrier()
            return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))

    helpers.prepare_launcher()
    assert max(launch(proportional_set_size, 2)) <= 130
