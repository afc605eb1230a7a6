"""The form's controls. What they mean, and whether it can be, is decided by `Choice`."""

import asyncio
import threading

import ipywidgets

from ... import device
from ...config import SETTINGS, STRATEGIES
from ...launcher.errors import RunStopped
from ...launcher.language import local, marked
from .. import ladder
from . import page
from .choice import SCHEDULE, TITLE, Choice, from_words, more_settings
from .refusal import UNITS, noun

DESCRIBED = {"description_width": "6.5rem"}
SMALL = ("batch", "length", "unit")  # controls that share a line
MANY = (marked("as many devices"), marked("as many devices, each played by a process of the CPU"))  # the latter on CPUs
GOES_ON = ("queued", "running")


class Form:
    """The form as a widget (`box`); `choice` is what it shows now.

    Args:
        kind: of the devices (default: the best there is).

    Raises:
        ValueError: there is no such device here.
    """

    def __init__(self, kind=None):
        first = Choice.sensible(kind)
        self.device, self._loop = first.device, _running_loop()
        self.controls = _controls(first, device.machine(kind))
        self.more = {one.name: _control(one) for one in more_settings()}
        self._untouched = {name: control.value for name, control in self.more.items()}
        self.prediction = ipywidgets.Text(
            description=local("How many times as fast do you expect it to be? (may stay empty)"),
            placeholder="1.8",
            style={"description_width": "initial"},
            layout={"width": "auto"},
        )
        self.prediction.add_class("helpers-expected")
        self.button = ipywidgets.Button(description=local("Run the comparison"), icon="play", button_style="primary")
        self.button.layout = ipywidgets.Layout(width="13rem", flex="0 0 auto")
        self.verdict, self.blocks, self.runs = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.VBox()
        self.verdict.layout.flex = "1 1 18rem"
        for control in (*self.controls.values(), *self.more.values(), self.prediction):
            control.observe(lambda change: self._changed(), names="value")
        self.button.on_click(lambda button: self._pressed())
        wrapped = {"flex_flow": "row wrap", "align_items": "flex-start", "grid_gap": "0 14px"}
        row = ipywidgets.HBox([self.button, self.verdict], layout=wrapped)
        both, alone = ([self.more[one.name] for one in more_settings() if bool(one.only) == of] for of in (False, True))
        titles = [local("More, for both runs"), local("More, for the choice alone")]
        more = ipywidgets.Accordion([ipywidgets.VBox(both), ipywidgets.VBox(alone)], titles=titles)
        self.box = ipywidgets.VBox(
            [ipywidgets.HTML(page.STYLE), _arranged(self.controls), more, self.prediction, row, self.blocks, self.runs]
        )
        self.box.add_class("helpers-form")
        self._changed()

    @property
    def choice(self) -> Choice:
        """What is chosen; a factor that is no number stays as it was typed, for `Choice.refusal` to object to."""
        typed = self.prediction.value
        try:
            typed = from_words(typed)
        except ValueError:
            pass
        chosen = {name: control.value for name, control in self.controls.items()}
        changed = [name for name, control in self.more.items() if control.value != self._untouched[name]]
        more = {name: _value(SETTINGS[name], self.more[name].value) for name in changed}
        return Choice(**chosen, prediction=typed, device=self.device, more=more)

    def _changed(self):
        """Bring everything below the controls up to date."""
        choice = self.choice
        refusal = choice.refusal()
        self.controls["strategy"].disabled = choice.ranks == 1  # one device needs none
        self.button.disabled = refusal is not None
        self.verdict.value = page.verdict(choice, refusal)
        self.blocks.value = page.blocks(choice, refusal)
        return None if refusal else choice

    def _pressed(self):
        choice = self._changed()  # a field that was left by pressing the button, a set that has gone meanwhile
        if choice is None:
            return
        configs = choice.configs()
        label = configs[-1].label
        run = Shown(label, self._loop)
        self.runs.children = (run.box, *self.runs.children)
        expected = None if choice.prediction is None else {label: choice.prediction}
        run.head.value = page.state(label, "starting")
        with run.panel:
            try:
                handle = ladder.compare(configs, prediction=expected, name=TITLE, background=True)
            except (ValueError, TypeError, OSError, RuntimeError) as error:  # a set that could not be made
                run.head.value = page.error(label, error)
                return
        threading.Thread(target=run.follow, args=(handle,), name=f"form: {label}", daemon=True).start()


class Shown:
    """One comparison below the form: how it stands, its panel, and what came out."""

    def __init__(self, label, loop):
        self.label, self._loop = label, loop
        self.head, self.panel, self.result = ipywidgets.HTML(), ipywidgets.Output(), ipywidgets.HTML()
        self.box = ipywidgets.VBox([self.head, self.panel, self.result], layout={"margin": "14px 0 0"})

    def follow(self, handle):
        """Say how the run of `handle` stands until it is over, then show what came of it."""
        while (status := handle.status) in GOES_ON:
            self.head.value = page.state(self.label, status)
            try:
                handle.result(timeout=0.5)
            except Exception:  # not yet done, or what is said below
                pass
        if self._loop is None or self._loop.is_closed():
            self.end(handle)
        else:  # drawing changes settings of matplotlib, and another cell may draw in the kernel's main thread
            self._loop.call_soon_threadsafe(self.end, handle)

    def end(self, handle):
        """Show what came of it."""
        try:
            made = handle.result()
        except RunStopped:
            self.head.value = page.state(self.label, "stopped")
        except Exception as error:
            self.head.value = page.error(self.label, error)
        else:
            self.head.value, self.result.value = "", page.result(made)


def _controls(first, here):
    """The fields of a Choice -> controls, in the order in which Tab goes through them."""
    many = local(MANY[here.kind == "cpu"])
    ranks = [(f"1 – {local('one device')}", 1)] + [(f"{n} – {many}", n) for n in range(2, here.count + 1)]
    lists = {
        "model": _options("model"),
        "data": _options("data"),
        "ranks": ranks,
        "strategy": [(local(one.summary), name) for name, one in STRATEGIES.items() if name != "baseline"],
        "precision": _options("precision"),
        "compiler": _options("compiler"),
    }
    made = {name: _dropdown(local(noun(name)), these, getattr(first, name)) for name, these in lists.items()}
    for name, meaning in (("batch", SETTINGS["global_batch"].help), ("length", marked("of the training"))):
        made[name] = ipywidgets.IntText(
            description=local(noun(name)), value=getattr(first, name), tooltip=local(meaning), style=DESCRIBED
        )
    made["unit"] = _dropdown(local("counted in"), [(local(unit), unit) for unit in UNITS], first.unit)
    return made


def _control(setting):
    """A control for a setting without a field of its own, made from its description."""
    value = SCHEDULE if setting.name == "schedule" else setting.default
    about = local(setting.help)
    look = {"description": local(setting.noun), "tooltip": about, "style": DESCRIBED, "layout": {"width": "auto"}}
    if setting.type is bool:
        return ipywidgets.Checkbox(value=value, **{**look, "description": about})
    if setting.choices:
        return ipywidgets.Dropdown(options=_options(setting.name), value=value, **look)
    return ipywidgets.Text(value="" if value is None else f"{value}", placeholder=about, **look)


def _value(setting, shown):
    """What a control of `_control` means; a number that is none stays text, for the check to object to."""
    if not isinstance(shown, str) or setting.choices:
        return shown
    try:
        return setting.type(shown) if shown.strip() else setting.default
    except ValueError:
        return shown


def _options(name):
    """[("fp32 – 32 bits throughout", "fp32"), …] for a list to choose from."""
    return [(f"{value} – {local(meaning)}", value) for value, meaning in SETTINGS[name].choices.items()]


def _dropdown(name, options, value):
    layout = {"width": "auto"}
    return ipywidgets.Dropdown(description=name, options=options, value=value, style=DESCRIBED, layout=layout)


def _arranged(controls):
    """A line for each list, one for the small controls; lines break where there is little room."""
    for name in SMALL:
        controls[name].layout.width = "13rem"
    line = ipywidgets.HBox([controls[name] for name in SMALL], layout={"flex_flow": "row wrap", "grid_gap": "0 18px"})
    lists = [control for name, control in controls.items() if name not in SMALL]
    return ipywidgets.VBox([*lists, line], layout={"align_items": "stretch"})


def _running_loop():
    """The kernel's event loop, or None outside a kernel."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
