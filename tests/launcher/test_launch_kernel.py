"""The promises of `launch` and of kept ranks in a real kernel, with functions defined in cells."""

import os
import signal

import pytest
from kernel import descendants, kernel, running, wait_until

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
    """Descendants of the kernel other than the two generations of the fork server."""
    return [pid for pid in descendants(notebook.pid) if running(pid)][2:]


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


def test_output_streams_while_ranks_run(notebook):
    out = notebook.run(
        "def talk():\n"
        "    rank = int(os.environ['RANK'])\n"
        "    print('early', rank)\n"
        "    os.system(f'echo from C {rank}')\n"
        "    time.sleep(3)\n"
        "    print('late', rank); print('oops', rank, file=sys.stderr)\n"
        "launch(talk, 2)"
    )
    for rank in (0, 1):
        for text in ("early", "from C", "late"):
            assert f"[rank {rank}] {text} {rank}\n" in out.stdout
        assert f"[rank {rank}] oops {rank}\n" in out.stderr
    early = min(when for when, text in out.arrivals if "early" in text)
    late = min(when for when, text in out.arrivals if "late" in text)
    assert late - early > 0.8


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


@pytest.mark.parametrize("how, rank, words", [
    ("os.kill(os.getpid(), signal.SIGKILL)", 1, "rank 1 was killed by signal SIGKILL"),
    pytest.param("os.kill(os.getpid(), signal.SIGKILL)", 0, "rank 0 was killed by signal SIGKILL", marks=LONG),
    pytest.param("os._exit(7)", 1, "rank 1 left with exit code 7", marks=LONG),
])  # fmt: skip
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
    out = notebook.run("def nap():\n    time.sleep(600)  # rank 0 sleeps here\nlaunch(meet, 2, 0, nap, timeout=3)")
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
        f"    meet(1, lambda: (open({str(tmp_path / 'there')!r}, 'w').close(), time.sleep(600)))\n"
        "launch(stuck, 2)"
    )
    assert wait_until((tmp_path / "there").exists, 300) is not None  # rank 1 is; let rank 0 get into the collective
    wait_until(lambda: False, 0.5)
    notebook.interrupt()
    out = notebook.finish_cell(PROMPT)
    assert out.error == "KeyboardInterrupt"
    assert "rank 0:" in out.stderr and "time.sleep(600)" in out.stderr
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
    notebook.value("from helpers.launcher import client; os.kill(client.server().process.pid, 9); time.sleep(.3)")
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


# -- kept ranks: the cell magic, the debugger, the stop button ---------------------------------------


@pytest.fixture(scope="module")
def kept(notebook):
    """The same kernel with two ranks that stay."""
    assert "no ranks are open" in notebook.run("%%ranks\n1").message
    notebook.value("ranks = helpers.ranks(2, timeout=600)")
    return notebook


def answered(notebook, code, *lines):
    """The outcome of a cell in which the reader types these lines at the prompts."""
    notebook.message_id, notebook.started = notebook.client.execute(code, allow_stdin=True), 0.0
    for line in lines:
        assert "(Pdb)" in notebook.client.get_stdin_msg(timeout=PROMPT)["content"]["prompt"]
        notebook.client.input(line)
    return notebook.finish_cell()


def kept_still_work(notebook):
    out = notebook.run("%%ranks\ndist.all_reduce(one := torch.ones(1))\none.item()")
    assert out.stdout == "[rank 0] 2.0\n[rank 1] 2.0\n", out.traceback


def test_cells_share_names_with_each_other_and_with_functions(kept):
    out = kept.run("%%ranks\nx = torch.full((2,), float(rank))\nprint('made', rank)\nx")
    assert sorted(out.stdout.splitlines()) == [
        "[rank 0] made 0", "[rank 0] tensor([0., 0.])", "[rank 1] made 1", "[rank 1] tensor([1., 1.])",
    ]  # fmt: skip
    assert kept.run("%%ranks 1\ndef twice(): return 2 * x\nx += 1;").stdout == ""
    assert kept.run("%%ranks --on 1\ntwice()").stdout == "[rank 1] tensor([4., 4.])\n"
    assert kept.value("ranks(lambda: ranks.state.x.sum().item())") == "[0.0, 4.0]"
    kept.value("class Point:\n    pass\ndef make():\n    ranks.state.point = Point()")
    assert kept.value("ranks(make); [type(p) is Point for p in ranks.state.point]") == "[True, True]"


def test_long_output_gets_a_tab_a_rank(kept):
    kept.start_cell("%%ranks\nfor k in range(100): print('<line>', k)\n'the end'")
    message, bundle = kept.message_id, {}
    while (got := kept.client.get_iopub_msg(timeout=PROMPT))["content"].get("execution_state") != "idle" or (
        got["parent_header"].get("msg_id") != message
    ):
        if got["msg_type"] == "display_data":
            bundle = got["content"]["data"]
    html = bundle["text/html"]
    assert html.count('type="radio"') == 2 and html.count("&lt;line&gt; 99") == 2 and html.count("the end") == 2
    assert "[rank 1] <line> 99\n" in bundle["text/plain"]


@pytest.mark.parametrize("cell, words", [
    ("%%ranks 2\n1", "no rank 2; there are 2"), ("%%ranks x\n1", "names no ranks"), ("%%ranks -q\n1", "unrecognized"),
    ("%%ranks\n\n!ls\n", "line 3 is no Python"), ("%%ranks 0 --on 1\n1", "once"),
    ("%%ranks --timeout 0\n1", "timeout"), ("%%ranks\nx = 1\nfor", "line 3"),
])  # fmt: skip
def test_a_cell_that_cannot_run_is_refused(kept, cell, words):
    out = kept.run(cell)
    assert out.error in ("ValueError", "SyntaxError") and words in out.message


def test_an_error_shows_the_lines_of_the_cell(kept):
    out = kept.run("%%ranks\ndef fails():\n    raise KeyError('planted')\nif rank == 1: fails()\ndist.barrier()")
    assert out.error == "RankError" and out.message.startswith("rank 1 failed; the others were interrupted")
    assert "line 4, in <module>\n    if rank == 1: fails()" in out.message
    assert "line 3, in fails\n    raise KeyError('planted')" in out.message
    assert "helpers" not in out.traceback
    kept_still_work(kept)


def test_an_error_of_a_call_shows_the_readers_lines_and_none_of_the_launcher(kept):
    out = kept.run("def fails():\n    raise KeyError('planted')\nranks[1](fails)")
    assert "Cell In[" in out.traceback and "line 3, in <module>\n    ranks[1](fails)" in out.traceback
    assert "KeyError: 'planted'" in out.traceback and "handle.py" not in out.traceback
    out = kept.run("try:\n    1 / 0\nexcept ZeroDivisionError:\n    ranks[1](fails)")
    assert "ZeroDivisionError" in out.traceback and "KeyError: 'planted'" in out.traceback, "what came before stays"


def test_the_debugger_opens_on_one_rank_while_the_other_waits(kept):
    cell = "%%ranks\ny = 5\nif rank == 1: breakpoint()\ndist.barrier()\ny"
    out = answered(kept, cell, "p y + 1", "!y = 7", "continue")
    assert "6" in out.stdout.splitlines() and out.stdout.endswith("[rank 0] 5\n[rank 1] 7\n"), out.traceback
    kept.run("%%ranks 1\ninside = 'the last'\n1 / 0")
    out = answered(kept, "ranks.debug(1)", "p inside", "quit")
    assert "'the last'" in out.stdout and not out.error
    assert "no exception" in kept.run("ranks.debug(0)").stdout
    out = answered(kept, "%%ranks\nif rank == 0:\n    mark = 'the next'\n    1 / 0\ndist.barrier()", "p mark", "q")
    assert "'the next'" in out.stdout and "ZeroDivisionError" in out.message
    kept_still_work(kept)


def test_where_nobody_can_type_a_breakpoint_is_passed(kept):
    kept.message_id, kept.started = kept.client.execute("%%ranks 0\nbreakpoint()\n8", allow_stdin=False), 0
    out = kept.finish_cell(PROMPT)
    assert "nobody can type here" in out.stderr and out.stdout.endswith("[rank 0] 8\n"), out.traceback


def test_the_stop_button_leaves_the_ranks(kept, tmp_path):
    pids = kept.value("ranks.pids")
    here = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close()"
    kept.start_cell(f"%%ranks\n{here}\nif rank: dist.barrier()\nelse: __import__('time').sleep(600)")
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 300) is not None
    wait_until(lambda: False, 0.5)  # let rank 1 get into the collective
    kept.interrupt()
    out = kept.finish_cell(PROMPT)
    assert out.error == "KeyboardInterrupt"
    assert "rank 0:" in out.stderr and "rank 1:" in out.stderr and "dist.barrier()" in out.stderr
    assert kept.value("ranks.pids") == pids
    kept_still_work(kept)


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
        die_with(k, 4 + 3)


@LONG
def test_two_notebooks_at_once_and_kept_ranks_die_with_theirs(kept):
    with kernel() as other:
        other.value(f"{SET_UP}ranks = helpers.ranks(2, timeout=600)")
        for each in (kept, other):
            each.start_cell("%%ranks\nfor k in range(200): dist.all_reduce(one := torch.ones(1))\none.item()")
        assert kept.finish_cell().stdout == other.finish_cell().stdout == "[rank 0] 2.0\n[rank 1] 2.0\n"
        other.start_cell("%%ranks\nif rank: dist.barrier()\nelse: __import__('time').sleep(600)")
        wait_until(lambda: False, 1)
        die_with(other, 4)


def test_all_ranks_die_with_the_kernel(kept):  # the last test, since it takes the kernel of all
    kept.start_cell("launch(meet, 2, 1, lambda: time.sleep(600))")
    die_with(kept, 6)


def die_with(k, family):
    """The kernel is killed once its `family` is complete: the fork server's two generations and all ranks."""
    assert wait_until(lambda: len(descendants(k.pid)) >= family, 300) is not None
    family = descendants(k.pid)
    os.kill(k.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(running, family)), PROMPT) is not None
