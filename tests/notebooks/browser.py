"""Chromium for tests, with a notebook in it: what a reader sees and does with mouse and keyboard."""

import re
import shutil
import sys
from contextlib import contextmanager
from importlib.util import find_spec

from kernel import wait_until
from lab import PATIENCE

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --force-color-profile=srgb"
).split()
FAILED = "application/vnd.jupyter.stderr", "application/vnd.jupyter.error"

# A text stands on all backgrounds of the elements around it, the nearest on top, and may be translucent itself.
CONTRASTS = """cell => {
    const parse = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((value, k) => a * value + (1 - a) * below[k]);
    const linear = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const around = element => element ? [...around(element.parentElement), element] : [];
    const found = {};
    for (const element of cell.querySelectorAll('.helpers-panel *, .helpers-form *, .jupyter-button')) {
        const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join('').trim();
        if (!text || element.disabled || !element.checkVisibility()) continue;
        const styles = around(element).map(getComputedStyle);
        const behind = styles.reduce((below, style) => over(parse(style.backgroundColor), below), [255, 255, 255]);
        const [r, g, b, a = 1] = parse(styles.at(-1).color);
        const opacity = styles.reduce((product, style) => product * style.opacity, a);
        const [dark, bright] = [light(over([r, g, b, opacity], behind)), light(behind)].sort((x, y) => x - y);
        found[text] = (bright + 0.05) / (dark + 0.05);
    }
    return found;
}"""


def why_not() -> str:
    """Why there can be no browser test here, or ""."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install -e '.[test]'"
    if sys.platform != "linux":
        return "the processes of the lab are followed in /proc, which only Linux has"
    return "" if program() else f"no {' or '.join(BROWSERS[:3])} on the path (on Debian: apt install chromium)"


@contextmanager
def tab(address):
    """A tab of Chromium; `tab.problems` lists errors of its console and what it asked of other hosts than `address`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        tab = chromium.new_page(viewport={"width": 1280, "height": 1100}, locale="en-US")
        tab.set_default_timeout(1000 * PATIENCE)
        tab.problems = []

        def asked(request):
            if not request.url.startswith((address, address.replace("http", "ws", 1), "data:", "blob:")):
                tab.problems.append(request.url)

        tab.on("request", asked)
        tab.on("websocket", asked)
        tab.on("console", lambda message: message.type == "error" and tab.problems.append(message.text))
        tab.on("pageerror", lambda error: tab.problems.append(str(error)))
        yield tab
        chromium.close()


class Page:
    """A tab with a notebook in it, and what a reader does there."""

    def __init__(self, lab, tab):
        self.lab, self.tab, self.name = lab, tab, ""
        self.tab.on("dialog", lambda dialog: dialog.accept())  # "leave the page?"

    def open(self, name):
        """Show a notebook and wait until its kernel can be used."""
        self.name = name
        self.tab.goto(f"{self.lab.url}/lab/tree/{name}?token={self.lab.token}&reset", wait_until="domcontentloaded")
        self.wait_idle()

    def reload(self):
        """As the browser's own button does."""
        self.tab.reload(wait_until="domcontentloaded")
        self.tab.locator(".jp-Notebook .jp-CodeCell").first.wait_for()

    def wait_idle(self):
        """Wait until the kernel waits for work: earlier clicks on Run would be dropped without a word."""
        self.tab.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
        self.tab.locator("#jp-main-statusbar").get_by_text("| Idle").first.wait_for()

    def cell(self, cell_id):
        """The cell with this id in the file."""
        number = next(k for k, cell in enumerate(self.lab.read(self.name).cells) if cell.id == cell_id)
        return self.tab.locator(".jp-Notebook .jp-Cell").nth(number)

    def prompt(self, cell_id):
        """What stands before the cell: "[*]:" while it runs or waits, "[5]:" afterwards."""
        return self.cell(cell_id).locator(".jp-InputPrompt").text_content().strip()

    def wait_done(self, cell_id, seconds=PATIENCE):
        """Wait until the cell has been run."""
        done = wait_until(lambda: self.pause() or re.fullmatch(r"\[\d+\]:?", self.prompt(cell_id)), seconds)
        assert done is not None, f"cell {cell_id} is at {self.prompt(cell_id)} after {seconds} s"

    def pause(self, seconds=0.1):
        """Let the page go on; time.sleep would keep its messages from arriving."""
        self.tab.wait_for_timeout(1000 * seconds)

    def _order(self, give, taken):
        """Give an order until it is taken: JupyterLab drops some."""
        for _ in range(5):
            give()
            for _ in range(300):  # half a minute: an order that is taken late is not to be given twice
                if taken():
                    return
                self.pause()
        raise AssertionError("JupyterLab did not take the order to run")

    def menu(self, bar, *entries):
        """Choose an entry of the menu bar, with the mouse."""
        self.tab.locator(".lm-MenuBar-item").get_by_text(bar, exact=True).click()
        for entry in entries:
            self.tab.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()

    def run(self, cell_id):
        """Run one cell: click beside it, since a folded one shows no editor, then on the toolbar's triangle."""
        before = self.prompt(cell_id)
        triangle = self.tab.locator(".jp-NotebookPanel-toolbar [data-command='notebook:run-cell-and-select-next']")

        def click():
            self.cell(cell_id).locator(".jp-InputPrompt").click()
            triangle.click()

        self._order(click, lambda: self.prompt(cell_id) != before)

    def output(self, cell_id):
        """The text below a cell."""
        return self.cell(cell_id).locator(".jp-Cell-outputArea").text_content()

    def save(self):
        """Save, and wait until it is on disk."""
        before = (self.lab.folder / self.name).stat().st_mtime_ns
        self.tab.locator(".jp-NotebookPanel-toolbar [data-command='docmanager:save']").click()
        written = lambda: self.pause() or (self.lab.folder / self.name).stat().st_mtime_ns != before  # noqa: E731
        assert wait_until(written, PATIENCE) is not None, "the notebook was not saved"

    def theme(self, name):
        """Menu Settings, Theme."""
        self.menu("Settings", "Theme", f"JupyterLab {name}")
        self.tab.locator(f"body[data-jp-theme-name='JupyterLab {name}']").wait_for(state="attached")
        self.pause(0.5)  # the style sheet takes effect

    def contrasts(self, cell_id):
        """The contrast (WCAG 2.1: 1 to 21) of each text in the panels and forms below a cell with what is behind it."""
        return self.cell(cell_id).evaluate(CONTRASTS)

    def failures(self):
        """What cells wrote to stderr, and their exceptions."""
        return self.tab.locator(", ".join(f"[data-mime-type='{mime}']" for mime in FAILED)).all_text_contents()


def program():
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)
