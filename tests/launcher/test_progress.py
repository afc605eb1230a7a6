"""Progress: moving where somebody looks, unchanging text where it is compared; and the stop button."""

import pytest
from kernel import kernel, wait_until

from helpers.launcher import context, run_queue
from helpers.launcher.progress import Progress, launching

EVENTS = [
    dict(event="step", step=s, steps=4, loss=1.0 / s, images_per_s=100.0 * s, samples="words") for s in range(1, 5)
]


def show(progress):
    progress.begin("DDP ×2")
    for event in EVENTS:
        progress.drawn = 0.0
        progress.event(event)
    progress.end("completed")


@pytest.mark.parametrize("setting", ["plain", ""])
def test_plain_text_has_no_numbers_that_change(setting, monkeypatch, capsys):
    """Where it is asked for, and where the output is no terminal."""
    monkeypatch.setenv("HELPERS_PROGRESS", setting)
    show(Progress(["DDP ×2", "DDP ×4"]))
    assert capsys.readouterr().out == "[1/2] DDP ×2: done\n"


@pytest.mark.parametrize("setting", ["plain", ""])
def test_a_comparison_takes_its_turn_once_and_its_launches_are_part_of_it(setting, monkeypatch, capsys):
    monkeypatch.setenv("HELPERS_PROGRESS", setting)
    seen, shown = [], Progress(["first", "second"])
    with shown.turn("a comparison"), shown.turn("a run of it"):
        with shown.showing("first"), launching("a launch of it"):
            seen += [context.stack(), [ticket.name for ticket in run_queue._queue]]
    assert seen == [(shown,), ["a comparison"]] and not run_queue._queue and context.stack() == ()
    assert [row.state for row in shown.rows] == ["completed", "left out"]
    assert capsys.readouterr().out == "[1/2] first: done\n"


@pytest.mark.long
def test_stop_button_during_a_comparison(tmp_path):
    """Control comes back, the finished runs are kept, the stopped one is recorded as stopped."""
    with kernel(HELPERS_RESULTS=str(tmp_path), HELPERS_PROGRESS="") as k:
        k.value("import helpers\nfrom helpers import RunConfig\nfrom helpers.records import read")
        k.value("helpers.prepare_launcher()")
        k.start_cell(
            "short = RunConfig(steps=6, global_batch=16, evaluate=False)\n"
            f"long = dict(steps=100_000, checkpoint_dir={str(tmp_path / 'saved')!r}, checkpoint_every=5)\n"
            "helpers.compare([short, short.but(strategy='ddp', nproc_per_node=2, **long)])"
        )
        assert wait_until(lambda: list(tmp_path.glob("saved/*.pt")), 300) is not None, "the second run does not train"
        k.interrupt()
        out = k.finish_cell()
        assert out.error == "KeyboardInterrupt" and "rank 0:" in out.displayed
        assert k.value("[r['status'] for r in read.read().records]") == "['completed', 'stopped']"
        assert k.value("helpers.run(short)['status']").endswith("'completed'")
