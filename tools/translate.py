"""Write the Chinese README, pages and notebooks from the English ones and from locale/zh_CN/*.po.

helpers.po has what the code says; `messages` brings it up to date, too, and compiles it for helpers/language.py.

    python -m tools.translate messages [NAME...]    bring the .po files up to date with the English text
    python -m tools.translate write                 write notebooks/zh, docs/zh, README.zh.md and the site's API page

NAME is a notebook (03_ddp, more/03_buckets), a page (docs/faq), `drawings`, `readme` or `api`; without one, all that
have a .po file. A notebook or page gets one by being named.
Code, outputs and cell ids are those of the English file. What has no translation yet stays English.
"""

import argparse
import html
import os
import re
import sys
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path

import babel.messages.extract
import jinja2.ext
import nbformat
from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, unescape, write_po

from exercises.verdict import texts as hints
from helpers.config import SETTINGS
from helpers.paths import replace_file
from tools.render_notebooks import SPEAKS, canonical

ROOT = Path(__file__).resolve().parent.parent
LOCALE = ROOT / "locale" / "zh_CN"
README = "readme"
SINGLE = {README: "README.md", "api": "tools/site/api.md"}  # pages whose Chinese file lies beside the English one
HELPERS = "helpers"  # not a page: what the code says
DRAWINGS = "drawings"  # a folder of pages
PACKAGES = ("benchmarks", "exercises", "helpers", "notebooks/scripts", "platforms", "tools")
FIGURE = "figure"  # the context of the messages of alt texts
# What in a measured text changes from run to run and from machine to machine: numbers, also ranges and lists of
# them, and names of processors. Messages hold {1}, {2}, ... in their place, so a new measurement needs no translator.
NUMBER = r"(?<![\w-])[+-]?\d+(?:[-–:.,]\d+)*(?:e[+-]?\d+)?"
PROCESSOR = r"\b(?:Intel|AMD|NVIDIA|Apple)\b(?:\(R\)|[^,;()])+(?<![. ])"
VARIES = re.compile(rf"{PROCESSOR}|{NUMBER}(?:, {NUMBER})+(?=[],;.)]|$)|{NUMBER}")


def names() -> list:
    """The pages that have a .po file."""
    found = (path.relative_to(LOCALE).with_suffix("").as_posix() for path in LOCALE.rglob("*.po"))
    return sorted(name for name in found if name != HELPERS)


def source(name) -> Path:
    """The English file; the folder of the helpers or of the drawings."""
    if name == HELPERS:
        return ROOT / "helpers"
    if name in SINGLE:
        return ROOT / SINGLE[name]
    if name.startswith("docs/"):
        return ROOT / f"{name}.md"
    return ROOT / "notebooks" / (name if name == DRAWINGS else f"{name}.ipynb")


def target(name) -> Path:
    """The Chinese file or folder."""
    return counterpart(source(name))


def counterpart(path) -> Path:
    """Where the Chinese file of an English one lies."""
    if path.relative_to(ROOT).as_posix() in SINGLE.values():
        return path.with_suffix(".zh.md")
    folder = ROOT / path.relative_to(ROOT).parts[0]  # notebooks or docs
    return folder / "zh" / path.relative_to(folder)


# From a text to its messages. `say(message, context)` returns what is to stand in the place of a message.


def documents(name, say) -> dict:
    """{path of the English file: its text with what `say` says in the place of each message}."""
    if name == DRAWINGS:
        drawings = sorted(source(name).glob("*.svg"))
        return {path: drawing(path.read_text(encoding="utf-8"), say) for path in drawings}
    if source(name).suffix == ".md":
        text = source(name).read_text(encoding="utf-8")
        return {source(name): prose(text, lambda message: say(message, None)) + "\n"}
    notebook = nbformat.read(source(name), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = prose(cell.source, lambda message, cell=cell: say(message, cell.id))
        for output in cell.get("outputs", []):
            for shown in output.get("metadata", {}).values():
                if "alt" in shown:
                    shown["alt"] = alt(shown["alt"], lambda message: say(message, FIGURE))
    return {source(name): canonical(notebook)}


BEGINS = re.compile(r"\s*([-*+] |\d+\. |#+ |```|\$\$|\||<|$)")  # the line after a paragraph
MARKER = re.compile(r"\s*(?:[-*+] +|\d+\. +|#+ +)?")
SUMMARY = re.compile(r"(<details><summary>)(.*)(</summary>)")


def prose(markdown, say) -> str:
    """Markdown with what `say` says in the place of each paragraph, heading, list item and table.

    A message is one line, however its source is wrapped: Chinese has no spaces that a line break could stand for.
    Code, formulas that stand alone, and HTML stay as they are, the summary of <details> apart.
    """
    lines, written, measured = markdown.splitlines(), [], False
    while lines:
        first = lines.pop(0)
        bare = first.strip()
        taken = [bare]
        if fence := re.match(r"```|\$\$$", bare):
            end = next((n for n, line in enumerate(lines) if line.strip() == fence[0]), len(lines))
            written += [first, *lines[: end + 1]]
            del lines[: end + 1]
        elif summary := SUMMARY.fullmatch(bare):
            written.append(summary[1] + say(summary[2]) + summary[3])
        elif not bare or re.match(r"</?\w+[^>]*>$|<!--.*-->$", bare):
            measured = bare.startswith("<!-- measured") or (measured and bare != "<!-- end -->")
            written.append(first)
        elif bare.startswith("|"):
            while lines and lines[0].strip().startswith("|"):
                taken.append(lines.pop(0).strip())
            written.append(with_slots("\n".join(taken), say) if measured else say("\n".join(taken)))
        else:
            prefix = MARKER.match(first)[0]
            while lines and not bare.startswith("#") and not BEGINS.match(lines[0]):
                taken.append(lines.pop(0).strip())
            text = " ".join(taken)[len(prefix.strip()) :].strip()
            written.append(prefix + (with_slots(text, say) if measured else say(text)))
    return "\n".join(written)


def with_slots(text, say) -> str:
    """What `say` says of a measured text, with what varies left out before and put back after."""
    varies = []

    def slot(found):
        varies.append(found[0])
        return f"{{{len(varies)}}}"

    return re.sub(r"\{(\d+)\}", lambda found: varies[int(found[1]) - 1], say(VARIES.sub(slot, text)))


def alt(text, say) -> str:
    """The alt text of a figure; each of its sentences is a message, since many figures share some."""
    said = [with_slots(sentence, say) for sentence in re.split(r"(?<=[.;]) ", text)]
    return "".join(one if one.endswith(("\u3002", "\uff1b")) else f"{one} " for one in said).rstrip()


SVG_TEXT = re.compile(r"(<(title|desc|text)\b[^>]*>)(.*?)(</\2>)", re.DOTALL)
SVG_LINE = re.compile(r'<tspan x="([^"]+)" dy="(\d+)">(.*?)</tspan>')
LINE_HEIGHT = 17


def drawing(svg, say) -> str:
    """A drawing with what `say` says in the place of its texts; a text of several lines is one message.

    Code and what has no word in it (r0, F1) stay.
    """

    def one(found):
        opening, _, inside, closing = found.groups()
        text = html.unescape(SVG_LINE.sub(lambda line: "\n" * (int(line[2]) // LINE_HEIGHT) + line[3], inside))
        if re.search(r'class="[^"]*\bcode\b', opening) or not re.search("[A-Za-z]{2}", text):
            return found[0]
        first, *others = with_slots(text, lambda message: say(message, None)).split("\n")
        x, below, inside = re.search(r'x="([^"]+)"', opening), 0, html.escape(first, quote=False)
        for line in others:
            below += LINE_HEIGHT
            if line:
                inside += f'<tspan x="{x[1]}" dy="{below}">{html.escape(line, quote=False)}</tspan>'
                below = 0
        return opening + inside + closing

    return SVG_TEXT.sub(one, svg)


# Catalogs

KEYWORDS = {"_": None, "N_": None, "Message": None}


def extract(name) -> Catalog:
    """The messages of the English file, in their order, none translated."""
    catalog = Catalog()
    if name == HELPERS:
        for message in spoken():
            catalog.add(message)
        return catalog

    def say(message, context):
        catalog.add(message, context=context)
        return message

    documents(name, say)
    return catalog


def spoken():
    """What the code says: texts of settings, hints of checks, first arguments of KEYWORDS in modules and pages."""
    for section in hints().values():
        yield from (" ".join(text.split()) for text in section.values())
    for setting in SETTINGS.values():
        words = (setting.noun, setting.help, setting.range, *(setting.own or ())[1:], *(setting.choices or {}).values())
        yield from filter(None, words)
    for method, ending in (("python", "*.py"), (jinja2.ext.babel_extract, "*.html")):
        for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob(ending)):
            with open(path, "rb") as file:
                for _, message, *_ in babel.messages.extract.extract(method, file, KEYWORDS):
                    yield message


def compile_messages():
    """Write the catalog of what the code says in the form that gettext reads."""
    folder = LOCALE / "LC_MESSAGES"
    folder.mkdir(exist_ok=True)
    compiled = BytesIO()
    write_mo(compiled, read(HELPERS))
    replace_file(folder / f"{HELPERS}.mo", compiled.getvalue())


def read(name) -> Catalog:
    """The .po file; an empty catalog if there is none."""
    path = LOCALE / f"{name}.po"
    if not path.exists():
        about = f"Chinese text for {source(name).relative_to(ROOT)}. Brought up to date by `make messages`."
        return Catalog(locale="zh_CN", header_comment=f"# {about}", fuzzy=False)
    with open(path, "rb") as file:
        catalog = read_po(file)
    for message in catalog:  # Babel writes a former text ("#| msgid"), but reads it as a comment
        former = "".join(comment for comment in message.user_comments if comment.startswith("|"))
        message.user_comments = [comment for comment in message.user_comments if not comment.startswith("|")]
        message.previous_id = ["".join(map(unescape, re.findall(r'"(?:[^"\\]|\\.)*"', former)))] if former else []
    return catalog


def merge(old, new) -> Catalog:
    """`old` with the messages of `new`, and no others; a changed message keeps its translation, marked as fuzzy."""
    former = {(message.id, message.context): message for message in old if message.id}
    gone = [message for key, message in former.items() if message.string and new.get(*key) is None]
    for message in former.values():
        old.delete(message.id, message.context)
    for message in new:
        if not message.id:
            continue
        same = former.get((message.id, message.context))
        near = same or nearest(message, gone)
        if near:
            message.string, message.user_comments = near.string, near.user_comments
            message.flags, message.previous_id = set(near.flags), near.previous_id if near.fuzzy else []
            message.string = tidy(message.string)
        if near and not same:
            message.flags.add("fuzzy")
            message.previous_id = [near.id]
        old[message.id] = message
    return old


def nearest(message, gone):
    """The message of `gone` that `message` was made from, or None: one of the same cell, or else one like it."""
    for near in ([it for it in gone if it.context == message.context], gone):
        if found := get_close_matches(message.id, [it.id for it in near], 1, cutoff=0.5):
            return next(it for it in near if it.id == found[0])
    return None


HAN = "\u4e00-\u9fff"
VERBATIM = re.compile(
    r"(`+[^`]+`+|\$[^$]+\$|\]\([^)]*\)|\w+://\S+|&#?\w+;|(?:\|[ :]*-{2,}[ :]*)+\||</?\w[^>]*>|\{\w[^{}]*\}"
    r"|--[\w-]+(?:=[!-~]+)?|\(\)|'[^' ]+'|\"[^\"\n" + HAN + r"]+\"|arXiv:[\d.]+"  # what programs say, references
    r"|\(\*?\w{1,2}\*?(?: ?[−+/] ?\*?\w{1,2}\*?)+\))"  # formulas: (p − 1)/(m + p − 1)
)
WIDE = str.maketrans(",;:?!", "\uff0c\uff1b\uff1a\uff1f\uff01")
MARKS = rf"(?<=[{HAN}])[,;:?]|(?<!\d)[,:](?!\s)|[,:](?![\s\d])|[;?!](?![\s\[])"
BRACKETS = rf" \([^()]*\)|(?<![\w)\]])\([^()]*\)|(?<=[{HAN}])\([^()]*\)|\([^()]*[{HAN}][^()]*\)"
GAPS = rf"(?<=[{HAN}])(?=[A-Za-z0-9`$])|(?<=[A-Za-z0-9`$%])(?=[{HAN}])"


def tidy(chinese) -> str:
    """Chinese text with full-width punctuation, and a space between Chinese and Latin characters.

    A mark before a space, as in "0, 1, 2", stays as it is, and so do code, formulas, links, numbers and times.
    """
    if not re.search(f"[{HAN}]", chinese):
        return chinese
    kept = []

    def mask(found):
        kept.append(found[0])
        return chr(0xE000 + len(kept) - 1)  # a private character

    wide = VERBATIM.sub(mask, chinese)
    wide = re.sub(MARKS, lambda found: found[0].translate(WIDE), wide)
    wide = re.sub(BRACKETS, lambda found: f"\uff08{found[0].strip()[1:-1]}\uff09", wide)
    return re.sub(GAPS, " ", re.sub("[\ue000-\uf8ff]", lambda found: kept[ord(found[0]) - 0xE000], wide))


HEADER = rb'(?m)^"(?:Project-Id-|Report-Msgid-|POT-|PO-|Last-Translator|Language-Team|Generated-By)[^"]+"\n'


def text(catalog) -> bytes:
    """The .po file of a catalog."""
    for message in catalog:  # Babel takes "5 % of" and "{1}" for formats of Python
        message.flags -= {"python-format", "python-brace-format"}
    file = BytesIO()
    write_po(file, catalog, width=1_000_000, no_location=True, ignore_obsolete=True, include_previous=True)
    return re.sub(HEADER, b"", file.getvalue())


def problems(name):
    """What keeps the Chinese file from saying all that the English one says: changed, new and old messages."""
    new, old = extract(name), read(name)
    gone = [message for message in old if message.id and new.get(message.id, message.context) is None]
    for message in new:
        have = old.get(message.id, message.context)
        where = f"{name}, {message.context or 'page'}"
        if not message.id:
            continue
        if have is None:
            near = nearest(message, gone)
            gone = [one for one in gone if one is not near]
            was = f"changed, run `make messages`\n  was: {near.id}" if near else "new, run `make messages`"
            yield f"{where}: {was}\n  now: {message.id}"
        elif have.fuzzy:
            yield f"{where}: changed, translate it again\n  was: {have.previous_id[0]}\n  now: {message.id}"
        elif not have.string:
            yield f"{where}: not translated\n  now: {message.id}"
    for message in gone:
        yield f"{name}, {message.context or 'page'}: no longer there, run `make messages`\n  was: {message.id}"


# Chinese files


def write(name) -> dict:
    """{path of the Chinese file: its text}."""
    catalog = read(name)

    def say(message, context):
        found = catalog.get(message, context)
        chinese = found.string if found and found.string and not found.fuzzy else message
        return re.sub(r"(?<=\]\()[^)\s]+", lambda link: moved(link[0], name), chinese)

    made = {counterpart(path): text for path, text in documents(name, say).items()}
    return {path: with_own_outputs(path, text) if path.suffix == ".ipynb" else text for path, text in made.items()}


def with_own_outputs(path, text) -> str:
    """The text of a Chinese notebook with the outputs of the one at `path`, if that was rendered in Chinese.

    A cell whose code has changed since shows the English output, until the notebook is rendered again.
    """
    notebook, before = nbformat.reads(text, as_version=4), path.exists() and nbformat.read(path, as_version=4)
    if not before or SPEAKS not in before.metadata:
        return text
    own = {cell.id: cell for cell in before.cells if cell.cell_type == "code"}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id in own and own[cell.id].source == cell.source:
            cell.outputs = own[cell.id].outputs
    notebook.metadata[SPEAKS] = before.metadata[SPEAKS]
    return canonical(notebook)


def moved(link, name) -> str:
    """A link of the English file, for the Chinese one: to the Chinese page where there is one."""
    site, blob, path = link.partition("/blob/main/")
    if blob:  # a notebook opened in Colab
        return site + blob + os.path.relpath(chinese(ROOT / path, name), ROOT)
    path, mark, part = link.partition("#")
    if "://" in link or not path:
        return link
    return os.path.relpath(chinese(source(name).parent / path, name), target(name).parent) + mark + part


def chinese(path, name) -> Path:
    """Where a link to `path` leads in the Chinese file; a link to this file itself leads to the English one."""
    path = Path(os.path.normpath(path))
    if path == target(name):
        return source(name)
    if path.parent == source(DRAWINGS) or path == ROOT / "notebooks" / "more":
        return counterpart(path)
    if path.suffix == ".svg" and path.with_suffix(".zh.svg").exists():  # tools/render_pages.py writes it
        return path.with_suffix(".zh.svg")
    return {source(one): target(one) for one in names()}.get(path, path)


def main(arguments=None):
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("command", choices=["messages", "write"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    for name in options.names or names():
        if not source(name).exists():
            parser.error(f"there is no {source(name)}: name a notebook (03_ddp), a page (docs/faq), or {README}")
    for name in options.names or [*names(), *[HELPERS][: options.command == "messages"]]:
        if options.command == "messages":
            files = {LOCALE / f"{name}.po": text(merge(read(name), extract(name)))}
        else:
            files = write(name)
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        left = [message for message in read(name) if message.id and (message.fuzzy or not message.string)]
        if name == HELPERS:
            compile_messages()
        print(f"{name}: {len(left)} of {len(read(name))} messages have no translation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
