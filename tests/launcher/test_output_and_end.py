"""What ranks print and show, what they hold, and how they end: as a plain process, without a notebook."""

import atexit
import logging
import re
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import helpers
from helpers import RankError, RankTimeout, launch


def test_a_rank_ends_as_a_plain_process_does(tmp_path, capfd):
    def leave():
        def write():
            time.sleep(3)
            (tmp_path / "thread").write_text("whole")

        threading.Thread(target=write, name="late writer").start()
        atexit.register((tmp_path / "atexit").touch)
        sys.left_open = open(tmp_path / "file", "w")
        sys.left_open.write("buffered")

    launch(leave, 1, timeout=300)
    assert (tmp_path / "thread").read_text() == "whole" and (tmp_path / "atexit").exists()
    assert (tmp_path / "file").read_text() == "buffered" and "late writer" in capfd.readouterr().err


def test_a_thread_that_does_not_end_is_shown_by_the_timeout():
    def stay():
        time.sleep(600)

    with pytest.raises(RankTimeout, match=r"rank 0 of 1(?s:.)*time.sleep\(600\)"):
        launch(lambda: threading.Thread(target=stay).start(), 1, timeout=20)


def test_an_asynchronous_checkpoint_is_completed(tmp_path):
    def save():
        with helpers.distributed("cpu"):
            dcp.async_save({"w": torch.ones(2_000_000)}, checkpoint_id=str(tmp_path / "saved"))

    launch(save, 2, timeout=300)
    dcp.load(read := {"w": torch.zeros(2_000_000)}, checkpoint_id=str(tmp_path / "saved"))
    assert read["w"].min() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks at memory through /proc")
def test_a_large_argument_is_held_once_for_all_ranks():
    def own(tensor):
        total = int(tensor.sum())
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return total, next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))

    helpers.prepare_launcher()
    ((_, usual),) = launch(own, 1, torch.ones(1))
    for total, megabytes in launch(own, 2, torch.ones(30_000_000), timeout=300):
        assert total == 30_000_000 and megabytes < usual + 40  # of 120


def test_a_bar_that_is_drawn_again_is_one_line_a_rank(capfd):
    def draw():
        for k in range(30):
            sys.stderr.write(f"\rtrain {k + 1}/30")
            time.sleep(0.01)
        print("\nafter", file=sys.stderr)

    launch(draw, 2, timeout=300)
    shown = sorted(capfd.readouterr().err.splitlines())
    assert shown == [f"[rank {rank}] {text}" for rank in (0, 1) for text in ("after", "train 30/30")]


def test_a_bar_inside_of_a_bar_leaves_what_a_terminal_would(capfd):
    def draw():  # in single writes, as tqdm does
        for epoch in range(3):
            sys.stderr.write(f"\repochs {epoch}/3")
            for batch in range(20):
                for text in ("\n", f"\rbatches {batch + 1}/20", "\x1b[A"):
                    sys.stderr.write(text)
                time.sleep(0.002)
            sys.stderr.write(f"\rbatches 20/20 of epoch {epoch}\n")
        sys.stderr.write("\repochs 3/3\n")
        print("after", file=sys.stderr)

    launch(draw, 1, timeout=300)
    batches = [f"batches 20/20 of epoch {epoch}" for epoch in range(3)]
    assert capfd.readouterr().err.splitlines() == [f"[rank 0] {text}" for text in (*batches, "epochs 3/3", "after")]


@pytest.mark.parametrize("persistent", [False, True])
def test_of_a_flood_the_cell_shows_begin_and_end_and_names_the_file(persistent, capfd):
    def flood():
        for number in range(150_000):
            print("line", number)

    if persistent:
        with helpers.ranks(1) as ranks:
            ranks(flood, timeout=300)
    else:
        launch(flood, 1, timeout=300)
    out, err = capfd.readouterr()
    whole = Path(re.search(r"all of it is in (\S+)", err)[1])
    assert len(out) < 1_500_000 and "[rank 0] line 149999" in err
    assert whole.read_text().splitlines() == [f"[rank 0] line {number}" for number in range(150_000)]
    whole.unlink()


def test_logging_is_set_up_as_here(capfd, monkeypatch):
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)s of %(name)s: %(message)s"))
    monkeypatch.setattr(logging.getLogger("mine"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("mine"), "level", logging.INFO)
    launch(lambda: logging.getLogger("mine").info("heard"), 1, timeout=300)
    assert "[rank 0] INFO of mine: heard\n" in capfd.readouterr().out


def test_a_formatter_that_the_ranks_cannot_import_is_left_out(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "only_here", module := types.ModuleType("only_here"))
    module.Formatter = type("Formatter", (logging.Formatter,), {"__module__": "only_here"})
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(module.Formatter("%(levelname)s"))
    monkeypatch.setattr(logging.getLogger("mine"), "handlers", [handler])
    launch(lambda: logging.getLogger("mine").error("heard"), 1, timeout=300)
    assert "[rank 0] heard\n" in capfd.readouterr().out


@pytest.mark.parametrize("ask", [input, breakpoint])
def test_nobody_types_on_a_rank(ask):
    with pytest.raises(RankError, match="nobody can type on a rank"):
        launch(ask, 1, timeout=300)
