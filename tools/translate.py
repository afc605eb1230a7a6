"""Write the Chinese README and notebooks from the English ones and from locale/zh_CN/*.po.

helpers.po has what the helpers say (helpers/launcher/language.py reads it); `messages` brings it up to date, too.

    python -m tools.translate messages [NAME...]    bring the .po files up to date with the English text
    python -m tools.translate write                 write notebooks/zh/NAME.ipynb and README.zh.md

NAME is a notebook (03_ddp) or `readme`; without one, all that have a .po file. A notebook gets one by being named.
Code, outputs and cell ids are those of the English file. What has no translation yet stays English.
"""

import argparse
import ast
import builtins
import os
import re
import string
import sys
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path

import jinja2.ext
import nbformat
from babel.messages import Catalog
from babel.messages.pofile import read_po, unescape, write_po

from helpers.config import SETTINGS
from helpers.launcher.language import FIGURE, PLACE, with_slots
from helpers.paths import replace_file
from tools.render_notebooks import canonical

ROOT = Path(__file__).resolve().parent.parent
LOCALE = ROOT / "locale" / "zh_CN"
README = "readme"
HELPERS = "helpers"  # not a page: what the code says


def names() -> list:
    """The pages that have a .po file."""
    return sorted(path.stem for path in LOCALE.glob("*.po") if path.stem != HELPERS)


def source(name) -> Path:
    """The English file; the folder of the helpers."""
    if name == HELPERS:
        return ROOT / HELPERS
    return ROOT / "README.md" if name == README else ROOT / "notebooks" / f"{name}.ipynb"


def target(name) -> Path:
    """The Chinese file."""
    return ROOT / "README.zh.md" if name == README else ROOT / "notebooks" / "zh" / f"{name}.ipynb"


# From a text to its messages. `say(message, context)` returns what is to stand in the place of a message.


def document(name, say) -> str:
    """The text of the English file with what `say` says in the place of each message."""
    if name == README:
        return prose(source(name).read_text(encoding="utf-8"), lambda message: say(message, None)) + "\n"
    notebook = nbformat.read(source(name), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = prose(cell.source, lambda message, cell=cell: say(message, cell.id))
        for output in cell.get("outputs", []):
            for shown in output.get("metadata", {}).values():
                if "alt" in shown:
                    shown["alt"] = alt(shown["alt"], lambda message: say(message, FIGURE))
    return canonical(notebook)


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


def alt(text, say) -> str:
    """The alt text of a figure; each of its sentences is a message, since many figures share some."""
    said = [with_slots(sentence, say) for sentence in re.split(r"(?<=[.;]) ", text)]
    return "".join(one if one.endswith(("\u3002", "\uff1b")) else f"{one} " for one in said).rstrip()


# Catalogs

SAYING = {"local", "marked", "said", "exercise"}
NOTES = {"left", "choose"}
HINT = re.compile(r"[^|\n.,][^|\n ]*( [^|\n ]+){3,}$")
WORDS = re.compile(r"(?=.* ).*\b[A-Za-z]{3,}\b", re.DOTALL)  # of an f-string that is no name and no number
# Where all texts are for readers.
TELLING = (
    "exercises/",
    "form/refusal.py",
    "report/sentences.py",
    "report/causes.py",
    "report/pairs.py",
    "report/published.py",
    "migrate/advice.py",
    "passes/choices.py",
    "passes/leftovers.py",
    "/figures.py",
    "/figure.py",
    "plots/accuracy.py",
    "plots/ladder.py",
    "plots/panels.py",
    "plots/precision.py",
    "plots/runs.py",
    "core/coordinator.py",
    "core/job.py",
    "core/links.py",
    "core/pulse.py",
    "core/requests.py",
    "core/service.py",
)
REFUSING = ("helpers/config.py", "helpers/device.py", "helpers/releases.py")  # texts of several words are errors'
# Errors of other programs' worlds: frameworks that no notebook runs.
ELSEWHERE = re.compile(r"horovod/(keras|mxnet|tensorflow|caffe)")


def extract(name) -> Catalog:
    """The messages of the English file, in their order, none translated."""
    catalog = Catalog()

    def say(message, context):
        catalog.add(message, context=context)
        return message

    if name == HELPERS:
        for setting in SETTINGS.values():
            for message in (setting.noun, setting.help, *(setting.choices or {}).values()):
                say(message, None) if message else None
        for path in sorted(source(name).rglob("*.py")):
            telling = any(part in path.as_posix() for part in TELLING)
            refusing = any(part in path.as_posix() for part in REFUSING)
            code, raising = path.read_text(encoding="utf-8"), not ELSEWHERE.search(path.as_posix())
            for message in spoken(code, telling or refusing, raising):
                if not refusing or len(message.split()) > 3:
                    say(message, None)
        for path in sorted(source(name).rglob("*.html")):
            page = jinja2.Environment().parse(path.read_text(encoding="utf-8"))
            for _, _, (message, *_) in jinja2.ext.extract_from_ast(page, SAYING, babel_style=False):
                say(message, None)
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            for cell in nbformat.read(path, as_version=4).cells:
                for message in drawn(cell.source) if cell.cell_type == "code" else ():
                    say(message, None)
    else:
        document(name, say)
    return catalog


DRAWING = {"figure", "write_at", "beside", "set", "set_xlabel", "set_ylabel", "text", "annotate"}
NO_TEXT = {"loc", "xycoords", "textcoords", "transform"}


def drawn(code):
    """What is written in the figures that a cell draws; alt texts are messages of their own page."""
    try:
        tree = ast.parse(re.sub(r"(?m)^[%!].*$", "", code))
    except SyntaxError:  # a cell of another language
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "title":
            yield from _written(node.value)
        called = getattr(node, "func", None)
        if isinstance(called, ast.Attribute) and (called.attr in DRAWING or _of_figures(called)):
            given = node.args[:1] if called.attr == "annotate" else node.args
            for value in [*given, *(option.value for option in node.keywords if option.arg not in NO_TEXT)]:
                yield from _written(value)


def _of_figures(called):
    return ast.unparse(called.value) in ("figures", "layout", "plots") and called.attr != "show"


def _written(node):
    """The lines of the texts in an expression."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        text = message_of(node) if isinstance(node, ast.JoinedStr) else node.value
        lines = (line for line in text.split("\n") if not re.match("(rank|epoch) \\S+$", line))
        yield from (line for line in lines if WORDS.match(PLACE.sub("", line)))
    elif not isinstance(node, (ast.Lambda, ast.Compare, ast.Call)):
        for part in ast.iter_child_nodes(node):
            yield from _written(part)


def spoken(code, telling=False, raising=False):
    """What a module says: first arguments of SAYING; with `raising` also the texts of the errors that it raises.

    Where all texts are for readers also the others: f-strings, hints that stand alone, and defaults such as a figure's
    title.
    """
    tree = ast.parse(code)
    errors = {id(part) for node in ast.walk(tree) if _tells(node) for part in ast.walk(node)}
    others = [node for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.Call))]
    within = {id(part) for node in others for part in ast.walk(node)} | errors
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    defaults = {id(value) for function in functions for value in function.args.defaults}
    of_strings = [node for node in others if isinstance(node, ast.JoinedStr)]
    of_strings = {id(part) for node in of_strings for part in ast.walk(node) if part is not node}
    holders = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))]
    described = {ast.get_docstring(node, clean=False) for node in holders}
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        if getattr(called, "id", getattr(called, "attr", None)) in SAYING and node.args:  # also style.said
            node = node.args[0]
        elif id(node) in errors:
            if raising and id(node) not in of_strings and isinstance(node, (ast.JoinedStr, ast.Constant)):
                said = message_of(node) if isinstance(node, ast.JoinedStr) else str(node.value)
                yield from (line for line in said.split("\n") if WORDS.match(PLACE.sub("", line)))
            continue
        elif not telling:
            continue
        elif isinstance(node, ast.JoinedStr):
            if not WORDS.match(PLACE.sub("", message_of(node))):
                continue
        elif id(node) in within or not (WORDS if id(node) in defaults else HINT).match(str(getattr(node, "value", ""))):
            continue
        if isinstance(node, ast.JoinedStr):
            yield message_of(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in described:
            yield node.value


def _tells(node):
    """Whether a statement raises an error, or adds a note to the report of a migration."""
    return isinstance(node, ast.Raise) or getattr(getattr(node, "func", None), "attr", None) in NOTES


def message_of(joined) -> str:
    """The message of an f-string: its words, and in braces a name for each value."""
    names, pieces = {}, []
    for part in joined.values:
        if isinstance(part, ast.Constant):
            pieces.append(part.value.replace("{", "{{").replace("}", "}}"))
        else:
            names.setdefault(ast.unparse(part), place(part.value, names.values()))
            pieces.append(f"{{{names[ast.unparse(part)]}{'!s' * (part.conversion == ord('s'))}}}")
    return "".join(pieces)


def place(value, taken) -> str:
    """A name for what stands in an f-string: a key, an attribute or a variable of it that no other place has."""
    nodes = list(ast.walk(value))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    keys = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    keys += [node.attr for node in nodes if isinstance(node, ast.Attribute) and id(node) not in called]
    keys += [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
    keys += [getattr(node.func, "id", "").lstrip("_") for node in nodes if isinstance(node, ast.Call)]
    keys = [key for key in keys if key.isidentifier() and key[0] != "_" and not hasattr(builtins, key)] or ["value"]
    more = (f"{keys[0]}_{letter}" for letter in string.ascii_lowercase[1:])
    return next(key for key in (*keys, *more) if key not in taken)


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
    r"|--[\w-]+(?:=[!-~]+)?|\(\)|'[^' ]+')"
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


def write(name) -> str:
    """The Chinese file's text."""
    catalog = read(name)

    def say(message, context):
        found = catalog.get(message, context)
        chinese = found.string if found and found.string and not found.fuzzy else message
        return re.sub(r"(?<=\]\()[^)\s]+", lambda link: moved(link[0], name), chinese)

    return document(name, say)


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
    return {source(one): target(one) for one in names()}.get(path, path)


def main(arguments=None):
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("command", choices=["messages", "write"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    for name in options.names or names():
        if not source(name).exists():
            parser.error(f"there is no {source(name)}: name a notebook without its folder and ending, or {README}")
    for name in options.names or [*names(), *[HELPERS][: options.command == "messages"]]:
        if options.command == "messages":
            path, content = LOCALE / f"{name}.po", text(merge(read(name), extract(name)))
        else:
            path, content = target(name), write(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
        left = [message for message in read(name) if message.id and (message.fuzzy or not message.string)]
        print(f"{path.relative_to(ROOT)}: {len(left)} of {len(read(name))} messages have no translation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
