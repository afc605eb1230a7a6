"""What `launch` does apart from a notebook: results, output, environment, memory."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from kernel import descendants, limit, running, wait_until

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


def test_the_group_is_left_when_the_function_raises():
    def caught():
        try:
            with helpers.distributed("cpu"):
                raise ValueError("planted")
        except ValueError:
            return torch.distributed.is_initialized()

    assert launch(caught, 2) == [False, False]


def test_callables_of_every_kind():
    import functools

    import numpy

    class Adder:
        def __call__(self, a, b=1):
            return a + b

    assert launch(functools.partial(Adder(), b=5), numpy.int64(2), 1) == [6, 6]
    assert launch(len, 1, "four") == [4]


def test_modules_of_an_unusual_kind_can_be_used():
    cudnn = torch.backends.cudnn  # an object of a class of its own, which cloudpickle alone refuses

    def typical():
        cudnn.benchmark = True
        return cudnn.benchmark

    typical.__module__ = "__main__"
    assert launch(typical, 1) == [True]


def test_many_launches_leave_nothing_behind():
    """No descriptor, thread or process more after 30 launches, a third of them failing."""

    def sometimes(fail):
        if fail and os.environ["RANK"] == "1":
            raise ValueError("planted")

    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(descendants(os.getpid()))

    launch(sometimes, 2, False)
    before = held()
    for i in range(30):
        try:
            launch(sometimes, 2, i % 3 == 0)
        except RankError as error:
            assert error.rank == 1
    assert held() == before


def test_launches_from_several_threads_at_once(tmp_path):
    """They may need each other, so none may wait for another to end."""
    from concurrent.futures import ThreadPoolExecutor

    def meets(n):
        open(f"{tmp_path}/{n}", "w").close()
        while len(os.listdir(tmp_path)) < 3:
            time.sleep(0.005)
        return n

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(launch, meets, 2, n, timeout=30) for n in range(3)]
        assert [run.result() for run in runs] == [[0, 0], [1, 1], [2, 2]]


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
    assert wait_until(lambda: not running(pid), limit(1)) is not None


def test_loader_workers_leave_no_folder_behind(tmp_path):
    def load():
        return len(list(torch.utils.data.DataLoader(torch.arange(8.0), num_workers=2)))

    assert launch(load, 2, env={"TMPDIR": str(tmp_path)}) == [8, 8]
    assert list(tmp_path.iterdir()) == []


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
