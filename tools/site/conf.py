"""Sphinx's settings for the site. Nothing in a page may come from another host."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.search.zh import SearchChinese

SearchChinese.language_name = "English"  # it stems English words only, and its script names a stemmer that is not there

project = "Train on more than one device"
copyright = "the authors, Apache License 2.0"
extensions = ["myst_nb"]
exclude_patterns = []
templates_path = ["templates"]
suppress_warnings = ["myst.header"]  # a notebook's section may begin two levels deeper

myst_all_links_external = True  # links are complete already, see __main__
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # as GitHub names them
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from a CDN; the outputs hold no widgets
nb_merge_streams = True

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
    "navbar_center": [],
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
    # The language is known from here on only.
    app.connect("config-inited", lambda app, config: setattr(config, "html_search_language", config.language[:2]))
