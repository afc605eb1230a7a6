"""What a teacher prints and shows."""

import json
import re

import browser
import pytest

from helpers import device
from tools import cheatsheet, preflight
from tools.slides import __main__ as slides


@pytest.mark.skipif(not browser.program(), reason="no Chromium is on the path")
def test_the_cheat_sheet_is_one_page(tmp_path):
    assert cheatsheet.main(["--to", str(tmp_path)]) == 0
    for language in cheatsheet.PAGES:
        pages = re.findall(rb"/Type\s*/Page\b", (tmp_path / f"{language}.pdf").read_bytes())
        assert len(pages) == 1, language


def test_without_a_browser_there_is_the_page_and_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cheatsheet, "BROWSERS", ("no-such-browser",))
    assert cheatsheet.main(["--to", str(tmp_path)]) == 1
    text = (tmp_path / "zh.html").read_text(encoding="utf-8")
    assert "all_reduce" in text and not re.search("https?://", text)
    assert "open" in capsys.readouterr().err


def test_preflight_says_what_runs_here_and_writes_it_for_the_teacher(tmp_path, capsys):
    assert preflight.main(["--to", str(tmp_path / "me" / "a.json")]) == 0
    report = json.loads((tmp_path / "me" / "a.json").read_text(encoding="utf-8"))
    found = {one["name"]: one for one in report["findings"]}
    assert report["ready"] and found["two ranks, gloo"]["facts"]["sums"] == [3.0, 3.0]
    assert found["cores"]["facts"]["cores"] == device.usable_cores()
    said = capsys.readouterr().out
    assert all(one["text"] in said for one in found.values()) and "Ready" in said


@pytest.mark.parametrize(
    "break_it, name",
    [
        (lambda patch: patch.setattr(preflight.releases, "version_of", lambda package: None), "python"),
        (lambda patch: patch.setattr(preflight, "launch", _refused), "two ranks, gloo"),
        (lambda patch: patch.setattr(preflight.shortage, "check_ports", _shortage), "ports"),
    ],
)
def test_preflight_names_what_every_notebook_needs_and_lacks(tmp_path, monkeypatch, capsys, break_it, name):
    if name != "two ranks, gloo":
        monkeypatch.setattr(preflight, "launch", lambda *_, **__: [3.0, 3.0])
    preflight.releases.check.cache_clear()
    break_it(monkeypatch)
    try:
        assert preflight.main(["--to", str(tmp_path / "a.json")]) == 1
    finally:
        preflight.releases.check.cache_clear()
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert name in [one["name"] for one in report["findings"] if one["needed"] and one["can"] == "no"]
    assert "[cannot]" in capsys.readouterr().out


def _refused(*_, **__):
    raise RuntimeError("no ranks here\nmore")


def _shortage(_):
    raise preflight.shortage.Shortage("no ports")


def test_a_deck_asks_before_it_answers(tmp_path):
    assert slides.main(["00_start_here", "--to", str(tmp_path)]) == 0
    for page in (tmp_path / "00_start_here.html", tmp_path / "zh" / "00_start_here.html"):
        text = page.read_text(encoding="utf-8")
        body = text[text.index('<div class="slides">') : text.index("<script>")]
        sections = re.findall(r"<section>.*?</section>", body, re.DOTALL)
        assert len(sections) > 12 and all(re.search("<h[123]", one) for one in sections)
        assert (
            body.index('class="predict"') < body.index("good morning from rank 0") and "exercises.solution" not in body
        )
        assert re.search(r">prediction<.*\.\.\.", body) and "A solution" not in body and "cell-id" not in body
        assert not re.search(r"<(?:img|link|script)[^>]*(?:src|href)=.(?!data:)", body)


def test_a_deck_of_no_notebook_is_refused(capsys):
    with pytest.raises(SystemExit):
        slides.main(["99_nothing"])
    assert "there is no notebook '99_nothing'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())
def test_slides_are_shown_without_a_network(tmp_path):
    slides.main(["00_start_here", "--to", str(tmp_path)])
    address = (tmp_path / "00_start_here.html").as_uri()
    with browser.tab(address) as tab:
        tab.goto(address)
        tab.wait_for_function("Reveal.isReady()")
        assert tab.evaluate("Reveal.getTotalSlides()") > 12
        tab.keyboard.press("ArrowRight")
        assert tab.evaluate("Reveal.getIndices().h") == 1 or tab.evaluate("Reveal.getIndices().f") == 0
        assert not tab.problems
