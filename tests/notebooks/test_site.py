"""The static site: pages whose links and pictures are all there."""

import os
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from kernel import ROOT

from tools.site import __main__ as site

# The site. `make site` has its own environment; it is made here if there is none.


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site; SITE names one that is built already."""
    if os.environ.get("SITE"):
        return Path(os.environ["SITE"])
    made = subprocess.run(["sh", "tools/bootstrap.sh", "site"], cwd=ROOT, capture_output=True, text=True, timeout=1800)
    if made.returncode:
        pytest.skip(f"the environment of the site cannot be made here: {made.stderr.strip()[-300:]}")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [ROOT / ".venv-site/bin/python", "-m", "tools.site", "--to", folder]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1800)
    return folder


class Read(HTMLParser):
    """Addresses, ids and pictures of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.ids, self.pictures = [], [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "img":
            self.pictures.append(attributes)
        for name in {"href", "src", "data"} & set(attributes):
            (self.links if tag == "a" else self.loaded).append(attributes[name])


def html_pages(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.html") if path.name != "webpack-macros.html")


@pytest.mark.long
def test_every_link_and_picture_is_there(built):
    """All pages are built; their links, anchors and files exist; pictures say what they show."""
    read = cache(Read)
    pages, missing = html_pages(built), []
    assert {Path(address) for address in site.pages(ROOT).values()} <= set(pages)
    for page in pages:
        for target in read(built / page).links + read(built / page).loaded:
            parts = urlsplit(target)
            if parts.scheme and target not in read(built / page).loaded:
                continue
            path = (built / page.parent / unquote(parts.path)) if parts.path else built / page
            if parts.netloc or not path.is_file():
                missing.append((str(page), target))
            elif parts.fragment and path.suffix == ".html" and unquote(parts.fragment) not in read(path.resolve()).ids:
                missing.append((str(page), target))
        silent = [picture["src"] for picture in read(built / page).pictures if not picture.get("alt", "").strip()]
        assert not silent, (page, silent)
    assert not missing, missing
