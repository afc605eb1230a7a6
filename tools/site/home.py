"""The home page, made from README's own words: a drawing, a start button, three paths, and a card for each notebook."""

import html
import re

WORDS = {
    "en": (
        "Start with notebook 00",
        "How do I install it?",
        "{} minutes",
        "docs/install.md",
        "From a cell to the ranks and back",
    ),
    "zh_CN": ("从 notebook 00 开始", "怎样安装？", "{} 分钟", "docs/zh/install.md", "从单元格到各个 rank，再返回"),
}
ROW = re.compile(r"^\| \[(?P<title>[^]]+)\]\((?P<file>[^)]+)\) \| (?P<about>.+) \| (?P<minutes>\d+) \|$", re.MULTILINE)


def text(readme, language) -> str:
    """README as a home page, with links as the files have them."""
    start, install, minutes, page, alt = WORDS[language]
    head, *sections = re.split(r"^## ", readme, flags=re.MULTILINE)
    title, intro, code = re.match(r"(# .*?)\n\n(?:\[[^]]+\]\(README\S+\n\n)?(.*?)\n\n(```.*)", head, re.DOTALL).groups()
    finds, commands, paths, _, others, *_ = (f"## {section}" for section in sections)
    first = ROW.search(paths)["file"]
    folder = first.rpartition("/")[0]
    paths, table, rest = re.split(r"((?:^\|.*\n)+)", paths, maxsplit=1, flags=re.MULTILINE)
    cards = "".join(_card(row, minutes) for row in ROW.finditer(table))
    return f"""{title}

<div class="hero">

{intro}

[{start}]({first}) [{install}]({page})

![{alt}]({folder}/drawings/launch.svg)

</div>

{code}
{paths}
<div class="cards">
{cards}
</div>

{rest}
{finds}{commands}{others}"""


def _card(row, minutes):
    about = row["about"]
    return f"""
<div class="one">

[{row["title"]}]({row["file"]})

{about}

<p class="minutes">{minutes.format(row["minutes"])}</p>

</div>
"""


def for_models(readme, titles) -> str:
    """llms.txt: what the kit is and where its pages are, for programs that read (llmstxt.org).

    `titles` is {address of a page: its title}, of all pages but README and the notebooks of the course.
    """
    title, intro = re.match(r"# (.*?)\n\n\S+\n\n(.*?)\n\n", readme, re.DOTALL).groups()
    lines = [f"# {title}", "", "> " + " ".join(intro.split()), "", "## Notebooks", ""]
    for row in ROW.finditer(readme):
        address = row["file"].replace(".ipynb", ".html")
        lines.append(f"- [{row['title']}]({address}): {row['about']} ({row['minutes']} minutes)")
    lines += ["", "## Docs", "", *(f"- [{title}]({address})" for address, title in titles.items())]
    lines += ["", "## Optional", "", "- [All of it in Chinese](zh/index.html)"]
    return html.unescape("\n".join(lines)) + "\n"
