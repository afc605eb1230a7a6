"""A report of many records reads what is new, and says the same as one that reads all."""

import json
import os
import shutil

import pytest

from benchmarks import growth_records
from helpers import cli
from helpers.records import heads
from helpers.records import index as report_index
from helpers.records import read as report_records
from helpers.report import drawing, everything, page


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """72 records of 6 comparisons."""
    return growth_records.write(tmp_path_factory.mktemp("some"), 72)


def copied(some, folder, count=72):
    """A folder with the first of them."""
    (folder / "runs").mkdir()
    for path in sorted((some / "runs").iterdir())[:count]:
        shutil.copy(path, folder / "runs")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, some):
    """Of these one twice, one changed, one failed, and two files that are none."""
    made = copied(some, tmp_path_factory.mktemp("records"))
    first, second, *_ = sorted((made / "runs").iterdir())
    text = first.read_text(encoding="utf-8")
    (made / "runs" / "copy.json").write_text(text, encoding="utf-8")
    (made / "runs" / "other.json").write_text(text.replace('"total_s": ', '"total_s": 1'), encoding="utf-8")
    (made / "runs" / "broken.json").write_text(text[:1000], encoding="utf-8")
    (made / "runs" / "foreign.json").write_text("{}", encoding="utf-8")
    failed = json.loads(second.read_text(encoding="utf-8"))
    failed = {key: value for key, value in failed.items() if key not in ("measured", "total_s")}
    second.write_text(json.dumps({**failed, "status": "failed", "error": "RankError: rank 1"}), encoding="utf-8")
    study = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((made / "runs").glob("2023*"))[-2:]]
    study = [{**record, "run_id": f"study-{place}", "group": "study"} for place, record in enumerate(study)]
    (made / "runs" / "study.json").write_text(json.dumps({"records": study}), encoding="utf-8")
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "records"


def written(folder, out, many, formats=("html", "csv", "json")):
    made = everything.Report(report_records.read(folder, many=many), 0.9)
    return {kind: path.read_bytes() for kind, path in made.write(out, formats).items()}


def test_the_report_is_the_same_with_and_without_an_index(folder, tmp_path, cache, monkeypatch):
    # Drawing takes longest; the text beside a figure has all its numbers.
    monkeypatch.setattr(drawing, "html", lambda maker: [alt for _, alt in maker()])
    whole = written(folder, tmp_path / "whole", many=10_000)
    assert not cache.exists()
    makes = written(folder, tmp_path / "makes the index", many=1, formats=("csv", "json"))  # all numbers are in them
    assert makes == {kind: whole[kind] for kind in makes}
    assert written(folder, tmp_path / "uses it", many=1) == whole
    assert len(list(cache.glob("*.index"))) == 1


def opened(monkeypatch):
    """Names of the files that are read from now on."""
    seen = []

    def noted(read):
        return lambda path: (seen.append(os.path.basename(path)), read(path))[1]

    monkeypatch.setattr(report_records, "contents", noted(report_records.contents))
    monkeypatch.setattr(heads, "items", noted(heads.items))
    return seen


def test_only_what_is_new_is_read_again(some, tmp_path, monkeypatch):
    copied(some, tmp_path, 30)
    seen = opened(monkeypatch)
    report_records.read(tmp_path, many=1)
    assert len(seen) == 30
    seen.clear()
    found = report_records.read(tmp_path, many=1)
    assert seen == [] and len(found.records) == 30
    first, second, *_ = sorted((tmp_path / "runs").iterdir())
    first.write_text(first.read_text().replace('"label": "', '"label": "a longer '))
    second.unlink()
    found = report_records.read(tmp_path, many=1)
    assert seen == [first.name] and len(found.records) == 29
    assert found.records[0]["label"].startswith("a longer ")
    assert found.records[1]["measured"]["steps"] > 0 and len(seen) == 2


def test_what_was_measured_is_the_files(folder):
    known = {record["run_id"]: record for record in report_records.read(folder).records}
    for _ in range(2):
        for record in report_records.read(folder, many=1).records:
            assert record == known[record["run_id"]]


def test_an_interrupt_keeps_what_was_read(some, tmp_path, monkeypatch):
    copied(some, tmp_path, 30)
    whole = report_records.read(tmp_path).records
    monkeypatch.setattr(heads, "CHUNK", 5)
    seen, items = opened(monkeypatch), heads.items

    def stopped(path):
        if len(seen) == 13:
            raise KeyboardInterrupt
        return items(path)

    noted = heads.items
    monkeypatch.setattr(heads, "items", stopped)
    with pytest.raises(KeyboardInterrupt, match="10 of 30 files were read; the next report reads the others"):
        report_records.read(tmp_path, many=1)
    first = sorted(seen)[:10]
    seen.clear()
    monkeypatch.setattr(heads, "items", noted)
    records = report_records.read(tmp_path, many=1).records
    assert len(seen) == 20 and not set(first) & set(seen)
    assert records == whole
    seen.clear()
    report_records.read(tmp_path, many=1)
    assert seen == []


def test_a_record_that_vanishes_meanwhile_is_told(some, tmp_path):
    copied(some, tmp_path, 3)
    report_records.read(tmp_path, many=1)
    found = report_records.read(tmp_path, many=1)
    sorted((tmp_path / "runs").iterdir())[0].unlink()
    with pytest.raises(OSError, match="changed while the report"):
        len(found.records[0]["measured"])


@pytest.mark.parametrize("damage", ["empty", "cut short", "one bit", "another version"])
def test_a_damaged_index_is_made_anew(some, tmp_path, cache, damage, monkeypatch):
    copied(some, tmp_path, 3)
    whole = report_records.read(tmp_path, many=1).records
    (index,) = cache.glob("*.index")
    good = index.read_bytes()
    flipped = good[:-9] + bytes([good[-9] ^ 1]) + good[-8:]
    index.write_bytes({"empty": b"", "cut short": good[:-1], "one bit": flipped, "another version": good}[damage])
    if damage == "another version":
        monkeypatch.setattr(report_index, "_version", lambda: b"of the kit")
    seen = opened(monkeypatch)
    assert report_records.read(tmp_path, many=1).records == whole and len(seen) >= 3
    assert (index.read_bytes() == good) == (damage != "another version")


def test_without_a_place_for_the_index_all_is_read(some, tmp_path, monkeypatch):
    copied(some, tmp_path, 3)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file"))
    assert len(report_records.read(tmp_path, many=1).records) == 3


def test_the_page_of_very_many_is_short_and_says_so(some, tmp_path, monkeypatch, capsys):
    copied(some, tmp_path, 36)
    monkeypatch.setattr(drawing, "html", lambda maker: [])
    whole = page.page_of(everything.everything(tmp_path))
    monkeypatch.setattr(page, "WHOLE", 30)
    monkeypatch.setattr(page, "SHORT_LADDERS", 2)
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    short = (tmp_path / "out" / "all_runs.html").read_text(encoding="utf-8")
    assert "The newest 2 of 3 ladders. 12 runs of older ones" in short and "24 of 36" in short
    assert len(short) < len(whole) and "36 runs of 1 machine" in short
    assert "csv, json: not written" in capsys.readouterr().out and not (tmp_path / "out" / "all_runs.csv").exists()
    assert all(f'id="{link}"' in short for link in set(part.split('"')[0] for part in short.split('href="#')[1:]))
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out"), "--formats", "csv"]) == 0
    assert len((tmp_path / "out" / "all_runs.csv").read_text(encoding="utf-8").splitlines()) == 37
