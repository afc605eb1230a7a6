"""The files of a report: a page that needs nothing else and whose links lead somewhere, figures, tables, a JSON."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from records import baseline, curve, on, planted

from helpers import __main__ as cli
from helpers import report
from helpers.records import read
from helpers.report import page, published
from helpers.report.report import Report

EVIL = "<script>alert('&')</script>\x1b[31m\n"


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def records():
    """Two machines; one run compiled, one is called what no run should be, one diverged."""
    compiled = planted("baseline", 1, 1.3, compiler="inductor")
    compiled["measured"]["compiler"] = {"plan": "inductor", "compile_s": 20.0}
    evil = planted(devices=4, label=EVIL)
    evil["run_id"], evil["measured"]["final_loss"], evil["measured"]["note"] = EVIL, float("nan"), EVIL
    mine = [baseline(), planted(speed=1.8), compiled, evil]
    for record in mine[:2]:
        record["measured"]["curve"] = curve(0.4, 0.95)
    theirs = on({"name": "Other CPU"}, baseline(), planted(speed=0.6))
    return [{**read.checked(record), "file": "=1+1.json"} for record in mine + theirs]


def made(*given):
    return Report(read.Found(list(given) or records(), [(EVIL, "no record")]), 0.9)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    paths = made().write(tmp_path_factory.mktemp("new") / "folder")
    assert {path.name for path in paths.values()} == {"all_runs.html", "all_runs.csv", "all_runs.json"}
    return {kind: path.read_text(encoding="utf-8") for kind, path in paths.items()}


def test_the_page_asks_for_nothing_outside(files):
    bare = re.sub(r"base64,[^\"]*", "", files["html"])
    assert "http" not in bare and "//" not in bare and "url(" not in bare and "@import" not in bare
    parsed = Page(files["html"])
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert all(image["src"].startswith("data:image/png;base64,") and len(image["alt"]) > 40 for image in images)
    assert "prefers-color-scheme: dark" in bare and ("html", {"lang": "en"}) in parsed.tags
    assert {attributes.get("scope") for tag, attributes in parsed.tags if tag == "th"} == {"row", "col"}
    assert len(files["html"]) < 700_000


def test_every_sentence_links_to_a_record_of_the_page(files):
    parsed = Page(files["html"])
    places = [attributes["id"] for tag, attributes in parsed.tags if "id" in attributes]
    links = [attributes["href"] for tag, attributes in parsed.tags if tag == "a"]
    assert len(places) == len(set(places)) == 6
    assert all(link[0] == "#" and unquote(link[1:]) in places for link in links)
    items = re.findall(r"<li>(.*?)</li>", files["html"], re.DOTALL)
    assert items and all("<a href=" in item for item in items)


def test_the_page_escapes_texts_from_records(files):
    parsed = Page(files["html"])
    assert "script" not in {tag for tag, _ in parsed.tags} and "alert('&')" in parsed.text
    assert all(part in parsed.text for part in ("Some CPU, 2 cores", "Other CPU, 2 cores", "=1+1.json"))
    assert not any("\x1b" in text for text in (files["html"], files["csv"], made().text()))


def test_the_files_for_spreadsheets_and_programs(files):
    rows = list(csv.DictReader(io.StringIO(files["csv"])))
    assert len(rows) == 6 and {row["machine"] for row in rows} == {"Some CPU, 2 cores", "Other CPU, 2 cores"}
    two = next(row for row in rows if row["run_id"] == "id-DDP ×2")
    assert float(two["speed_up_of_label"]) == pytest.approx(1.8) and float(two["seconds_to_target"]) == 2.0
    assert two["file"] == "'=1+1.json"  # a spreadsheet would compute it
    content = json.loads(files["json"])
    ids = {record["run_id"] for record in content["records"]}
    assert content["sentences"] and all(set(said["runs"]) <= ids and said["runs"] for said in content["sentences"])
    assert "NaN" not in files["json"] and content["target"] == 0.9
    assert content["skipped"][0]["why"] == "no record"


def test_the_published_ladder_is_marked_as_theirs():
    numbers = {row["name"]: row for row in published.rows(published.tables()["cifar ladder"])}
    assert numbers["DDP ×4"]["speed_up"] == pytest.approx(13.2 / 6.1) and numbers["DDP ×4"]["accuracy"] == 0.14
    assert numbers["DataParallel ×4"]["efficiency"] == pytest.approx(13.2 / 19.1 / 4)
    by_rate = published.rows(published.tables()["imagenet p100"])
    assert by_rate[-1]["efficiency"] == pytest.approx(1734 / 219 / 8)
    figure, alt = published.figure(made().machines)
    assert "17.3%" in alt and len(figure.axes[0].patches) == 10


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "page_of", lambda report: "")  # which the tests above look at
    folder = tmp_path / "two machines"
    folder.mkdir()
    for count, record in enumerate(records()):
        (folder / f"{count}.json").write_text(json.dumps(record), encoding="utf-8")
    arguments = ["report", str(folder), "--out", str(tmp_path / "out"), "--target", "0.5"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "Other CPU, 2 cores" in out and "0.60×" in out and "all_runs.json" in out
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".csv", ".html", ".json"}
    assert json.loads((tmp_path / "out" / "all_runs.json").read_text(encoding="utf-8"))["target"] == 0.5


def test_a_report_is_written_as_far_as_it_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "page_of", lambda report: "")
    (tmp_path / "all_runs.html" / "folder in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="all_runs.html"):
        made().write(tmp_path)
    assert (tmp_path / "all_runs.csv").is_file() and (tmp_path / "all_runs.json").is_file()


REFUSED = [(["nowhere"], "no nowhere"), (["--target", "3"], "share of one"), ([], "no record of a run in")]


@pytest.mark.parametrize("arguments, words", REFUSED)
def test_the_command_refuses(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))
    assert cli.main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_conclusions_have_a_row_for_each_run_beside_its_baseline():
    rows = report.conclusions(made())
    assert all(len(row.text) == len(report.COLUMNS) and len(row.runs) >= 2 for row in rows)
    verdicts = {row.text[1]: row.text[-1] for row in rows if row.text[2].startswith(("1.80×", "0.60×"))}
    assert set(verdicts.values()) <= {"faster", "slower", "not shown"} and verdicts
    assert not [row for row in rows if row.text[1] == "baseline"]
    assert len(report.conclusions(made(), most=1)) == 1
