"""Records of this and of other machines: found, checked, never mixed; what is no record is named."""

import json
import math

import pytest
from records import baseline, failed, planted

from helpers.records import read
from helpers.report import ladders
from helpers.report.everything import everything


def write(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        (folder / f"{record['run_id'].replace('/', '-')}.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def on(machine, *records, cores=2, kind="cpu"):
    """The records as if made on another machine, with ids of their own."""
    for record in records:
        record["environment"]["machine"] = {
            **record["environment"]["machine"], "name": machine, "cores": cores, "kind": kind
        }  # fmt: skip
        record["run_id"] = f"{record['run_id']}-{machine}-{cores}"
    return list(records)


def labels(ladder):
    return [record["label"] for record in ladder.records]


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


@pytest.mark.parametrize("spoil, why", [
    (lambda r: r.pop("run_id"), "no run_id"), (lambda r: r.update(status="splendid"), "status is 'splendid'"),
    (lambda r: r.update(schema=99), "schema is 99"), (lambda r: r.update(schema=[1]), "schema is [1]"),
    (lambda r: r.pop("environment"), "which machine"), (lambda r: r.update(measured=None), "what was measured"),
    (lambda r: r["config"].update(nproc_per_node="two"), "nproc_per_node is 'two'"),
    (lambda r: r["config"].update(global_batch=0), "global_batch is '0'"),
    (lambda r: r["measured"]["step_time_s"].update(median=-1.0), "step_time_s, median, is '-1.0'"),
    (lambda r: r["measured"]["images_per_s"].update(q1=math.nan), "images_per_s, q1, is 'nan'"),
    (lambda r: r["measured"]["step_time_s"].pop("q3"), "q3"), (lambda r: r.update(total_s=None), "total_s"),
    (lambda r: r.update(config=[]), "list"), (lambda r: r.update(environment={"machine": 7}), "int"),
])  # fmt: skip
def test_a_broken_record_is_named_and_the_others_are_read(spoil, why, tmp_path):
    broken = {**planted(), "run_id": "broken"}
    spoil(broken)
    (tmp_path / "a broken one.json").write_text(json.dumps(broken), encoding="utf-8")
    write(tmp_path, baseline())
    found = read.read(tmp_path)
    assert [record["run_id"] for record in found.records] == ["id-baseline"]
    ((file, said),) = found.skipped
    assert file == "a broken one.json" and why in said


@pytest.mark.parametrize("content, why", [
    (b'{"run_id": "x", "con', "only a part"), (b"", "not JSON"), (b"\xff\xfe\x00", "UTF-8"), (b"7", "not a record"),
    (b"[1, 2]", "not a record"), (b'{"records": [7, {}]}', "not a record"), (b"[" * 100_000, ""),
])  # fmt: skip
def test_a_foreign_file_is_named(content, why, tmp_path):
    (tmp_path / "foreign.json").write_bytes(content)
    (tmp_path / "notes.txt").write_text("not looked at")
    found = read.read(tmp_path)
    assert not found.records and all("foreign.json" in file and why in said for file, said in found.skipped)
    assert len(found.skipped) == (2 if b"records" in content else 1)


def test_a_file_too_large_is_not_read(tmp_path, monkeypatch):
    write(tmp_path, baseline())
    monkeypatch.setattr(read, "MAX_BYTES", 100)
    assert "too many for a record" in read.read(tmp_path).skipped[0][1]


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
    for key in ("accumulation", "channels_last", "lr_scaling", "evaluate_every", "local_batch"):
        del old["config"][key]
    for key in ("schema", "group"):
        del old[key]
    del old["measured"]["samples"]
    first = baseline()
    del first["group"], first["config"]["nnodes"]
    write(tmp_path, old, first)
    made = everything(tmp_path)
    (record,) = (r for r in made.records if r["label"] == "DDP ×2")
    assert record["config"]["accumulation"] == 1 and record["config"]["local_batch"] == 32
    assert record["measured"]["curve"] == [] and record["group"] == ""
    assert "1.80×" in made.text()


# -- machines and ladders -----------------------------------------------------------------


def test_machines_are_told_apart_and_never_mixed(tmp_path):
    write(tmp_path / "a", baseline(), planted(speed=1.8))
    write(tmp_path / "b", *on("Other CPU", baseline(), planted(speed=0.6)))
    write(tmp_path / "c", *on("Some CPU", baseline(), planted(speed=2.5), cores=8))
    made = everything(tmp_path)
    assert {site.name for site in made.sites} == {"Some CPU, 2 cores", "Other CPU, 2 cores", "Some CPU, 8 cores"}
    for site in made.sites:
        (ladder,) = site.ladders  # although all belong to a group of the same name
        assert {ladders.machine_name(record) for record in ladder.runs} == {site.name}
    speeds = {site.name: site.ladders[0].rows()[1]["speed_up"] for site in made.sites}
    assert speeds == pytest.approx({"Some CPU, 2 cores": 1.8, "Other CPU, 2 cores": 0.6, "Some CPU, 8 cores": 2.5})


def test_different_models_are_not_one_ladder():
    records = [baseline(), planted(), {**planted(model="resnet18"), "run_id": "other"}]
    (site,) = ladders.sites([read.upgraded(record) for record in records])
    assert [labels(ladder) for ladder in site.ladders] == [["baseline", "DDP ×2"], ["DDP ×2"]]
    assert site.ladders[1].comparison is None


def test_single_runs_are_compared_with_a_plain_one():
    records = [planted(speed=1.5), planted("baseline", 1, 1.4, precision="bf16"), baseline()]
    (site,) = ladders.sites([read.upgraded({**record, "group": ""}) for record in records])
    (ladder,) = site.ladders
    assert ladder.comparison.baseline["label"] == "baseline" and len(ladder.records) == 3


def test_one_label_for_two_trainings_is_told_apart():
    other = {**planted(speed=1.2, global_batch=128), "run_id": "other"}
    (site,) = ladders.sites([read.upgraded(record) for record in (baseline(), planted(), other)])
    assert labels(site.ladders[0]) == ["baseline", "DDP ×2 · global_batch 64", "DDP ×2 · global_batch 128"]


def test_rounds_are_put_together_and_seeds_give_their_mean():
    again = {**planted(speed=1.8), "run_id": "again"}
    seeded = [{**planted(devices=4, accuracy=a, seed=s), "run_id": f"s{s}"} for s, a in enumerate((0.8, 0.9, 0.7))]
    records = [baseline(), planted(speed=1.8), again, *seeded]
    (site,) = ladders.sites([read.upgraded(record) for record in records])
    _, two, four = site.ladders[0].records
    assert two["rounds"] == ["id-DDP ×2", "again"] and two["measured"]["step_time_s"]["n"] == 40
    assert four["measured"]["evaluation"]["accuracy"] == pytest.approx(0.8)
    assert four["measured"]["evaluation"]["of_seeds"] == [0.7, 0.8, 0.9]


def test_a_failed_baseline_leaves_a_ladder_without_one():
    broken = failed(strategy="baseline", devices=1)
    (site,) = ladders.sites([read.upgraded(record) for record in (broken, planted())])
    assert site.ladders[0].comparison is None
