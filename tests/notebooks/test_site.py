"""The static site: pages that lead somewhere, need no other host, and can be read by everyone."""

import os
import re
import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

import browser
import pytest
from kernel import ROOT
from PIL import Image

from tools.site import __main__ as site

AXE = "axe-core@4.10.3"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
PHONE, SCREEN = {"width": 390, "height": 844}, {"width": 1280, "height": 1100}
# Code has thousands of coloured words, and axe-core needs 10 ms for one: one of each colour on each ground stays.
ONE_OF_EACH_COLOUR = """() => {
    const seen = new Set();
    for (const word of document.querySelectorAll('.highlight pre span')) {
        const kind = word.className + ' on ' + word.closest('.cell_input, .cell_output, main').className;
        if (seen.has(kind)) word.replaceWith(...word.childNodes);
        seen.add(kind);
    }
}"""
# Blocks of prose that are wider than their place; tables, code and formulas scroll in themselves.
TOO_WIDE = """() => [...document.querySelectorAll('.bd-article :is(p, li, dd, dt, h1, h2, h3, summary)')]
    .filter(one => one.clientWidth && one.scrollWidth > one.clientWidth + 1).map(one => one.textContent.slice(0, 80))"""
in_browser = pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())


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
        for name in {"href", "src", "data"} & set(attributes) if tag != "base" else ():
            (self.links if tag == "a" else self.loaded).append(attributes[name])


def html_pages(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.html") if path.name != "webpack-macros.html")


@pytest.mark.long
def test_every_link_and_picture_is_there(built):
    """All pages are built; their links, anchors and files exist; pictures say what they show."""
    read = cache(Read)
    assert "OWNER" not in (built / "notebooks/00_start_here.html").read_text(encoding="utf-8")
    pages, missing = html_pages(built), []
    assert {Path(address) for address in site.pages(ROOT).values()} <= set(pages)
    for page in pages:
        for target in read(built / page).links + read(built / page).loaded:
            parts = urlsplit(target)
            carried = parts.scheme == "data"  # the address is the content
            if carried or parts.scheme and target not in read(built / page).loaded:
                continue
            path = (built / page.parent / unquote(parts.path)) if parts.path else built / page
            if parts.netloc or not path.is_file():
                missing.append((str(page), target))
            elif parts.fragment and path.suffix == ".html" and unquote(parts.fragment) not in read(path.resolve()).ids:
                missing.append((str(page), target))
        silent = [picture["src"] for picture in read(built / page).pictures if not picture.get("alt", "").strip()]
        assert not silent, (page, silent)
    for target in re.findall(r"\]\(([^)]+)\)", (built / "llms.txt").read_text(encoding="utf-8")):
        if not (built / target).is_file():
            missing.append(("llms.txt", target))
    assert not missing, missing


# In a browser


@contextmanager
def served(folder):
    """The address under which the folder can be read."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def open_tab(built):
    """A tab; `address` is that of the site."""
    with served(built) as address, browser.tab(address) as tab:
        tab.address = address
        tab.on("response", lambda reply: reply.status < 400 or tab.problems.append(f"{reply.status} {reply.url}"))
        yield tab


@pytest.fixture
def tab(open_tab):
    """The tab, for one test: no page that it opens has an error or needs another host."""
    open_tab.problems.clear()
    yield open_tab
    assert not open_tab.problems


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The script of axe-core."""
    folder = tmp_path_factory.mktemp("axe")
    if not shutil.which("npm"):
        pytest.skip("npm, which fetches axe-core, is not installed")
    fetched = subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, timeout=300)
    if fetched.returncode:
        pytest.skip(f"npm could not fetch {AXE}: {fetched.stderr.strip()[-200:]}")
    with tarfile.open(folder / fetched.stdout.split()[-1]) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def check_figure(tab, page):
    """The first figure of a page is shown as it is, dark on light, and around it is the ground of the page."""
    figures = tab.locator(".bd-article img").all()
    if not figures:
        return
    figures[0].evaluate("one => one.scrollIntoView({block: 'center'})")
    figures[0].evaluate("one => one.decode()")  # it is loaded when it comes into view
    box = figures[0].bounding_box()
    high = min(box["height"], 500)  # of a figure that is higher than the window, the middle
    clip = {"x": box["x"] - 8, "y": box["y"] + (box["height"] - high) / 2, "width": box["width"] + 16, "height": high}
    seen = Image.open(BytesIO(tab.screenshot(clip=clip))).convert("RGB")
    row = [seen.getpixel((x, seen.height // 2)) for x in range(seen.width)]
    assert {row[0], row[2], row[5], row[-4]} == {row[0]}, f"a slab around the figure of {page}"
    inside = seen.crop((8, 0, seen.width - 8, seen.height)).getcolors(1 << 24)
    ground = max(inside)[1]  # the colour that most of it has
    assert light(ground) > 0.8, f"the figure of {page} has lost its light ground"
    lights = sorted(light(colour) for _, colour in inside)
    assert (lights[-1] + 0.05) / (lights[0] + 0.05) >= 7, f"the figure of {page} lacks contrast"


def light(colour):
    """The relative luminance of WCAG 2.1."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (one / 255 for one in colour)]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@in_browser
@pytest.mark.long
@pytest.mark.parametrize("name", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(built, tab, axe, name):
    """axe-core finds nothing against WCAG 2.1 AA: contrast, names of links and buttons, alt texts, headings."""
    tab.set_viewport_size(PHONE if name == "light" else SCREEN)
    tab.goto(f"{tab.address}/index.html")
    tab.evaluate("name => { localStorage.mode = name; localStorage.theme = name }", name)
    tab.reload()
    assert tab.evaluate("document.documentElement.dataset.theme") == name
    found = {}
    for page in html_pages(built):
        tab.goto(f"{tab.address}/{page}", wait_until="networkidle")
        width = tab.evaluate("Math.max(...[...document.querySelectorAll('html, h1, h2')].map(one => one.scrollWidth))")
        assert width <= tab.viewport_size["width"], f"{page} is wider than the window"
        assert not tab.evaluate(TOO_WIDE), f"{page} has prose that is wider than its place"
        if name == "dark":
            check_figure(tab, page)
        tab.add_style_tag(content="* { animation: none !important; transition: none !important }")  # it fades in
        tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        tab.evaluate(ONE_OF_EACH_COLOUR)
        tab.evaluate(axe)
        # Its preload would read what style sheets import, under wrong addresses; only rules for videos need that.
        run = "rules => axe.run({runOnly: rules, resultTypes: ['violations'], preload: false})"
        for violation in tab.evaluate(run, RULES)["violations"]:
            for node in violation["nodes"]:
                found.setdefault(
                    (violation["id"], node["html"][:150], str(node.get("failureSummary"))[-160:]), []
                ).append(str(page))
    assert not found, "\n".join(f"{len(on)} times, {on[0]}: {what}" for what, on in found.items())


@in_browser
@pytest.mark.long
def test_search(tab):
    """A term is found; Chinese also within a sentence, beside English, and if only parts of the query are on a page."""
    pages = {
        "search.html?q=bucket": "03_ddp",
        "zh/search.html?q=进程": "03_ddp",
        "zh/search.html?q=DDP梯度桶": "03_ddp",
        "zh/search.html?q=多进程训练": "index",
        "zh/search.html?q=怎么保存检查点": "09_several_machines",
    }
    for query, page in pages.items():
        tab.goto(f"{tab.address}/{query}")
        tab.locator(f"#search-results li a[href*='{page}']").first.wait_for()
