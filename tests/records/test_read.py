"""Records are found in folders and files; what is no record is named."""

import json
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
    "spoil",
    [
        lambda r: r.pop("run_id"),
        lambda r: r.pop("environment"),
        lambda r: r.update(config=[]),
    ],
)
def test_a_broken_record_is_named_and_the_others_are_read(spoil, tmp_path):
    broken = {**planted(), "run_id": "broken"}
    spoil(broken)
    (tmp_path / "a broken one.json").write_text(json.dumps(broken), encoding="utf-8")
    write(tmp_path, baseline())
    found = read.read(tmp_path)
    assert [record["run_id"] for record in found.records] == ["id-baseline"]
    ((file, why),) = found.skipped
    assert file == "a broken one.json" and "not a record" in why


@pytest.mark.parametrize(
    "content",
    [b'{"run_id": "x", "con', b"\xff\xfe\x00", b"7", b'{"records": [7, {}]}', b"[" * 100_000],
)
def test_a_foreign_file_is_named(content, tmp_path):
    (tmp_path / "foreign.json").write_bytes(content)
    (tmp_path / "notes.txt").write_text("not looked at")
    found = read.read(tmp_path)
    assert not found.records and all("foreign.json" in file and why for file, why in found.skipped)
    assert len(found.skipped) == (2 if b"records" in content else 1)


def test_what_is_not_there_is_an_error_and_nothing_recorded_is_none(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="give the folder that holds records"):
        read.read(tmp_path / "nowhere")
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "new"))
    assert read.read().records == []


def test_a_setting_that_is_newer_than_a_record_has_its_default(tmp_path):
    old = planted(speed=1.8)
    del old["config"]["accumulation"], old["config"]["loss"]
    (record,) = read.read(write(tmp_path, old)).records
    assert record["config"]["accumulation"] == 1 and record["config"]["loss"] == "cross_entropy"


def test_a_machine_is_all_that_was_recorded_of_it():
    here, same, other, older = (planted(label=label) for label in "abcd")
    same["environment"]["machine"].update(threads=64)  # the run's own choice
    other["environment"]["machine"].update(bf16="emulated")
    del older["environment"]["machine"]["instructions"]  # unknown, so never taken for the same machine
    known = [read.machine_identity(record) for record in (here, same, other, older)]
    assert known[0] == known[1] and not any(known[0] == other for other in known[2:])


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
