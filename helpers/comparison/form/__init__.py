"""`form()`: choose a training run from lists, see why it can or cannot be, and compare it with a baseline."""

import textwrap


def form(device=None) -> None:
    """Show the form below the cell; where no widgets can be shown, the choice it would begin with, as text.

    The form writes the code and the command line of what is chosen, and refuses what is impossible before anything
    starts. Its button runs `helpers.compare` in the background: the choice against one device in fp32 without a
    compiler, with the same model, data and global batch.

    Args:
        device: a device kind (default: the best there is, or what `choose_devices` has chosen).

    Raises:
        ValueError: there is no such device here.
    """
    from ...launcher import progress

    if not progress.has_widgets():
        print(_text(device))
        return
    from IPython.display import display

    from .widgets import Form

    view = {"version_major": 2, "version_minor": 0, "model_id": Form(device).box.model_id}
    words = {"text/plain": _text(device)}  # what a saved notebook shows where its widgets are gone
    display({**words, "application/vnd.jupyter.widget-view+json": view}, raw=True)


def _text(kind):
    from ...launcher.language import local
    from . import page
    from .choice import Choice

    choice = Choice.sensible(kind)
    commands = "\n".join(choice.commands())
    plan = textwrap.fill(local("What it would begin with on this machine: {plan}", plan=page.plan(choice)), 100)
    return "\n\n".join(
        [
            local("Choose and run: JupyterLab, Jupyter Notebook, VS Code and Colab show a form here."),
            plan,
            f"{local(page.PYTHON)}:",
            textwrap.indent(choice.code(), "    "),
            f"{local(page.COMMANDS)}:",
            textwrap.indent(commands, "    "),
        ]
    )
