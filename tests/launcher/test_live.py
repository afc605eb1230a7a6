"""Progress: moving where somebody looks, unchanging text where it is compared; and the stop button."""

import io
import os
import pty
import sys

from kernel import kernel, wait_until

from helpers.launcher import progress as live
from helpers.measure import Parts, summary

EVENTS = [dict(event="step", step=s, steps=4, loss=1.0 / s, images_per_s=100.0 * s) for s in range(1, 5)]


def show(progress):
    progress.begin("DDP ×2")
    for event in EVENTS:
        progress.drawn = 0.0
        progress.event(event)
    progress.end("completed")


def test_plain_text_has_no_numbers_that_change(monkeypatch, capsys):
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    show(live.Progress(["DDP ×2", "DDP ×4"]))
    assert capsys.readouterr().out == "[1/2] DDP ×2: done\n"


def test_a_terminal_gets_a_moving_bar(monkeypatch):
    monkeypatch.delenv("HELPERS_PROGRESS", raising=False)
    near, far = pty.openpty()
    with os.fdopen(far, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        show(live.Progress())
        terminal.flush()
        text = ""
        while "done" not in text:
            text += os.read(near, 65536).decode()
    os.close(near)
    assert "25%" in text and "100%" in text and "images/s" in text
    assert text.rstrip().endswith("DDP ×2: done")


def test_output_to_a_file_is_plain(monkeypatch):
    monkeypatch.delenv("HELPERS_PROGRESS", raising=False)
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    show(live.Progress())
    assert file.getvalue() == "DDP ×2: done\n"


def test_stop_button_during_a_comparison(tmp_path):
    """Control comes back, the finished runs are kept, the stopped one is recorded as stopped."""
    with kernel(HELPERS_RESULTS=str(tmp_path), HELPERS_PROGRESS="") as k:
        k.value("import helpers\nfrom helpers import RunConfig\nfrom helpers.records import read")
        k.value("helpers.prepare_launcher()")
        k.start_cell(
            "short = RunConfig(steps=6, global_batch=16, evaluate=False)\n"
            "helpers.compare([short, short.but(strategy='ddp', nproc_per_node=2, epochs=500)])"
        )
        assert wait_until(lambda: len(list(tmp_path.glob("runs/*.json"))) == 1, 60) is not None
        wait_until(lambda: False, 2)
        k.interrupt()
        out = k.finish_cell()
        assert out.error == "KeyboardInterrupt" and "rank 0:" in out.stderr
        assert k.value("[r['status'] for r in read.read_all()]") == "['completed', 'stopped']"
        assert k.value("helpers.run(short)['status']").endswith("'completed'")


def test_parts_book_each_second_once():
    times = iter([0.0, 1.0, 4.0, 10.0])
    parts = Parts(clock=lambda: next(times))
    with parts.part("outer"), parts.part("inner"):
        pass
    assert parts.seconds == {"inner": 3.0, "outer": 7.0}


def test_summary_needs_five_samples():
    assert summary([3, 1, 2, 100, 2]) == {"median": 2, "q1": 2, "q3": 3, "min": 1, "max": 100, "n": 5}
    try:
        summary([1, 2, 3, 4])
    except ValueError as error:
        assert "at least 5" in str(error)
    else:
        raise AssertionError("four samples were taken for a spread")
