"""What `launch` does apart from a notebook: results, output, environment, memory."""

import os
import select
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from kernel import descendants, running, wait_until

import helpers
from helpers import RankError, launch
from helpers.launcher import client
from helpers.launcher.engine import ForkServerEngine
from helpers.launcher.launch import Options
from helpers.launcher.supervisor import Supervisor


class Odd(Exception):
    """Cannot be unpickled."""

    def __new__(cls, a, b):
        return super().__new__(cls, a + b)

    def __init__(self, a, b):
        super().__init__(a + b)


def fails_oddly():
    raise Odd("very ", "odd")


@pytest.mark.parametrize(
    "fn, words",
    [
        (lambda: threading.Lock(), "return value.*cannot be sent back"),
        (fails_oddly, "very odd"),
        (lambda: sys.exit(3), "sys.exit"),
    ],
)
def test_what_cannot_be_sent_back_is_a_failure_in_words(fn, words):
    with pytest.raises(RankError, match=words) as caught:
        launch(fn, 1)
    assert caught.value.rank == 0 and not isinstance(caught.value.exception, Odd)


def test_all_threads_that_wait_for_one_server_go_on(monkeypatch):
    def slow(*arguments):  # time enough for all threads to see the one byte that tells them to go on
        found = select.select(*arguments)
        time.sleep(0.3)
        return found

    monkeypatch.setattr(client, "select", SimpleNamespace(select=slow))
    server = client.Server("fork")
    try:
        threads = [threading.Thread(target=server.wait, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        server.close()


def test_the_group_is_left_when_the_function_raises():
    def caught():
        try:
            with helpers.distributed("cpu"):
                torch.distributed.barrier()  # both have come
                raise ValueError("planted")
        except ValueError:
            return torch.distributed.is_initialized()

    assert launch(caught, 2) == [False, False]


def test_process_groups_made_by_hand_follow_each_other():
    def by_hand():
        sums = []
        for _ in range(2):
            torch.distributed.init_process_group("gloo")
            torch.distributed.all_reduce(ones := torch.ones(1))
            sums.append(ones.item())
            torch.distributed.destroy_process_group()
        return sums

    assert launch(by_hand, 2) == [[2.0, 2.0]] * 2


def test_callables_of_every_kind():
    import functools

    import numpy

    class Adder:
        def __call__(self, a, b=1):
            return a + b

    def uses_a_module_that_is_an_object():  # which cloudpickle alone refuses
        cudnn.benchmark = True
        return cudnn.benchmark

    cudnn, uses_a_module_that_is_an_object.__module__ = torch.backends.cudnn, "__main__"
    assert launch(functools.partial(Adder(), b=5), numpy.int64(2), 1) == [6, 6]
    assert launch(len, 1, "four") == [4] and launch(uses_a_module_that_is_an_object, 1) == [True]


@pytest.mark.parametrize("times", [6, pytest.param(30, marks=pytest.mark.long)])
def test_many_launches_leave_nothing_behind(times):
    """No descriptor, thread or process more after launches of which a third fail."""

    def sometimes(fail):
        if fail and os.environ["RANK"] == "1":
            raise ValueError("planted")

    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(descendants(os.getpid()))

    def left():  # fewer is no loss: what tests before this one held may go meanwhile
        return [now - then for now, then in zip(held(), before, strict=True) if now > then]

    launch(sometimes, 2, False)
    before = held()
    for i in range(times):
        try:
            launch(sometimes, 2, i % 3 == 0)
        except RankError as error:
            assert error.rank == 1
    assert wait_until(lambda: not left(), 300) is not None, (before, held())


def test_launches_from_several_threads_at_once(tmp_path):
    """They may need each other, so none may wait for another to end."""
    from concurrent.futures import ThreadPoolExecutor

    def meets(n):
        open(f"{tmp_path}/{n}", "w").close()
        while len(os.listdir(tmp_path)) < 3:
            time.sleep(0.005)
        return n

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(launch, meets, 2, n, timeout=300) for n in range(3)]
        assert [run.result() for run in runs] == [[0, 0], [1, 1], [2, 2]]


def test_large_results_and_much_output(capfd):
    def much():
        print("x" * 100_000)
        for i in range(2000):
            print(i)
        return torch.arange(2_000_000)

    one, two = launch(much, 2, timeout=300)
    assert torch.equal(one, torch.arange(2_000_000)) and torch.equal(one, two)
    shown = capfd.readouterr().out
    for rank in (0, 1):
        assert [f"[rank {rank}] {i}" for i in range(2000)] == [
            line for line in shown.splitlines() if line.startswith(f"[rank {rank}] ") and "x" not in line
        ]


def test_gloo_greets_nobody_unless_a_rank_is_missing(capfd):
    def prints():
        with helpers.distributed("cpu"):  # releases such as 2.10 say the first line by themselves
            for there in (1, 0):
                said = f"Rank 0 is connected to {there} peer ranks. Expected number of connected peer ranks is : 1"
                os.write(1, f"[Gloo] {said}\nmine\n".encode())

    launch(prints, 2, timeout=300)
    shown = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        mine = [line for line in shown if line.startswith(f"[rank {rank}]")]
        assert len(mine) == 3 and [line.endswith("mine") for line in mine] == [True, False, True]


def test_a_child_left_behind_is_stopped_and_does_not_keep_the_run():
    (pid,) = launch(lambda: subprocess.Popen(["sleep", "6000"]).pid, 1, timeout=300)
    assert wait_until(lambda: not running(pid), 300) is not None


def test_loader_workers_leave_no_folder_behind(tmp_path):
    def load():
        return len(list(torch.utils.data.DataLoader(torch.arange(8.0), num_workers=2)))

    assert launch(load, 2, env={"TMPDIR": str(tmp_path)}) == [8, 8]
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_on_event_stops_the_run():
    def tell():
        helpers.emit("hello")
        time.sleep(600)

    def refuse(event):
        raise RuntimeError("planted in on_event")

    with pytest.raises(RuntimeError, match="planted in on_event"):
        launch(tell, 2, on_event=refuse)


def test_memory_a_rank():
    """At most 40 MB of memory of its own for a rank that joined a process group; the rest is the server's."""

    def own():
        with helpers.distributed("cpu"):
            torch.distributed.barrier()
            lines = open("/proc/self/smaps_rollup").read().splitlines()
            torch.distributed.barrier()
            return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Private_Dirty:"))

    helpers.prepare_launcher()
    assert max(launch(own, 2)) <= 40


def faults():
    """Page faults of five steps that allocate and free 32 MB."""
    import resource

    step = lambda: [b"x" * 2**22 for _ in range(8)]  # noqa: E731
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="of glibc")
def test_ranks_follow_the_variables_of_malloc_although_they_are_forks():
    keep = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
    (kept,), (usual,) = launch(faults, 1, env=keep), launch(faults, 1)
    assert kept < usual / 4


def test_the_server_is_one_process_and_imports_the_rest_while_a_run_goes_on():
    """A run that does not end must not keep `prepare_launcher` waiting."""
    server = client.Server("fork")
    server.prepare = lambda: None  # which the tests' `open_run` calls
    try:
        with (
            closing(Options(1).packed(time.sleep, (600,), {})) as message,
            Supervisor(ForkServerEngine(server), 1, message) as run,
        ):
            del server.prepare
            while not run.pids:
                run.pump(1)
            server.prepare()
            assert descendants(server.process.pid) == set(run.pids.values())
            run.stop(0)
    finally:
        server.close()
    assert launch(lambda: "torch._dynamo" in sys.modules, 1) == [True]
