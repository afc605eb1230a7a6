"""Runs in the background: their handle, their turns, and the panel that follows them."""

import os
import queue
import threading
import time

import pytest
from kernel import kernel, wait_until

from helpers import RankError, RunConfig, RunStopped, compare, launch, run
from helpers.launcher import progress, run_queue

TINY = RunConfig(steps=6, global_batch=16, evaluate=False, threads=1)


def until(path):
    """Says on which rank it runs, then waits for the file `path`."""
    import os
    import time

    print("here", os.environ["RANK"], flush=True)
    while not os.path.exists(path):
        time.sleep(0.005)
    return int(os.environ["RANK"])


@pytest.fixture
def gate(tmp_path):
    """A file that `until` waits for, and what opens it."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def test_the_handle_tells_runs_and_returns(gate, capfd):
    handle = launch(until, 2, str(gate), background=True)
    assert wait_until(lambda: handle.logs().count("here") == 2, 300) is not None
    assert handle.status == "running" and repr(handle) == "<until on 2 ranks: running>"
    with pytest.raises(TimeoutError, match="is still running"):
        handle.result(timeout=0.01)
    gate.touch()
    assert handle.result(timeout=300) == [0, 1] and handle.status == "completed"
    assert sorted(handle.logs().splitlines()) == ["[rank 0] here 0", "[rank 1] here 1"]
    assert handle.logs(1) == "here 1\n" and handle.logs(rank=0) == "here 0\n"
    assert capfd.readouterr() == ("", "")


def test_bad_arguments_are_refused_before_anything_starts():
    with pytest.raises(ValueError):
        launch(until, 0, "x", background=True)
    with pytest.raises(ValueError):
        run(RunConfig(global_batch=10**6, threads=1), background=True)
    assert not run_queue._queue


def test_runs_take_turns_in_the_order_of_their_start(gate, tmp_path):
    def stamp(name):
        began = time.monotonic()
        time.sleep(0.05)
        return name, began, time.monotonic()

    first = launch(until, 1, str(gate), background=True)
    handles = [launch(stamp, 1, name, background=True) for name in "abc"]
    assert wait_until(lambda: first.status == "running", 300) is not None
    assert [handle.status for handle in handles] == ["queued"] * 3
    gate.touch()
    (a,), (b,), (c,) = [handle.result(timeout=300) for handle in handles]
    assert a[0] == "a" and a[2] <= b[1] and b[2] <= c[1], "two runs went on at the same time"


def test_a_launch_in_the_foreground_waits_and_says_for_what(gate, capsys, monkeypatch):
    def opened(path):
        until(path)
        return time.monotonic()

    say = progress.waiting_for
    monkeypatch.setattr(progress, "waiting_for", lambda names: gate.touch() or say(names))
    (fallback := threading.Timer(100, gate.touch)).start()  # where nothing is said, so that the test ends
    handle = launch(opened, 1, str(gate), background=True)
    assert launch(time.monotonic, 1) > handle.result(timeout=300) and handle.status == "completed"
    fallback.cancel()
    assert "waiting for opened on 1 rank to end\n" in capsys.readouterr().out


def test_stopping_one_that_runs_and_one_that_waits(gate):
    running, waiting = (launch(until, 2, str(gate), background=True) for _ in range(2))
    assert wait_until(lambda: running.logs().count("here") == 2, 300) is not None
    waiting.stop()
    assert (running.status, waiting.status) == ("running", "stopped") and waiting.logs() == ""
    running.stop()
    assert running.status == "stopped" and running.logs(1) == "here 1\n"
    for handle in (running, waiting):
        with pytest.raises(RunStopped, match="was stopped before its end"):
            handle.result()
        handle.stop()  # once more changes nothing
    assert launch(lambda: 1, 1) == [1] and not run_queue._queue


def test_a_failure_is_that_of_the_foreground():
    handle = launch(lambda: 1 / int(os.environ["RANK"] != "1"), 2, background=True)
    with pytest.raises(RankError, match="ZeroDivisionError") as caught:
        handle.result(timeout=300)
    assert caught.value.rank == 1 and handle.status == "failed"


def test_a_comparison_is_one_turn_and_the_same_as_in_the_foreground(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    configs = [TINY, TINY.but(strategy="ddp", nproc_per_node=2)]
    background = compare(configs, name="one", background=True)
    after = launch(lambda: time.time(), 1, background=True)
    (there,), here = after.result(timeout=300), background.result(timeout=300)
    assert [r["status"] for r in here.records] == ["completed"] * 2
    ended = max(path.stat().st_mtime for path in (tmp_path / "runs").glob("*.json"))
    assert there > ended, "the launch came between the runs of the comparison"
    losses = [r["measured"]["samples"]["loss"] for r in compare(configs).records]
    assert losses == [r["measured"]["samples"]["loss"] for r in here.records]


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent():
    ticket = run_queue.Ticket("another thread's", thread=-1)
    run_queue._queue.append(ticket)
    try:
        child = os.fork()
        if not child:
            os._exit(len(run_queue._queue))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        run_queue._queue.remove(ticket)


# In a kernel

WAIT = """
import os
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return 'went on'
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A kernel that takes its front end to show widgets."""
    folder = tmp_path_factory.mktemp("results")
    with kernel(HELPERS_RESULTS=str(folder), HELPERS_PROGRESS="", JPY_SESSION_NAME="a notebook") as k:
        k.value("import helpers, time\nfrom helpers import launch\nhelpers.prepare_launcher()")
        yield k


@pytest.mark.long
def test_the_widgets_of_old_panels_are_given_back(watched):
    count = "len(__import__('ipywidgets').widgets.widget._instances)"
    held = watched.value(count)
    watched.value("for _ in range(10):\n    launch(int, 1, background=True).result(300)", timeout=300)
    assert watched.value(count) == held


def messages(k, seconds):
    """What the kernel sends until the cell has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            message = k.client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        yield message["msg_type"], message["content"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            if message["parent_header"].get("msg_id") == k.message_id:
                return
    raise AssertionError(f"the cell did not end within {seconds} s")


@pytest.mark.long
def test_an_interrupt_of_the_kernel_does_not_stop_the_background(watched, gate):
    watched.value(WAIT)
    watched.value(f"run = launch(wait, 1, {str(gate)!r}, background=True)")
    watched.start_cell("print('here')\ntime.sleep(600)")
    once = iter([watched.interrupt])  # what is printed may come in two parts
    assert watched.finish_cell(heard=lambda _: next(once, int)()).error == "KeyboardInterrupt"
    gate.touch()
    assert watched.value("run.result(300)") == "['went on']"


def test_the_panel_moves_and_its_last_state_stays(watched, gate):
    watched.value(WAIT)
    watched.start_cell(f"launch(wait, 1, {str(gate)!r})")
    seen, moved = [], 0
    for kind, content in messages(watched, 300):
        seen.append((kind, content))
        moved += kind == "comm_msg" and "running" in content["data"]["state"].get("value", "")
        if moved == 2:
            gate.touch()
    shown = [content for kind, content in seen if kind == "display_data"]
    assert len(shown) == 1 and "application/vnd.jupyter.widget-view+json" in shown[0]["data"]
    rows = [c["data"]["state"].get("value", "") for kind, c in seen if kind == "comm_msg"]
    assert sum("<progress" in row and "running" in row for row in rows) >= 2, "it did not move"
    (last,) = [content for kind, content in seen if kind == "update_display_data"]
    assert last["transient"] == shown[0]["transient"] and "✓ done" in last["data"]["text/html"]
    assert last["data"]["text/plain"] == "wait on 1 rank: done", "times do not belong in what is compared"


def test_the_stop_button_works_while_the_cell_is_busy(watched):
    """As JupyterLab does it: the click comes by a subshell, a thread of the kernel for widgets."""
    reply = watched.client.session.msg("create_subshell_request")
    watched.client.control_channel.send(reply)
    subshell = watched.client.control_channel.get_msg(timeout=300)["content"]["subshell_id"]
    watched.start_cell("launch(time.sleep, 2, 600)")
    told, clicked = "", None
    for kind, content in messages(watched, 300):
        if kind == "comm_open" and content["data"]["state"].get("_model_name") == "ButtonModel":
            button = content["comm_id"]
        if kind == "display_data":
            click = {"comm_id": button, "data": {"method": "custom", "content": {"event": "click"}}}
            message = watched.client.session.msg("comm_msg", click)
            message["header"]["subshell_id"] = subshell
            watched.client.shell_channel.send(message)
            clicked = time.monotonic()
        if kind == "error":
            told = "\n".join(content["traceback"])
    assert clicked is not None and told == "Stopped: all 2 ranks were stopped. What was recorded so far is kept."
    assert watched.value("launch(lambda: 1, 1)") == "[1]"
