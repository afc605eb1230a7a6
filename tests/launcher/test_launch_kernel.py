"""The promises of `launch`, each kept from a real kernel with functions defined in cells."""

import os
import signal

import pytest
from kernel import descendants, kernel, running, wait_until
from places import with_patience

# Whatever the notebook has done before: all that makes forking unsafe.
UNSAFE = """
import os, threading, time
import torch
torch.set_num_threads(2)
from torch.utils.data import DataLoader
def trained():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2))
    net(torch.randn(32, 3, 32, 32)).sum().backward()
    list(DataLoader(torch.arange(64.), num_workers=1))
trained(); trained()
lock = threading.Lock()
threading.Thread(target=lambda: (lock.acquire(), time.sleep(6000)), daemon=True).start()
"""
SET_UP = """
import os, sys, time, signal, threading
import torch, torch.distributed as dist
import helpers
from helpers import launch
helpers.prepare_launcher()
offset = 10
def summed(world):
    t = torch.tensor([float(world.rank + 1)])
    dist.all_reduce(t)
    return t.item()
def healthy():
    with helpers.distributed() as world:
        return summed(world) + offset
def meet(bad=None, do=None):
    with helpers.distributed() as world:
        if world.rank == bad: do()
        summed(world)
"""
HEALTHY = "launch(healthy, 2)"
PROMPT = 200  # s; a rank that is waited for would take ten minutes, and a busy machine is the normal case


@pytest.fixture(scope="module")
def notebook():
    """A kernel for all tests; the last one takes it."""
    with kernel() as k:
        k.value(UNSAFE)
        k.value(SET_UP)
        yield k


def still_works(notebook):
    assert notebook.value(HEALTHY) == "[13.0, 13.0]"


def leftovers(notebook):
    """Descendants of the kernel other than the fork server."""
    return [pid for pid in descendants(notebook.pid) if running(pid)][1:]


def test_returns_values_in_rank_order_with_closures(notebook):
    still_works(notebook)
    assert notebook.value("launch(lambda a, b=0: (int(os.environ['RANK']), a, b), 3, 'x', b=5)") == (
        "[(0, 'x', 5), (1, 'x', 5), (2, 'x', 5)]"
    )


def test_class_from_a_cell_comes_back_as_itself(notebook):
    notebook.value(
        "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n"
        "def make(): return Point(int(os.environ['RANK']))"
    )
    assert notebook.value("[isinstance(p, Point) and p.x for p in launch(make, 2)]") == "[0, 1]"


def test_output_streams_while_ranks_run(notebook, tmp_path):
    """They go on once all that they have printed so far is seen."""
    early = [f"[rank {rank}] {text} {rank}\n" for rank in (0, 1) for text in ("early", "from C")]
    notebook.start_cell(
        "def talk():\n"
        "    rank = int(os.environ['RANK'])\n"
        "    print('early', rank)\n"
        "    os.system(f'echo from C {rank}')\n"
        f"    while not os.path.exists({str(tmp_path / 'seen')!r}): time.sleep(0.01)\n"
        "    print('late', rank); print('oops', rank, file=sys.stderr)\n"
        f"launch(talk, 2, timeout={PROMPT})"
    )
    out = notebook.finish_cell(
        heard=lambda out: all(line in out.stdout for line in early) and (tmp_path / "seen").touch()
    )
    assert not out.error, out.message
    for rank in (0, 1):
        assert f"[rank {rank}] late {rank}\n" in out.stdout
        assert f"[rank {rank}] oops {rank}\n" in out.stderr


def test_figures_and_tables_are_shown_below_the_number_of_their_rank(notebook):
    out = notebook.run(
        "def draw():\n"
        "    import matplotlib.pyplot as plt\n"
        "    from IPython.display import display\n"
        "    plt.plot([1, 2]); plt.show(); display({'loss': 1.0})\n"
        f"launch(draw, 1, timeout={PROMPT})"
    )
    assert "[rank 0]" in out.stdout and "<Figure size" in out.displayed and "{'loss': 1.0}" in out.displayed


# -- the fault matrix ------------------------------------------------------------------------------

LONG = pytest.mark.long


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=LONG)])
def test_exception_names_the_failing_rank_while_the_other_waits(notebook, rank):
    out = notebook.run(f"def broken(): raise ZeroDivisionError('planted')\nlaunch(meet, 2, {rank}, broken)")
    assert out.error == "RankError" and out.seconds < PROMPT
    assert out.message.startswith(f"rank {rank} failed; the other ranks were stopped")
    assert "ZeroDivisionError: planted" in out.message
    assert "def broken(): raise" in out.message, "the cell's source line is missing"
    assert leftovers(notebook) == []
    still_works(notebook)


@pytest.mark.parametrize(
    "how, rank, words",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, "rank 1 was killed by signal SIGKILL"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", 0, "rank 0 was killed by signal SIGKILL", marks=LONG),
        pytest.param("os._exit(7)", 1, "rank 1 left with exit code 7", marks=LONG),
    ],
)
def test_rank_that_ends_without_an_answer_is_named(notebook, how, rank, words):
    out = notebook.run(f"launch(meet, 2, {rank}, lambda: {how})")
    assert out.error == "RankError" and out.seconds < PROMPT
    assert words in out.message
    still_works(notebook)


def test_rank_that_returns_early_is_told_apart(notebook):
    out = notebook.run(
        "def early():\n"
        "    with helpers.distributed() as world:\n"
        "        if world.rank == 1: return\n"
        "        summed(world)\n"
        "launch(early, 2)"
    )
    assert out.error == "RankError" and out.message.startswith("rank 0 failed")
    assert "rank 1 had already returned" in out.message


def test_timeout_shows_where_each_rank_stood(notebook):
    nap = "def nap():\n    time.sleep(600)  # rank 0 sleeps here\nlaunch(meet, 2, 0, nap, timeout={})"
    seen = lambda out: "# rank 0 sleeps here" in out.message and "dist.all_reduce(t)" in out.message  # noqa: E731
    out = with_patience(lambda seconds: notebook.run(nap.format(seconds)), seen)
    assert out.error == "RankTimeout" and out.seconds < PROMPT
    assert "time.sleep(600)  # rank 0 sleeps here" in out.message
    assert "dist.all_reduce(t)" in out.message.split("rank 1:")[1]
    assert "launcher" not in out.message
    assert leftovers(notebook) == []
    still_works(notebook)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=LONG)])
def test_interrupt_in_a_collective(notebook, workers, tmp_path):
    notebook.start_cell(
        "from torch.utils.data import DataLoader\n"
        "def stuck():\n"
        f"    if {workers}: it = iter(DataLoader(list(range(100)), num_workers={workers})); next(it)\n"
        "    if os.environ['RANK'] == '0':\n"
        "        from places import announce\n"
        f"        announce('all_reduce', {str(tmp_path / '0')!r})\n"
        f"    meet(1, lambda: (open({str(tmp_path / '1')!r}, 'w').close(), time.sleep(600)))\n"
        "launch(stuck, 2)"
    )
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 300) is not None
    notebook.interrupt()
    out = notebook.finish_cell(PROMPT)
    assert out.error == "KeyboardInterrupt"
    assert "rank 0:" in out.displayed and "time.sleep(600)" in out.displayed
    assert out.traceback.startswith("Stopped: all 2 ranks were stopped") and "\n" not in out.traceback
    assert wait_until(lambda: leftovers(notebook) == [], PROMPT) is not None
    still_works(notebook)


def test_works_after_everything_that_makes_forking_unsafe(notebook):
    notebook.value(
        "def train_there():\n"
        "    trained()\n"
        "    with helpers.distributed() as world:\n"
        "        return summed(world), torch.get_num_threads()\n"
    )
    assert notebook.value("launch(train_there, 2, timeout=300, threads=2)") == "[(3.0, 2), (3.0, 2)]"


def test_events_arrive_while_the_run_goes_on(notebook):
    notebook.value(
        "seen = []\n"
        "def tell():\n"
        "    for i in range(3): helpers.emit('step', step=i)\n"
        "launch(tell, 2, on_event=seen.append)"
    )
    assert notebook.value("sorted((e['rank'], e['step']) for e in seen if e['event'] == 'step')") == (
        "[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]"
    )


def test_a_lost_fork_server_is_an_error_and_then_replaced(notebook):
    notebook.value("from helpers.launcher import client; lost = client.server().process; lost.kill(); lost.wait()")
    notebook.value("helpers.prepare_launcher()")
    still_works(notebook)


@pytest.mark.long
def test_spawn_speaks_the_same_protocol():
    with kernel(HELPERS_START_METHOD="spawn") as k:
        k.value(SET_UP)
        out = k.run(HEALTHY)
        assert out.result == "[13.0, 13.0]", out.traceback
        out = k.run("def fail(): raise ValueError('planted')\nlaunch(fail, 2)")
        assert out.error == "RankError" and "planted" in out.message


# -- the kernel's end --------------------------------------------------------------------------------


@LONG
def test_loader_workers_that_hold_our_sockets_die_with_the_kernel():
    with kernel() as k:
        k.value(UNSAFE)
        k.value(SET_UP)
        k.start_cell(
            "loader = lambda: iter(DataLoader(list(range(100)), num_workers=1))\n"
            "keep = loader(); next(keep)\n"  # its worker holds copies of our sockets
            "def stuck():\n"
            "    it = loader(); next(it)\n"
            "    meet(1, lambda: time.sleep(600))\n"
            "launch(stuck, 2)"
        )
        die_with(k, 3 + 3)


def test_ranks_die_with_the_kernel(notebook):  # the last test, since it takes the kernel of all
    notebook.start_cell("launch(meet, 2, 1, lambda: time.sleep(600))")
    die_with(notebook, 3)


def die_with(k, family):
    """The kernel is killed once its `family` is complete: the fork server and the ranks."""
    assert wait_until(lambda: len(descendants(k.pid)) >= family, 300) is not None
    family = descendants(k.pid)
    os.kill(k.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(running, family)), PROMPT) is not None
