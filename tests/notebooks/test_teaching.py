"""What a teacher prints and shows."""

import re

import browser
import pytest

from tools import cheatsheet


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
