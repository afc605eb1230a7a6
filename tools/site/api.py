"""The API page: text from docstrings, by autodoc; RunConfig's fields and the command line from what checks them."""

import os

# The site's environment has none of these: their names are all that docstrings and signatures need.
MOCKED = "torch torchvision numpy matplotlib pandas cloudpickle PIL sklearn tqdm ipywidgets".split()


HEAD = {"en": "| field | default | what it is | values |", "zh_CN": "| 字段 | 默认值 | 含义 | 取值 |"}


def text(page, language) -> str:
    """The page, in Markdown, with the tables of the settings and of the commands in their places."""
    from sphinx.ext.autodoc.mock import mock  # only the site's environment has Sphinx, and tests read other parts

    os.environ |= {"COLUMNS": "88", "HELPERS_LANG": language}  # columns of argparse's help
    with mock(MOCKED):
        from helpers import __main__ as command_line
        from helpers.config import SETTINGS

        parser = command_line._parser()
        sub = next(action for action in parser._actions if hasattr(action, "choices") and action.choices)
        commands = {"": parser, **sub.choices}
        helps = [f"### python -m helpers {name}\n\n```text\n{one.format_help()}```" for name, one in commands.items()]
        rows = [HEAD[language], "|---|---|---|---|", *map(_row, SETTINGS.values())]
    return page.replace("{fields}", "\n".join(rows)).replace("{commands}", "\n\n".join(helps))


def _row(setting):
    from helpers.language import _

    if setting.table:
        choices = setting.choices.items()
        allowed = "; ".join(f"`{name}`: {_(about)}" if about else f"`{name}`" for name, about in choices)
    else:
        kinds = {bool: _("`True` or `False`"), int: _("1 or more"), float: _("0 or more")}
        allowed = _(setting.range) if setting.range else kinds.get(setting.type, "")
    values = "; ".join(filter(None, (allowed, _(setting.own[1]) if setting.own else ""))).replace("|", "\\|")
    named = f"<a id='field-{setting.name}'></a>`{setting.name}`"
    return f"| {named} | `{setting.default!r}` | {_(setting.help)} | {values} |"
