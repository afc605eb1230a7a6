"""Records are found in folders and files, checked and brought to today's shape; what is no record is named."""

import json
import math
import subprocess
import sys

import pytest
from kernel import ROOT
from records import baseline, planted

from helpers.records import read


def write(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        (folder / f"{record['run_id'].replace('/', '-')}.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_records_are_found_in_folders_and_files_each_once(tmp_path):
    write(tmp_path / "mine" / "runs", baseline(), planted())
    write(tmp_path / "mine" / "report", {**baseline(), "run_id": "not looked at, since there is a folder of runs"})
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"study": "s", "records": [planted(devices=4), baseline()]}), encoding="utf-8")
    found = read.read(tmp_path / "mine", study, tmp_path / "mine")
    assert sorted(record["run_id"] for record in found.records) == ["id-DDP ×2", "id-DDP ×4", "id-baseline"]
    assert not found.skipped
    files = {record["run_id"]: record["file"] for record in found.records}
    assert files["id-DDP ×2"] == "mine/runs/id-DDP ×2.json" and files["id-DDP ×4"] == "study.json, record 1"


@pytest.mark.parametrize(
    "spoil, why",
    [
        (lambda r: r.pop("run_id"), "no run_id"),
        (lambda r: r.update(status="splendid"), "status is 'splendid'"),
        (lambda r: r.update(schema=99), "schema is 99"),
        (lambda r: r.update(schema=[1]), "schema is [1]"),
        (lambda r: r.pop("environment"), "which machine"),
        (lambda r: r.update(measured=None), "what was measured"),
        (lambda r: r["config"].update(nproc_per_node="two"), "nproc_per_node is 'two'"),
        (lambda r: r["config"].update(global_batch=0), "global_batch is '0'"),
        (lambda r: r["measured"]["step_time_s"].update(median=-1.0), "step_time_s, median, is '-1.0'"),
        (lambda r: r["measured"]["images_per_s"].update(q1=math.nan), "images_per_s, q1, is 'nan'"),
        (lambda r: r["measured"]["step_time_s"].pop("q3"), "q3"),
        (lambda r: r.update(total_s=None), "total_s"),
        (lambda r: r.update(config=[]), "list"),
        (lambda r: r.update(environment={"machine": 7}), "int"),
    ],
)
def test_a_broken_record_is_named_and_the_others_are_read(spoil, why, tmp_path):
    broken = {**planted(), "run_id": "broken"}
    spoil(broken)
    (tmp_path / "a broken one.json").write_text(json.dumps(broken), encoding="utf-8")
    write(tmp_path, baseline())
    found = read.read(tmp_path)
    assert [record["run_id"] for record in found.records] == ["id-baseline"]
    ((file, said),) = found.skipped
    assert file == "a broken one.json" and why in said


@pytest.mark.parametrize(
    "content, why",
    [
        (b'{"run_id": "x", "con', "only a part"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"7", "not a record"),
        (b"[1, 2]", "not a record"),
        (b'{"records": [7, {}]}', "not a record"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_foreign_file_is_named(content, why, tmp_path):
    (tmp_path / "foreign.json").write_bytes(content)
    (tmp_path / "notes.txt").write_text("not looked at")
    found = read.read(tmp_path)
    assert not found.records and all("foreign.json" in file and why in said for file, said in found.skipped)
    assert len(found.skipped) == (2 if b"records" in content else 1)


def test_two_records_with_one_id_are_not_taken_for_one(tmp_path):
    write(tmp_path / "a", planted(speed=1.5))
    write(tmp_path / "b", planted(speed=3.0))
    found = read.read(tmp_path)
    assert len(found.records) == 1 and "was read before" in found.skipped[0][1]


def test_what_is_not_there_is_an_error_and_nothing_recorded_is_none(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="give the folder that holds records"):
        read.read(tmp_path / "nowhere")
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "new"))
    assert read.read().records == []


def test_an_older_record_is_brought_to_the_shape_of_today(tmp_path):
    old = planted(speed=1.8)
    for key in ("accumulation", "channels_last", "lr_scaling", "evaluate_every", "local_batch", "loss"):
        del old["config"][key]
    for key in ("schema", "group"):
        del old[key]
    del old["measured"]["samples"]
    (record,) = read.read(write(tmp_path, old)).records
    config = record["config"]
    assert config["accumulation"] == 1 and config["local_batch"] == 32 and config["loss"] == "cross_entropy"
    assert record["measured"]["curve"] == [] and record["group"] == "" and record["measured"]["samples"]["loss"] == []


def test_a_file_too_large_for_a_record_is_named(tmp_path, monkeypatch):
    write(tmp_path, baseline())
    monkeypatch.setattr(read, "MAX_BYTES", 100)
    assert "too many for a record" in read.read(tmp_path).skipped[0][1]


def test_a_results_folder_is_read_oldest_first(tmp_path):
    records = [planted(devices=n) for n in (4, 2, 8)]
    for second, record in enumerate(records):
        record["started"] = f"2026-01-02T03:04:0{second}+0000"
    write(tmp_path / "runs", *records)
    assert [r["label"] for r in read.read_all(tmp_path)] == ["DDP ×4", "DDP ×2", "DDP ×8"]
    assert read.read_all(tmp_path / "nothing yet") == []


def test_reading_reporting_and_drawing_need_neither_torch_nor_pyplot(tmp_path):
    write(tmp_path, baseline(), planted(speed=1.8))
    code = (
        "import sys; from helpers import plots, report; from helpers.plots import style;"
        "found = report.everything(sys.argv[1]); assert style.png(plots.parts(found.records)[0]);"
        "print(found, {'torch', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=ROOT)
    assert "1.80×" in done.stdout and done.stdout.split()[-1] == "set()"
