"""What people touch, in JupyterLab in a real browser: the panel, its Stop button, runs in the background, the form."""

import re

import browser
import lab
import pytest
from kernel import wait_until

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())]

READABLE = 4.5  # contrast of text, WCAG 2.1 AA
STATES = re.compile(r"\b(waiting|running|done|stopped|left out|FAILED)\b")
RUNS = "panel.ipynb"
IMPORTS = """
import time
import helpers, torch
from helpers import RunConfig

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3 * 32 * 32, 10)

    def forward(self, images):
        time.sleep(0.02)  # long runs that leave the cores to others
        return self.linear(images.flatten(1))

def config(label, steps):
    return RunConfig(model=Slow, steps=steps, evaluate=False, label=label)

helpers.prepare_launcher()
"""


@pytest.fixture(scope="module")
def page():
    """A tab of a browser that shows a JupyterLab; `page.lab` is the latter."""
    with lab.started() as jupyter:
        jupyter.write(
            RUNS,
            imports=IMPORTS,
            blocks="helpers.compare([config('a long run', 20_000), config('another', 20_000)])",
            first="first = helpers.run(config('the first run', 20_000), background=True)",
            other="print(6 * 7, first.status)",
            second="second = helpers.run(config('the second run', 20), background=True)",
        )
        with browser.tab(jupyter.url) as tab:
            yield browser.Page(jupyter, tab)


@pytest.fixture(autouse=True)
def a_page_in_order(page):
    """Whatever a test does: the console holds no error, and nothing is asked of another machine."""
    page.tab.problems.clear()
    yield
    if any(session["kernel"]["execution_state"] != "idle" for session in page.lab.sessions(page.name)):
        page.lab.shut_down(page.name)  # the test failed in the middle of a run: the next one is not to wait for it
    assert not page.tab.problems


def open_after(page, name, cell):
    """Open a notebook and run this cell of it."""
    page.open(name)
    page.run(cell)
    page.wait_done(cell)


def bars(page, cell):
    """The values of the progress bars below a cell, in percent."""
    return page.cell(cell).evaluate("cell => [...cell.querySelectorAll('progress')].map(bar => 100 * bar.value)")


def states(page, cell):
    """What the rows of the panels below a cell say of their runs, in words."""
    return STATES.findall(" ".join(page.cell(cell).locator(".helpers-state").all_text_contents()))


def until(page, condition, what):
    """Wait for `condition()` as long as a busy machine may take."""
    assert wait_until(lambda: page.pause() or condition(), lab.PATIENCE) is not None, what()


def assert_moves(page, cell):
    """The bars below a cell move."""
    until(page, lambda: "running" in states(page, cell), lambda: f"nothing runs below {cell}: {states(page, cell)}")
    before = sum(bars(page, cell))
    until(page, lambda: sum(bars(page, cell)) > before, lambda: f"no bar moves: {before}")


def stop_button(page, cell):
    return page.cell(cell).get_by_role("button", name="Stop").first


def assert_image(image):
    """A picture is there, and large enough to see something in it."""
    image.wait_for()
    assert min(image.evaluate("image => [image.naturalWidth, image.naturalHeight, image.width, image.height]")) > 100


def test_without_a_mouse_and_in_the_dark(page):
    """Tab reaches Stop and Enter presses it; words tell the states, and can be read in both themes."""
    cell = "blocks"
    open_after(page, RUNS, "imports")
    page.run(cell)
    assert_moves(page, cell)
    bar = page.cell(cell).get_by_role("progressbar", name=re.compile("a long run.*running"))
    assert bar.count() == 1 and states(page, cell) == ["running", "waiting"]
    for theme in ("Dark", "Light"):
        page.theme(theme)
        assert_readable(page, cell)

    page.cell(cell).locator(".cm-content").click()
    page.tab.keyboard.press("Escape")
    focused = "[...document.querySelectorAll('button')].includes(document.activeElement) && document.activeElement"
    for _ in range(40):
        page.tab.keyboard.press("Tab")
        if "Stop" in page.tab.evaluate(f"({focused} || {{}}).textContent || ''"):
            break
    assert page.tab.evaluate(f"getComputedStyle({focused}).outlineStyle") != "none"  # one can see where one is
    page.tab.keyboard.press("Enter")
    page.wait_done(cell)
    until(page, lambda: states(page, cell)[0] == "stopped", lambda: states(page, cell))
    assert page.lab.records()[-1]["status"] == "stopped"
    assert_readable(page, cell)


def assert_readable(page, cell):
    """Each text of the panel or form below a cell stands out from what is behind it."""

    def faint():
        contrasts = page.contrasts(cell)
        return {text: contrast for text, contrast in contrasts.items() if contrast < READABLE} or len(contrasts) <= 3

    until(page, lambda: not faint(), faint)  # a theme takes effect by and by


def test_runs_in_the_background(page):
    """Other cells answer meanwhile, the next run waits, and a new page finds the panel and can stop the run."""
    open_after(page, RUNS, "imports")
    earlier = len(page.lab.records())
    page.run("first")
    assert_moves(page, "first")
    page.run("other")
    page.wait_done("other")
    assert page.output("other").split() == ["42", "running"]
    page.run("second")
    until(page, lambda: "for the first run" in page.output("second"), lambda: page.output("second"))
    assert states(page, "second") == ["waiting"]

    page.save()
    page.reload()
    page.wait_idle()
    assert_moves(page, "first")  # the panel is back where it was
    stop_button(page, "first").click()
    until(page, lambda: len(page.lab.records()) == earlier + 2, lambda: page.lab.records())
    assert [record["status"] for record in page.lab.records()[earlier:]] == ["stopped", "completed"]
    until(page, lambda: not page.lab.ranks(RUNS), lambda: "ranks are left")


def test_choose_and_run(page):
    """The form above the report: what is impossible is refused with its reason, what is possible is run and shown."""
    name, cell = "10_report.ipynb", "report-form-show"
    page.lab.copy(name)
    open_after(page, name, "report-imports")
    page.run(cell)
    form = page.cell(cell)
    run = form.get_by_role("button", name="Run the comparison")
    run.wait_for()
    assert_readable(page, cell)
    records = len(page.lab.records())
    batch = form.get_by_role("textbox", name="global batch")
    batch.fill("65")
    batch.press("Tab")
    form.get_by_role("alert").get_by_text("65 cannot be split evenly").wait_for()
    assert run.is_disabled()
    run.click(force=True)
    page.pause(1)
    assert_readable(page, cell)
    assert not states(page, cell) and len(page.lab.records()) == records

    form.get_by_label("model").select_option("resnet8 – 8 layers, 78 thousand weights")
    batch.fill("32")
    form.get_by_role("textbox", name="steps").fill("12")
    strategy = form.get_by_label("strategy", exact=True)
    strategy.focus()
    strategy.press("d")  # the first letter chooses; JupyterLab keeps the arrow keys for itself
    form.get_by_text("Ready.").wait_for()
    wanted = "global_batch=32, steps=12", 'strategy="data_parallel"'
    until(page, lambda: all(text in form.text_content() for text in wanted), form.text_content)
    run.click()
    assert_image(form.locator("figure img"))
    assert form.locator("table tbody tr").count() == 2 and set(states(page, cell)) == {"done"}
    assert [record["status"] for record in page.lab.records()[records:]] == 2 * ["completed"]
    assert not page.failures()
    assert_readable(page, cell)
    page.lab.shut_down(name)
