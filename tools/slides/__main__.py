"""Make slides of the notebooks, one self-contained file each: build/slides/03_ddp.html, and zh/03_ddp.html.

    python -m tools.slides                  all notebooks of the course, in both languages
    python -m tools.slides 03_ddp           one
    python -m tools.slides --to FOLDER

A slide shows what a room looks at: question, prediction, code, drawing, figure. The prose is in the speaker's notes
(key S). Output comes at the next press of a key, after the prediction. A cell with the tag `no-slide` is left out, one
with `notes` goes into the notes. Nothing is loaded from elsewhere; no cell is run.
"""

import argparse
import html
import re
import sys
from base64 import b64encode
from pathlib import Path

import nbformat
from nbconvert.filters import Highlight2HTML, ansi2html, markdown2html_mistune
from pygments.formatters import HtmlFormatter

from tools.minutes import FOLDED
from tools.workshop import emptied

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {"en": ROOT / "notebooks", "zh": ROOT / "notebooks" / "zh"}
LANGUAGE = {"en": "en", "zh": "zh-CN"}
REVEAL = Path(__file__).with_name("reveal")
FULL = 19  # lines of a slide
FIGURE, WORDS_A_LINE, HAN_A_LINE = 14, 13, 34  # a picture's height in lines; what a line holds
MOST_CODE, MOST_OUTPUT, MOST_LIST, MOST_LEAD = 45, 14, 90, 60  # lines, lines, words: what is longer is for the notes
BLOCK = re.compile(r"^(```+)[^\n]*\n.*?^\1[ ]*$|(?:^(?!```)[^\n]*\S[^\n]*\n?)+", re.DOTALL | re.MULTILINE)
IMAGE = re.compile(r"!\[(?P<alt>[^]]*)\]\((?P<file>[^)]+)\)")
QUESTION = re.compile(r"\*\*(Question|问题)")
HEADING = re.compile(r"#{1,3} ")
PREDICTION = re.compile(r"^\s*\w*predict\w*.* = ", re.MULTILINE)
FRAGMENT = '<div class="fragment">{}</div>'


class Deck:
    """The slides of a notebook, one after the other."""

    def __init__(self, folder):
        self.folder, self.slides, self.title = folder, [], ""

    def begin(self, title=None):
        """A new slide, under a new title or the one before."""
        self.title = title or self.title
        self.slides.append({"parts": [self.title], "lines": 2, "notes": []})

    def add(self, part, lines):
        if self.slides[-1]["lines"] > 2 and self.slides[-1]["lines"] + lines > FULL:
            self.begin()
        self.slides[-1]["parts"].append(part)
        self.slides[-1]["lines"] += lines

    def note(self, text):
        self.slides[-1]["notes"].append(markdown(text))

    def sections(self):
        for slide in self.slides:
            if len(slide["parts"]) > 1 or slide["notes"]:
                notes = f'<aside class="notes">{"".join(slide["notes"])}</aside>' if slide["notes"] else ""
                yield f"<section>\n{''.join(slide['parts'])}{notes}\n</section>\n"

    def markdown_cell(self, source, before_prediction):
        blocks = [found[0].strip() for found in BLOCK.finditer(FOLDED.sub("", source))]
        for k, block in enumerate(blocks):
            asks = QUESTION.match(block) or (before_prediction and k == len(blocks) - 1)
            if HEADING.match(block):
                self.begin(markdown(block.split("\n")[0]))
            elif found := IMAGE.fullmatch(block.replace("\n", " ")):
                self.add(picture((self.folder / found["file"]).read_bytes(), "svg+xml", found["alt"]), FIGURE)
            elif asks and not block.startswith("|"):
                self.add(f'<div class="predict">{markdown(block)}</div>', height(block) + 1)
            elif shown(block) or (k and HEADING.match(blocks[k - 1]) and words(block) <= MOST_LEAD):
                self.add(markdown(block), height(block))
            else:
                self.note(block)

    def code_cell(self, cell):
        source, folded = cell.source.strip(), "hide-input" in cell.metadata.get("tags", [])
        lines = source.count("\n") + 1
        exercise = re.search(r"^check\.\w+\(", source, re.MULTILINE)
        if not folded and lines <= MOST_CODE:
            code = emptied(source) if PREDICTION.search(source) else source
            coloured = Highlight2HTML()(code, language="python")
            long = lines > 26
            self.add(f'<div class="long">{coloured}</div>' if long else coloured, (0.4 if long else 0.62) * lines + 1)
        for output in cell.get("outputs", []) if not exercise else ():
            self.output(output)

    def output(self, output):
        data = output.get("data", {})
        text = output.get("text") or ("" if "image/png" in data else data.get("text/plain", ""))
        if png := data.get("image/png"):
            alt = output.metadata.get("image/png", {}).get("alt", "")
            self.add(FRAGMENT.format(picture(png, "png", alt)), FIGURE)
        elif text.strip() and not text.startswith("<IPython") and text.count("\n") < MOST_OUTPUT:
            self.add(
                FRAGMENT.format(f'<pre class="output">{ansi2html(text.rstrip())}</pre>'), 0.62 * text.count("\n") + 2
            )


def markdown(text) -> str:
    """HTML; a link is its text, since a slide has nowhere to go."""
    made = markdown2html_mistune(re.sub(r"(?<!!)\[((?:[^][]|\[[^]]*\])*)\]\([^)]*\)", r"\1", text))
    return re.sub(r'<a class="anchor-link".*?</a>', "", made)


def words(text) -> float:
    """How long it is to read; two Chinese characters are a word."""
    return len(text.split()) + len(re.findall("[一-鿿]", text)) / 2


def picture(content, kind, alt) -> str:
    """An image with its content inside; PNGs of outputs are base64 already."""
    data = content if isinstance(content, str) else b64encode(content).decode()
    return f'<img src="data:image/{kind};base64,{data.strip()}" alt="{html.escape(alt)}">'


def shown(block) -> bool:
    """Whether a room can read it: a table, a difference, a short list; prose is spoken."""
    if block.startswith(("|", "```")):
        return height(block) <= FULL - 2
    return bool(re.match(r"([-*]|\d+\.) ", block)) and words(block) <= MOST_LIST


def height(block) -> float:
    """Lines that it takes on a slide."""
    if block.startswith(("|", "```")):
        return (0.8 if block.startswith("|") else 0.62) * (block.count("\n") + 1)
    lines = re.split(r"\n(?=[-*] |\d+\. )", block)
    return sum(1 + len(line.split()) // WORDS_A_LINE + len(re.findall("[一-鿿]", line)) // HAN_A_LINE for line in lines)


def deck(path) -> list:
    """The sections of a notebook."""
    made, cells = Deck(path.parent), [cell for cell in nbformat.read(path, as_version=4).cells if cell.id != "hosted"]
    for cell, following in zip(cells, [*cells[1:], None], strict=True):
        tags = cell.metadata.get("tags", [])
        if "no-slide" in tags:
            continue
        if "notes" in tags:
            made.note(cell.source)
        elif cell.cell_type == "markdown":
            asks = following is not None and following.cell_type == "code" and PREDICTION.search(following.source)
            made.markdown_cell(cell.source, bool(asks))
        else:
            made.code_cell(cell)
    return list(made.sections())


def page(path, language) -> str:
    """The slides of a notebook as one file."""
    sections = deck(path)
    heading = re.search(r"<h1.*?</h1>", sections[0], re.DOTALL)[0]
    title = re.sub(r"<[^>]*>", "", heading).strip()  # escaped already
    read = {
        name: (REVEAL / name).read_text(encoding="utf-8")
        for name in ("reset.css", "reveal.css", "reveal.js", "notes.js")
    }
    scripts = "".join(
        f"<script>{re.sub('//# sourceMappingURL.*', '', read[name])}</script>\n" for name in ("reveal.js", "notes.js")
    )
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    styles = read["reset.css"] + read["reveal.css"] + colours
    styles += Path(__file__).with_name("slides.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="{LANGUAGE[language]}">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        f'<link rel="icon" href="data:,">\n<style>{styles}</style></head>\n'
        f'<body><div class="reveal"><div class="slides">\n{"".join(sections)}</div></div>\n{scripts}'
        "<script>Reveal.initialize({plugins: [RevealNotes], hash: true, slideNumber: 'c/t', width: 1280, height: 720, "
        "margin: 0.03, center: false, transition: 'none'});</script>\n</body>\n</html>\n"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a notebook, such as 03_ddp")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "slides", help="folder of the slides")
    options = parser.parse_args(arguments)
    names = options.names or sorted(path.stem for path in NOTEBOOKS["en"].glob("[0-9][0-9]_*.ipynb"))
    for name in names:
        if not (NOTEBOOKS["en"] / f"{name}.ipynb").exists():
            parser.error(f"there is no notebook {name!r}: name one like 03_ddp")
    for language, folder in (("en", options.to), ("zh", options.to / "zh")):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            there = folder / f"{name}.html"
            there.write_text(page(NOTEBOOKS[language] / f"{name}.ipynb", language), encoding="utf-8")
            print(there)
    return 0


if __name__ == "__main__":
    sys.exit(main())
