"""The API page: text from docstrings, by autodoc; RunConfig's fields and the command line from what checks them."""

import os
from pathlib import Path

# The site's environment has none of these: their names are all that docstrings and signatures need.
MOCKED = "torch torchvision numpy matplotlib pandas cloudpickle PIL sklearn tqdm ipywidgets".split()


def text() -> str:
    """The page in Markdown."""
    from sphinx.ext.autodoc.mock import mock  # only the site's environment has Sphinx, and tests read other parts

    page = Path(__file__).with_name("api.md").read_text(encoding="utf-8")
    os.environ["COLUMNS"] = "88"  # of argparse's help
    with mock(MOCKED):
        from helpers import __main__ as command_line
        from helpers.config import SETTINGS

        parser = command_line._parser()
        sub = next(action for action in parser._actions if hasattr(action, "choices") and action.choices)
        commands = {"": parser, **sub.choices}
        helps = [f"### python -m helpers {name}\n\n```text\n{one.format_help()}```" for name, one in commands.items()]
        rows = ["| field | default | what it is | values |", "|---|---|---|---|", *map(_row, SETTINGS.values())]
    return page.replace("{fields}", "\n".join(rows)).replace("{commands}", "\n\n".join(helps))


def _row(setting):
    if setting.table:
        allowed = "; ".join(f"`{name}`: {about}" if about else f"`{name}`" for name, about in setting.choices.items())
    else:
        allowed = setting.range or {bool: "`True` or `False`", int: "1 or more", float: "0 or more"}.get(
            setting.type, ""
        )
    own = setting.own[1] if setting.own else ""
    values = "; ".join(filter(None, (allowed, own))).replace("|", "\\|")
    return f"| <a id='field-{setting.name}'></a>`{setting.name}` | `{setting.default!r}` | {setting.help} | {values} |"
