"""`form()`: choose a training run from lists, see why it cannot be made, and compare it with a baseline.

A choice is {name of a setting of RunConfig: value}; what is not in it has its default.
"""

import asyncio
import shlex
from html import escape
from textwrap import indent

from .. import device as devices
from .. import plots
from ..config import ONLY, SETTINGS, ConfigError, RunConfig
from ..language import _
from ..measure import AT_LEAST
from ..plots import style
from ..settings import NO_OPTION
from .ladder import compare

NAME = "choose and run"  # of the comparisons, in their records
VARIED = ("strategy", "nproc_per_node", "precision", "compiler")  # the baseline has their defaults
FIRST = ("model", "data", *VARIED, "global_batch", "steps")
LEFT_OUT = {*FIRST, *NO_OPTION, "device"} - {*ONLY}
MORE = [name for name, setting in SETTINGS.items() if setting.type is not object and name not in LEFT_OUT]
# JupyterLab takes keys for itself unless a text field has the focus: in a list, "x" would cut the cell. The attribute
# leaves them to the list.
KEYS = (
    "this.closest('.helpers-form').addEventListener('focusin', event => event.target.matches('select') && "
    "event.target.setAttribute('data-lm-suppress-shortcuts', ''))"
)
CSS = ".helpers-form pre {overflow-x: auto} .helpers-form [class*=Collapse-header] {color: var(--jp-ui-font-color0)}"
STYLE = f'<style onload="{KEYS}">{CSS}</style>'
WRONG = "2px solid #d32f2f"


def form(device=None) -> None:
    """Show the form below the cell; where no widgets can be shown, the choice it would begin with, as text.

    The form writes the code and the command lines of what is chosen, and says what is wrong with it before anything
    starts. Its button runs `helpers.compare` in the background: the choice against one device in fp32 without a
    compiler, with the same model, data and global batch.

    Args:
        device: a device kind (default: the best there is, or what `choose_devices` has chosen).

    Raises:
        ValueError: there is no such device here.
    """
    from ..launcher import progress

    text = f"{_('Choose and run: JupyterLab, Jupyter Notebook, VS Code and Colab show a form here.')}\n\n"
    text += as_code(first_choice(device))
    if not progress.has_widgets():
        print(text)
        return
    from IPython.display import display

    view = {"version_major": 2, "version_minor": 0, "model_id": Form(device).box.model_id}
    display({"text/plain": text, "application/vnd.jupyter.widget-view+json": view}, raw=True)


# -- a choice -----------------------------------------------------------------------------


def first_choice(kind=None) -> dict:
    """All devices of a kind with DDP; or, of one device, what a compiler gains."""
    here = devices.machine(kind)
    chosen = {"global_batch": here.count * max(1, round(64 / here.count)), "steps": 100, "schedule": "cooldown"}
    if here.kind != (devices.accelerator_kind() or "cpu"):  # which a process started in a terminal would take
        chosen["device"] = here.kind
    if here.kind != "cpu":  # enough work for a device that is thousands of times faster than a core
        chosen.update(model="resnet50", global_batch=64 * here.count)
    one_or_all = {"compiler": "auto"} if here.count == 1 else {"strategy": "ddp", "nproc_per_node": here.count}
    return {**chosen, **one_or_all}


def configs(chosen) -> list:
    """[baseline, choice] as RunConfigs."""
    shared, own = _split(chosen)
    base = RunConfig(**shared)
    return [base, base.but(**own)]


def _split(chosen):
    """The settings of both runs, and those of the choice alone."""
    own = {name: value for name, value in chosen.items() if name in (*VARIED, *ONLY)}
    return {name: value for name, value in chosen.items() if name not in own}, own


def problem(chosen) -> Exception | None:
    """Why a choice cannot be run here, or None; a ConfigError names the settings to change. Starts nothing."""
    try:
        base, choice = configs(chosen)
        if base == choice:
            same = "this is the baseline itself (one device, fp32, no compiler), so there is nothing to compare"
            raise ConfigError(VARIED, same)
        for config in (base, choice):
            config.check_machine()
        if choice.compiler == "xla" and (kind := devices.machine(base.device).kind) != "cpu":
            two = f"XLA runs on the CPU here and the baseline on {kind}, so that two devices would be compared"
            raise ConfigError(["compiler"], f"{two}; choose another compiler, or use helpers.form(device='cpu')")
        least = base.warmup_steps + AT_LEAST
        if choice.steps and choice.steps < least:
            why = f"{base.warmup_steps} to warm up and {AT_LEAST} to be timed"
            raise ConfigError(["steps"], f"steps is {choice.steps}, and a speed-up takes {least}: {why}")
    except (ValueError, TypeError) as error:
        return error
    return None


def as_code(chosen, expected=None) -> str:
    """A choice as Python and as command lines that do what the button does, in the foreground."""
    shared, own = _split(chosen)
    prediction = f", prediction={{choice.label: {expected!r}}}" if expected else ""
    code = (
        "import helpers\n\n"
        f"baseline = helpers.RunConfig({_arguments(shared)})\n"
        f"choice = baseline.but({_arguments(own)})\n"
        f"comparison = helpers.compare([baseline, choice]{prediction})\n"
        "comparison.show()"
    )
    commands = "\n".join([_train(shared), _train({**shared, **own}), "python -m helpers report"])
    titled = ((_("The same in Python"), code), (_("The same on the command line"), commands))
    return "\n\n".join(f"{title}:\n\n{indent(text, '    ')}" for title, text in titled)


def _arguments(settings):
    return ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in settings.items()
    )


def _train(settings):
    options = [
        f"--{'' if value else 'no_'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in settings.items()
    ]
    return shlex.join(["python", "-m", "helpers", "train", *options])


# -- its widgets --------------------------------------------------------------------------


class Form:
    """The form as a widget, `box`; `chosen` is what it shows now.

    Args:
        kind: of the devices (default: the best there is).
    """

    def __init__(self, kind=None):
        import ipywidgets

        first = first_choice(kind)
        self.device, self.tasks = first.get("device"), []
        ranks = range(1, devices.machine(kind).count + 1)
        self.controls = {
            name: _control(SETTINGS[name], first.get(name, SETTINGS[name].default), ranks) for name in (*FIRST, *MORE)
        }
        about = _("How many times as fast do you expect it to be? (0: no prediction)")
        self.prediction = ipywidgets.BoundedFloatText(description=about, max=1e6, **LOOK)
        self.button = ipywidgets.Button(description=_("Run the comparison"), icon="play", button_style="primary")
        self.verdict, self.code, self.runs = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.VBox()
        for control in (*self.controls.values(), self.prediction):
            control.observe(lambda change: self._changed(), names="value")
        self.button.on_click(lambda button: self._pressed())
        more = ipywidgets.VBox([self.controls[name] for name in MORE])
        self.box = ipywidgets.VBox(
            [
                ipywidgets.HTML(STYLE),
                *(self.controls[name] for name in FIRST),
                ipywidgets.Accordion([more], titles=[_("More settings")]),
                *(self.prediction, self.verdict, self.button, self.code, self.runs),
            ]
        )
        self.box.add_class("helpers-form")
        self._changed()

    @property
    def chosen(self) -> dict:
        values = {name: _value(SETTINGS[name], control.value) for name, control in self.controls.items()}
        values["device"] = self.device
        return {name: value for name, value in values.items() if value != SETTINGS[name].default}

    def _changed(self):
        """Bring what stands below the controls up to date; whether the choice can be run."""
        wrong = problem(self.chosen)
        for name, control in self.controls.items():
            control.layout.border = WRONG if name in getattr(wrong, "fields", ()) else None
        self.button.disabled = wrong is not None
        self.verdict.value = _refused(wrong) if wrong else f'<div role="status">✓ {_("Ready.")}</div>'
        self.code.value = "" if wrong else f"<pre>{escape(as_code(self.chosen, self.prediction.value))}</pre>"
        return wrong is None

    def _pressed(self):
        import ipywidgets

        if not self._changed():  # a field that was left by pressing the button
            return
        both, panel, result = configs(self.chosen), ipywidgets.Output(), ipywidgets.HTML()
        self.runs.children = (ipywidgets.VBox([panel, result]), *self.runs.children)
        expected = {both[1].label: self.prediction.value} if self.prediction.value else None
        with panel:
            try:
                handle = compare(both, prediction=expected, name=NAME, background=True)
                self.tasks.append(asyncio.ensure_future(_follow(handle, panel, result)))
            except Exception as error:  # such as a set that could not be made
                result.value = _refused(error)


async def _follow(handle, panel, result):
    """Show what came of a comparison, when it is over.

    A panel's last state does not reach an Output widget from another thread, so it is shown with the result.
    """
    while handle.status in ("queued", "running"):
        await asyncio.sleep(0.2)
    panel.close()
    try:
        comparison = handle.result()
        came = comparison._repr_html_() + style.html(*plots.speed_up(comparison))
    except Exception as error:
        came = _refused(error)
    result.value = handle.progress.display.html + came


def _refused(error):
    text = _("Not possible: {change}.").format(change=error)
    return f'<div role="alert"><span style="white-space: pre-wrap">✗ {escape(text)}</span></div>'


LOOK = {"style": {"description_width": "initial"}, "layout": {"width": "auto"}}


def _control(setting, value, ranks):
    """A control for a setting, made from its description."""
    import ipywidgets

    look = {"description": _(setting.noun), "tooltip": _(setting.help), **LOOK}
    if setting.name == "nproc_per_node":
        return ipywidgets.Dropdown(options=ranks, value=value, **look)
    if setting.type is bool:
        return ipywidgets.Checkbox(value=value, **look)
    if setting.choices:
        options = [(f"{name} – {_(meaning)}", name) for name, meaning in setting.choices.items()]
        return ipywidgets.Dropdown(options=[("–", None)] * (setting.default is None) + options, value=value, **look)
    return ipywidgets.Text(value="" if value is None else str(value), **look)


def _value(setting, shown):
    """What a control means; a number that is none stays text, for RunConfig to object to."""
    if not isinstance(shown, str) or setting.choices:
        return shown
    try:
        return setting.type(shown) if shown.strip() else setting.default
    except ValueError:
        return shown
