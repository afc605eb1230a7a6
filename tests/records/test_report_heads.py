"""Heads of records read fast, and by several processes, are those of a plain reading; how far it is, is told."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import baseline, failed, planted

from helpers.launcher import display
from helpers.records import forks, progress, read
from helpers.records import heads as report_heads

HERE = Path(__file__).resolve().parent


def spoiled(**changes):
    """A record with other values; those of parts as part__name."""
    record = planted()
    for name, value in changes.items():
        part, _, inside = name.partition("__")
        (record[part] if inside else record).update({inside or part: value})
    return record


def without(record, **parts):
    """A record as older versions of the kit wrote it."""
    for part, names in parts.items():
        for name in names:
            (record if part == "itself" else record[part]).pop(name, None)
    return record


ODD = {
    "plain": planted(), "baseline": baseline(), "failed": failed(), "schema": spoiled(schema=1.0),
    "several": {"records": [planted(), 7, 1.5, baseline(), {"run_id": 1.5}, planted(devices=4)]},
    "none": {"records": []}, "foreign": {}, "list": [1.5, [2.5]], "number": 1.5, "newer": spoiled(schema=99.5),
    "old": without(planted(), config=["accumulation", "local_batch"], measured=["samples"], itself=["schema", "group"]),
    "status": spoiled(status=1.5), "infinite": spoiled(total_s=float("inf")), "nan": spoiled(total_s=float("nan")),
    "negative": spoiled(total_s=-0.0), "whole": spoiled(total_s=7), "text": spoiled(total_s="1.5"),
    "median": spoiled(measured__step_time_s={"median": 1.5}), "label": spoiled(label=2.5),
    "config": spoiled(config__measured={"samples": {"loss": [1.5]}}, config__lr=1e-5),
    "samples": spoiled(measured__samples=[1.5]), "no samples": spoiled(measured__samples=1.5),
    "few samples": spoiled(measured__samples={"loss": [0.1, None]}), "zero": {**failed(), "measured": 0.0},
    "partly": {**failed(), "measured": {"samples": {"loss": [1.5]}}}, "extra": spoiled(advice={"deep": [{"x": 0.1}]}),
}  # fmt: skip
DAMAGED = {
    "empty": b"", "bytes": b"\xff\xfe\x00", "mark": b"\xef\xbb\xbf{}", "deep": b"[" * 100_000,
    "part": b'{"run_id": 1.5', "huge": b"[" + b"9" * 5000 + b"]",
    "number in it": json.dumps(planted()).replace(": 0.", ": 0.1.").encode(),
    "lines": json.dumps(planted(), indent=1).replace("\n", "\r\n").encode(),
}  # fmt: skip


def written(folder, count=0):
    """ODD and DAMAGED as files, and `count` more records."""
    for name, content in ODD.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    for name, content in DAMAGED.items():
        (folder / f"{name}.json").write_bytes(content)
    for number in range(count):
        record = {**planted(speed=1 + number / 1000), "run_id": f"id-{number}", "label": f"label {number % 7}"}
        (folder / f"run {number}.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "gone.json").symlink_to(folder / "nowhere")
    return folder


def test_a_head_is_that_of_the_whole_record(tmp_path):
    kinds = set()
    for path in sorted(written(tmp_path).iterdir()):
        fast, plain = report_heads.Heads(), report_heads.Heads()
        heads = [fast.head(item) for item in report_heads.items(path)]
        assert repr(heads) == repr([plain.head(item) for item in read.contents(path)]), path.name
        assert repr(fast.shared) == repr(plain.shared), path.name  # as text: NaN is not equal to itself
        kinds |= {own is None for own, _, _ in heads}
    assert kinds == {True, False}


def test_a_file_too_large_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    path.write_text(json.dumps(planted()), encoding="utf-8")
    monkeypatch.setattr(read, "MAX_BYTES", 100)
    ((record, why, _),) = report_heads.items(path)
    assert record is None and "too many for a record" in why


def test_a_check_that_needs_a_number_gets_it(tmp_path, monkeypatch):
    (tmp_path / "record.json").write_text(json.dumps(planted()), encoding="utf-8")
    upgraded = read.upgraded

    def strict(raw):
        if not all(type(value) is float for value in raw["measured"]["samples"]["step_time_s"]):
            raise ValueError("no number")
        return upgraded(raw)

    monkeypatch.setattr(read, "upgraded", strict)
    ((record, why, _),) = report_heads.items(str(tmp_path / "record.json"))
    assert record and not why


def test_parts_that_no_number_tells_apart_are_kept_apart():
    heads = report_heads.Heads()
    parts = [{"x": 1}, {"x": 1.0}, {"x": True}, {"x": "1"}, {"x": -0.0}, {"x": 0.0}, {"y": 1}]
    assert [heads.number("rest", part) for part in [*parts, *parts]] == 2 * list(range(7))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process reads")
def test_processes_read_what_one_reads(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    written(folder, 250)
    done = subprocess.run(
        [sys.executable, str(HERE / "report_heads_script.py"), str(folder), str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.split() == ["done"], done.stdout + done.stderr


def test_threads_and_daemons_do_not_fork(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    assert not forks.may_fork()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(forks.threading, "active_count", lambda: 2)
    assert not forks.may_fork()


# How far it is


@pytest.fixture
def stderr(monkeypatch):
    """What is told of 40 of 100 files, and what stays of it."""
    monkeypatch.setattr(progress, "PATIENCE", 0)
    monkeypatch.delenv("HELPERS_PROGRESS", raising=False)
    for name in display.FRONT_ENDS:
        monkeypatch.delenv(name, raising=False)

    def told(terminal=False, kernel=False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(display, "in_notebook", lambda: kernel)
        with progress.Reading(1000) as reading:
            reading.now(400)
            reading.now(500)  # too soon
        return stream.getvalue()

    return told


def test_a_log_has_a_line_now_and_then(stderr, capsys):
    assert stderr() == "reading records: 400 of 1,000 files\n"
    assert capsys.readouterr().out == ""


def test_a_terminal_has_one_line_which_goes_away(stderr, capsys):
    text = stderr(terminal=True)
    assert text.count(" 40%  400 of 1,000 files") == 1 and text.endswith("\r\x1b[2K") and "\n" not in text
    assert capsys.readouterr().out == ""


def test_nothing_is_told_where_outputs_are_compared_or_soon(stderr, monkeypatch):
    assert stderr(kernel=True) == ""
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    assert stderr(terminal=True) == ""
    monkeypatch.delenv("HELPERS_PROGRESS")
    monkeypatch.setattr(progress, "PATIENCE", 100)
    assert stderr(terminal=True) == stderr() == ""
