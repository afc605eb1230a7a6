"""The report: what its sentences say, and files that need nothing else and cannot be half written."""

import csv
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from PIL import Image
from records import baseline, failed, ladder, planted

from helpers import paths as places
from helpers import plots
from helpers.comparison.ladder import Comparison
from helpers.report import single

EVIL = "<script>alert('&')</script>\x1b[31m\n"


def said(*records):
    """The sentences about the runs after the first."""
    comparison = Comparison([baseline(), *records])
    assert {run for _, run in single.reading(comparison)} == {record["run_id"] for record in comparison.records}
    return " ".join(sentence for sentence, run in single.reading(comparison) if run != "id-baseline")


def test_a_faster_run():
    text = said(planted(speed=1.82))
    assert "time a step (1.82×, middle half 1.78× to 1.85×), where 2× would be ideal: an efficiency" in text
    assert "an efficiency of 91.0%" in text
    assert "slower" not in text and "overlap" not in text


def test_a_run_that_computes_otherwise_has_no_efficiency():
    comparison = Comparison([baseline(), planted("ddp", 2, 1.82), planted("ddp", 2, 3.1, precision="bf16")])
    text = " ".join(sentence for sentence, _ in single.reading(comparison))
    assert re.search(r"O1-bf16 took 0.32 of the baseline's time a step \(3.10×, middle half [\d.× to]+\)\.", text)
    assert list(plots.table(comparison)["efficiency"]) == ["100.0%", "91.0%", "–"]
    assert "DDP ×2 · O1-bf16: 3.10×" in plots.speed_up(comparison)[1]


def test_a_slower_run_reads_slower():
    text = said(planted(speed=0.5))
    assert "DDP ×2 was slower: it took 2.0 times the baseline's time a step (0.50×, middle half" in text
    assert "faster" not in text


def test_no_difference_is_none_and_a_doubtful_one_is_doubted():
    assert "DDP ×2 took about the baseline's time a step (1.01×, middle half" in said(planted(speed=1.01))
    text = said(planted(speed=1.04))
    assert "DDP ×2 made no difference beyond the noise: 1.04× the baseline's speed a step" in text
    assert "middle halves of their steps overlap" in text and "efficiency" not in text


def test_a_faster_step_in_a_slower_run_is_pointed_out():
    text = said(planted(speed=1.8, start=5.0))
    assert "slower, although its steps were faster" in text and "most of that start (5.0 s)" in text
    assert "although" not in said(planted(speed=1.8, start=0.0))


@pytest.mark.parametrize(
    ("prediction", "verdict"),
    [(1.85, "right within 5%"), (2.7, "50% too high"), (0.9, "50% too low"), (18, "10 times what was measured")],
)
def test_prediction_against_measurement(prediction, verdict):
    text = said(planted(speed=1.8, prediction=prediction))
    assert "was predicted for DDP ×2 and 1.80× measured: the prediction was " + verdict in text


def test_accuracy_and_why_it_can_differ():
    assert "DDP ×2 is as accurate as the baseline: 90.0% of 1000 test images" in said(planted())
    text = said(planted(accuracy=0.85), planted(devices=4, accuracy=0.8))
    assert "85.0% of 1000 test images correctly, the baseline 90.0% (5.0 points less)" in text
    assert text.count("BatchNorm, where the model has it, sees the local batch") == 1
    assert "differ in epochs, lr" in said(planted(accuracy=0.85, lr=0.1, epochs=3))
    text = said(planted(accuracy=None))
    assert "Accuracy was not measured on both; the final loss of DDP ×2 is 1.42" in text
    assert "can differ" not in text


def test_a_failed_run_is_said_with_its_error():
    error = "RankError: rank 1 failed. The traceback:\n\nTraceback (most recent call last):\n  …\nValueError: no data"
    assert "DDP ×2 has no numbers to compare, its run failed: ValueError: no data." in said(failed(error))


def test_other_batches_are_compared_by_image():
    assert "time an image" in said(planted(speed=1.5, global_batch=128))


def test_text_fits_a_terminal():
    records = [*ladder().records, failed(devices=4), planted(label="a long name " * 8), planted(label="四个设备的运行")]
    lines = single.text(Comparison(records)).splitlines()
    assert max(map(single._width, lines)) <= 100
    assert lines[0].startswith("run") and "speed-up" in lines[0] and "accuracy" in lines[0]
    end = single._width(lines[0][: lines[0].index("speed-up")]) + len("speed-up")
    for line, factor in zip(lines[2:], ("1.00×", "0.55×", "1.82×", "–"), strict=False):
        assert line[:end].endswith(factor)
    assert any(line.startswith("- DDP ×2 took 0.55 of the baseline's") for line in lines)


def test_without_accuracy_the_loss_stays_beside_the_speed():
    records = [baseline(accuracy=None), planted(accuracy=None, label="a name that is forty characters long ...")]
    head = single.text(Comparison(records)).splitlines()[0]
    assert "final loss" in head and "accuracy" not in head


def test_write_leaves_four_sound_files(tmp_path):
    comparison = ladder()
    paths = single.write(comparison, tmp_path / "new" / "folder")
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted(p.name for p in paths.values())
    ElementTree.parse(paths["plot"])
    Image.open(paths["picture"]).verify()
    rows = list(csv.DictReader(io.StringIO(paths["table"].read_text(encoding="utf-8"))))
    assert [row["label"] for row in rows] == ["baseline", "DataParallel ×2", "DDP ×2"]
    assert float(rows[2]["speed_up"]) == pytest.approx(1.82)
    first = {name: path.read_bytes() for name, path in paths.items()}
    single.write(ladder(), tmp_path / "new" / "folder")
    assert {name: path.read_bytes() for name, path in paths.items()} == first


def test_a_write_that_fails_leaves_the_old_files(tmp_path, monkeypatch):
    paths = single.write(ladder(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(places.os, "replace", full)
    for name in ("picture", "report"):
        with pytest.raises(OSError, match="No space"):
            places.replace_file(paths[name], b"new" if name == "picture" else "new")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


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


def page(comparison, folder):
    text = single.write(comparison, folder)["report"].read_text(encoding="utf-8")
    return text, Page(text)


def test_the_page_asks_for_nothing_outside(tmp_path):
    text, parsed = page(ladder(), tmp_path)
    assert "http" not in text and "//" not in re.sub(r"base64,[^\"]*", "", text)
    assert not {"script", "link", "iframe", "a"} & {tag for tag, _ in parsed.tags}
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert len(images) == 2 and all(image["src"].startswith("data:image/svg+xml;base64,") for image in images)
    assert images[0]["alt"] == plots.speed_up(ladder())[1]
    assert ("html", {"lang": "en"}) in parsed.tags and "prefers-color-scheme: dark" in text


def test_the_page_tells_everything(tmp_path):
    text, parsed = page(ladder(), tmp_path)
    scopes = [attributes.get("scope") for tag, attributes in parsed.tags if tag == "th"]
    assert set(scopes) == {"row", "col"}
    for sentence, run in single.reading(ladder()):
        assert sentence in parsed.text and run in parsed.text
    assert text.count('<th scope="row">DataParallel ×2 (CPU threads)</th>') == 2
    for word in ("Some CPU", "some system", "c0ffee", "global_batch", "evaluation", "1 / 2", "1.82×"):
        assert word in parsed.text


def test_texts_from_records_are_escaped(tmp_path):
    evil = planted(label=EVIL)
    evil["measured"]["note"] = EVIL
    machine = evil["environment"]["machine"]
    machine["name"] = EVIL
    comparison = Comparison([baseline(), evil, failed(EVIL, devices=4)])
    comparison.baseline["config"]["model"] = comparison.baseline["environment"]["machine"]["name"] = EVIL
    text, parsed = page(comparison, tmp_path)
    assert "script" not in {tag for tag, _ in parsed.tags} and "alert('&')" in parsed.text
    assert "\x1b" not in text and "\x1b" not in single.text(comparison)
    assert "<script" not in comparison._repr_html_() and "<script" not in (tmp_path / "speedup.svg").read_text("utf-8")
