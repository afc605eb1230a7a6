"""Sphinx's settings for the site. Nothing in a page may come from another host."""

import csv
import re
import sys
from pathlib import Path

import tomllib
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.search.zh import SearchChinese

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.site import api, places  # noqa: E402  Sphinx runs this file from another folder

HAN = "[\u4e00-\u9fff]"

project = "Train on more than one device"
copyright = "the authors, Apache License 2.0"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_mock_imports = api.MOCKED
autodoc_typehints, autodoc_preserve_defaults, autodoc_class_signature = "none", True, "mixed"
default_role = "code"  # docstrings have `names` in single backticks
exclude_patterns = []
templates_path = ["templates"]
suppress_warnings = ["myst.header"]  # a notebook's section may begin two levels deeper

myst_all_links_external = True  # links are complete already, see __main__
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # as GitHub names them
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from a CDN; the outputs hold no widgets
nb_merge_streams = True
nb_render_markdown_format = "myst"  # an output may be a table, which CommonMark lacks

html_favicon = "static/icon.svg"
html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_copy_source = html_show_sourcelink = html_use_index = False
html_sidebars = {"**": ["all-pages"]}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "training-helpers"},  # short enough for a phone
    "navbar_center": ["header-links"],
    "navbar_end": ["theme-switcher", "header-end"],
    "navbar_persistent": ["search-button"],
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "article_header_start": [],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_math_renderer = "mathml"


def add_anchors(_, doctree):
    """A heading has the id that links of the files give it, too: Sphinx has another idea of punctuation."""
    for section in doctree.findall(nodes.section):
        if section.get("slug") and section["slug"] not in section["ids"]:
            section["ids"].append(section["slug"])


def glossary():
    """The Chinese words of the glossary that are longer than two characters."""
    with open(ROOT / "locale/zh_CN/glossary.csv", encoding="utf-8", newline="") as file:
        words = [word for row in csv.DictReader(file) for word in row["chinese"].split("|")]
    return sorted({word for word in words if re.fullmatch(HAN + "{3,}", word)})


class Search(SearchChinese):
    """Index the glossary's words and each two neighbouring characters; site.js splits a query accordingly.

    A dictionary of Chinese would cut off words that it does not know, and then nobody could find them.
    """

    language_name = "English"  # only English words are stemmed; the theme's script names a stemmer that is not there
    glossary = glossary()

    def split(self, input):
        words = self.latin1_letters.findall(input)
        self.latin_terms.update(words)
        for run in re.findall(HAN + "{2,}", input):
            words += [run[k : k + 2] for k in range(len(run) - 1)] + [word for word in self.glossary if word in run]
        return words


HEADER = {  # {page: its name in the header}
    "en": {"notebooks/00_start_here": "Notebooks", "api": "API", "docs/howto/index": "How-to", "other": "中文"},
    "zh_CN": {"notebooks/00_start_here": "Notebook", "api": "API", "docs/howto/index": "操作指南", "other": "English"},
}


def add_context(app, page, _template, context, doctree):
    """What templates need: the header's links, the page in the other language, and what search engines show."""
    chinese, names = app.config.language == "zh_CN", dict(HEADER[app.config.language])
    up = "../" * (page.count("/") + chinese)  # from here to the top of the site
    other = Path(app.srcdir).parent / ("en" if chinese else "zh_CN")
    twin = page if any(other.joinpath(page + ending).exists() for ending in (".md", ".ipynb")) else "index"
    context["other"] = {"href": f"{up}{'' if chinese else 'zh/'}{twin}.html", "name": names.pop("other")}
    context["other"]["lang"] = "en" if chinese else "zh-CN"
    folder = "zh/" if chinese else ""
    context["header"] = [(f"{up}{folder}{to}.html", name) for to, name in names.items()]
    context["repository"], context["release"] = places.repository(), release
    said = (node.astext() for node in doctree.findall(nodes.paragraph)) if doctree else ()
    about = " ".join(next((text for text in said if len(text) > (20 if chinese else 40)), project).split())
    about, title = (
        text.replace('"', "&quot;") for text in (about[:200], re.sub("<[^>]*>", "", context.get("title", "")))
    )
    properties = {"og:title": title, "og:description": about, "og:type": "website", "og:site_name": project}
    tags = [f'<meta name="description" content="{about}">']
    tags += [f'<meta property="{name}" content="{text}">' for name, text in properties.items()]
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def set_language(_, config):
    """What depends on the language of the pages, which is known only now."""
    config.html_search_language = config.language[:2]
    if config.language == "zh_CN":
        config.nb_code_prompt_show, config.nb_code_prompt_hide = "展开代码", "收起代码"
        config.html_theme_options["search_bar_text"] = "搜索本站……"


def setup(app):
    """Formulas become MathML, which browsers draw without a script."""

    def formula(translator, node, display):
        mathml = tex2mathml(node.astext(), as_block=display)
        translator.body.append(f'<div class="math" tabindex="0">{mathml}</div>' if display else mathml)
        raise nodes.SkipNode

    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(lambda translator, node: formula(translator, node, False), None),
        block_renderers=(lambda translator, node: formula(translator, node, True), None),
    )
    app.connect("doctree-read", add_anchors)
    app.add_search_language(Search)
    app.connect("config-inited", set_language)
    app.connect("html-page-context", add_context)
