"""Persistent ranks in a real kernel: the cell magic, the stop button, and what a killed kernel leaves."""

import os
import signal

import pytest
from kernel import descendants, kernel, running, wait_until

SET_UP = """
import os, time, signal
import torch, torch.distributed as dist
import helpers
helpers.prepare_launcher()
ranks = helpers.ranks(2, timeout=600)
"""
# Rank 1 waits in a collective for rank 0, which sleeps; each leaves a file once it does.
STUCK = """%%ranks
from places import announce
announce("barrier" if rank else "nap", "{folder}/" + str(rank))
def nap():
    __import__('time').sleep(600)
dist.barrier() if rank else nap()
"""
LONG = pytest.mark.long
PROMPT = 200  # s; a rank that is waited for would take ten minutes, and a busy machine is the normal case


@pytest.fixture(scope="module")
def notebook():
    with kernel() as k:
        assert "no ranks are open" in k.run("import helpers").message + k.run("%%ranks\n1").message
        k.value(SET_UP)
        yield k


def still_work(notebook):
    out = notebook.run("%%ranks\ndist.all_reduce(one := torch.ones(1))\none.item()")
    assert out.stdout == "[rank 0] 2.0\n[rank 1] 2.0\n", out.traceback


def test_cells_share_names_with_each_other_and_with_functions(notebook):
    out = notebook.run("%%ranks\nx = torch.full((2,), float(rank))\nprint('made', rank)\nx")
    assert sorted(out.stdout.splitlines()) == [
        "[rank 0] made 0",
        "[rank 0] tensor([0., 0.])",
        "[rank 1] made 1",
        "[rank 1] tensor([1., 1.])",
    ]
    assert notebook.run("%%ranks 1\ndef twice(): return 2 * x\nx += 1;").stdout == ""
    assert notebook.run("%%ranks 1\ntwice()").stdout == "[rank 1] tensor([4., 4.])\n"
    assert notebook.value("ranks(lambda: ranks.state.x.sum().item())") == "[0.0, 4.0]"
    notebook.value("class Point:\n    pass\ndef make():\n    ranks.state.point = Point()")
    assert notebook.value("ranks(make); [type(p) is Point for p in ranks.state.point]") == "[True, True]"


@pytest.mark.parametrize(
    "cell, words",
    [
        ("%%ranks 2\n1", "none of the ranks 0 to 1"),
        ("%%ranks x\n1", "none of the ranks"),
        ("%%ranks -q\n1", "unrecognized"),
        ("%%ranks\n\n!ls\n", "line 3"),
        ("%%ranks --timeout 0\n1", "timeout"),
        ("%%ranks\nx = 1\nfor", "line 3"),
    ],
)
def test_a_cell_that_cannot_run_is_refused(notebook, cell, words):
    out = notebook.run(cell)
    assert out.error in ("ValueError", "SyntaxError") and words in out.message


def test_an_error_shows_the_lines_of_the_cell(notebook):
    out = notebook.run("%%ranks\ndef fails():\n    raise KeyError('planted')\nif rank == 1: fails()\ndist.barrier()")
    assert out.error == "RankError" and out.message.startswith("rank 1 failed; the others were interrupted")
    assert "line 4, in <module>\n    if rank == 1: fails()" in out.message
    assert "line 3, in fails\n    raise KeyError('planted')" in out.message
    assert "helpers" not in out.traceback
    still_work(notebook)


def test_an_error_of_a_call_shows_the_readers_lines_and_none_of_the_launcher(notebook):
    out = notebook.run("def fails():\n    raise KeyError('planted')\nranks[1](fails)")
    assert "Cell In[" in out.traceback and "line 3, in <module>\n    ranks[1](fails)" in out.traceback
    assert "KeyError: 'planted'" in out.traceback and "ranks.py" not in out.traceback
    out = notebook.run("try:\n    1 / 0\nexcept ZeroDivisionError:\n    ranks[1](fails)")
    assert "ZeroDivisionError" in out.traceback and "KeyError: 'planted'" in out.traceback, "what came before stays"


def test_the_stop_button_leaves_the_ranks(notebook, tmp_path):
    pids = notebook.value("ranks.pids")
    notebook.start_cell(STUCK.format(folder=str(tmp_path)))
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 300) is not None
    notebook.interrupt()
    out = notebook.finish_cell(PROMPT)
    assert out.error == "KeyboardInterrupt"
    assert "rank 0:" in out.displayed and "rank 1:" in out.displayed and "dist.barrier()" in out.displayed
    assert out.traceback.startswith("Stopped: the 2 ranks were interrupted") and "\n" not in out.traceback
    assert notebook.value("ranks.pids") == pids
    still_work(notebook)


@LONG
def test_two_notebooks_at_once(notebook):
    with kernel() as other:
        other.value(SET_UP)
        for each in (notebook, other):
            each.start_cell("%%ranks\nfor k in range(200): dist.all_reduce(one := torch.ones(1))\none.item()")
        assert notebook.finish_cell().stdout == other.finish_cell().stdout == "[rank 0] 2.0\n[rank 1] 2.0\n"


def test_nothing_is_left_of_a_killed_kernel(notebook, tmp_path):  # the last test, since it takes the kernel of all
    notebook.start_cell(STUCK.format(folder=str(tmp_path)))
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 300) is not None
    family = descendants(notebook.pid)
    assert len(family) == 3  # the fork server, two ranks
    os.kill(notebook.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(running, family)), PROMPT) is not None
