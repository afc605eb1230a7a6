"""Build the static site from README, docs and notebooks as they are committed; no cell is run.

    .venv-site/bin/python -m tools.site                  into build/site
    .venv-site/bin/python -m tools.site --to elsewhere

English pages lie at the top, Chinese ones in zh/; each language is a site of its own for Sphinx, with its own search.
Links are those of the files: to another page, or else to the file in the repository, if tools/publish.toml, or
GITHUB_REPOSITORY, says where that is; else their text stays.
"""

import argparse
import html
import os
import re
import shutil
import struct
import subprocess
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path, PurePosixPath

import nbformat

from tools import minutes
from tools.site import api, home, places

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = places.repository()
API = {"tools/site/api.md": "api.html", "tools/site/api.zh.md": "zh/api.html"}
FOLDERS = ("notebooks", "notebooks/more", "docs/howto", "docs", "docs/teaching", "docs/project")
LANGUAGES = {"en": "", "zh_CN": "zh/"}  # and where their pages lie
# Code and links to elsewhere stay as they are; a link in the rest has a text, a target and perhaps a part of it.
LINK = re.compile(
    r"^ *(```+).*?^ *\1|(?<!\[)(`+)[^`].*?\2|\[[^\[\]]*\]\(\w+:[^)\s]*\)"
    r"|\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)(?P<file>[^)\s#]+)(?P<part>#[^)\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)
WORDS = {
    "en": {
        "exercises": "{} minutes with exercises",
        "open": "Open in",
        "notebooks": "Notebooks",
        "more": "More depth",
        "howto": "How-to",
        "docs": "Explanation",
        "teaching": "Teaching",
        "project": "The project",
    },
    "zh_CN": {
        "exercises": "连同练习 {} 分钟",
        "open": "打开：",
        "notebooks": "Notebook",
        "more": "深入阅读",
        "howto": "操作指南",
        "docs": "说明",
        "teaching": "教学",
        "project": "关于本项目",
    },
}


def pages(root) -> dict:
    """{file: address in the site}, in reading order."""
    found = {"README.md": "index.html", "README.zh.md": "zh/index.html"}
    for folder in FOLDERS:
        for place, prefix in ((folder, ""), (chinese(folder), "zh/")):
            for path in sorted([*(root / place).glob("*.ipynb"), *(root / place).glob("*.md")]):
                name = path.stem.replace("README", "index")
                found[path.relative_to(root).as_posix()] = f"{prefix}{folder}/{name}.html"
    return found | {"CONTRIBUTING.md": "docs/project/contributing.html"} | API


def chinese(path) -> str:
    """Where the Chinese file of a notebook or page lies, or the Chinese ones of a folder."""
    return re.sub("^(notebooks|docs)", r"\1/zh", path)


def language(address) -> str:
    return "zh_CN" if address.startswith("zh/") else "en"


def part_of(page) -> str:
    """Under which caption a page is listed at the side."""
    return os.path.basename(os.path.dirname(page))


class Page:
    """One file on its way into the site: `text()` is what Sphinx reads."""

    def __init__(self, root, file, found, stage):
        self.root, self.file, self.found, self.stage = root, file, found, stage
        self.address = found[file]
        self.language = language(self.address)
        self.source = stage / self.language / self.address.removeprefix(LANGUAGES[self.language])

    def text(self):
        if self.file.endswith(".md"):
            text = (self.root / self.file).read_text(encoding="utf-8")
            if self.file in API:
                text = api.text(text, self.language)
            text = re.sub(r"^\[[^]]+\]\(README[.\w]*\)\n", "", text, count=1, flags=re.MULTILINE)  # the bar has it
            if self.file.startswith("README"):
                text = home.text(text, self.language)
            return self.prose(text, first=True) + self.contents()
        notebook = nbformat.read(self.root / self.file, as_version=4)
        cells = []
        for cell in notebook.cells:
            anchor = f'<span id="cell-id={cell.id}"></span>\n\n'  # where JupyterLab's links to cells lead
            if cell.cell_type == "markdown":
                cell.source = self.prose(cell.source, first=not cells, anchor=anchor)
            else:
                cells.append(nbformat.v4.new_markdown_cell(anchor))
                if cell.id == "hosted":  # it fetches the kit, which a reader of the site has or does not need
                    continue
                for output in cell.get("outputs", []):
                    self.picture(output)
            cells.append(cell)
        notebook.cells = cells
        return nbformat.writes(notebook)

    def prose(self, text, first=False, anchor=""):
        text = LINK.sub(lambda found: self.linked(found) if found["file"] else found[0], text)
        if not first:
            return anchor + text
        title, _, rest = text.partition("\n")
        return f"{title}\n\n{anchor}{self.bar()}\n{rest}"

    def linked(self, found):
        """A link as it is in the site; its text where there is nowhere to go."""
        target = self.link(found["file"])
        return f"[{found['text']}]({target}{found['part'] or ''})" if target else found["text"]

    def link(self, target):
        """Where the link leads: to a page of the site, to a picture that is taken along, or into the repository."""
        file = os.path.normpath(PurePosixPath(self.file).parent / target)
        if file in self.found:
            return self.relative(self.found[file])
        if file.endswith((".svg", ".png")):
            kept = f"recorded/{sha256(file.encode()).hexdigest()[:8]}-{os.path.basename(file)}"
            place = self.stage / self.language / kept
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / file, place)
            return os.path.relpath(place, self.source.parent)
        return f"https://github.com/{REPOSITORY}/blob/main/{file}" if REPOSITORY else ""

    def relative(self, address):
        return os.path.relpath(address, os.path.dirname(self.address) or ".")

    def picture(self, output):
        """Put the picture of an output into a file, shown with its alt text, which myst-nb does not read."""
        png = output.get("data", {}).pop("image/png", None)
        if png is None:
            return
        content = b64decode(png)
        width, height = struct.unpack(">II", content[16:24])
        address = f"figures/{sha256(content).hexdigest()[:16]}.png"
        place = self.stage / "figures" / address
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        alt = html.escape(output.metadata.get("image/png", {}).get("alt", ""))
        size = f'width="{width}" height="{height}" loading="lazy"'
        output.data["text/html"] = f'<img class="figure" src="{self.relative(address)}" alt="{alt}" {size}>'

    def bar(self):
        """Below the title of a notebook: its minutes, as README has them, and where it opens (`make lab`, too)."""
        if not self.file.endswith(".ipynb"):
            return ""
        words = WORDS[self.language]
        there = {"JupyterLab": f"http://localhost:8888/lab/tree/{self.file.replace('notebooks', 'workshop', 1)}"}
        if REPOSITORY:
            github = f"github.com/{REPOSITORY}/blob/main/{self.file}"
            there["Colab"] = f"https://colab.research.google.com/{github.replace('.com', '', 1)}"
            there["Kaggle"] = f"https://kaggle.com/kernels/welcome?src=https://{github}"
        links = " · ".join(f'<a href="{href}">{name}</a>' for name, href in there.items())
        found = minutes.reading(self.root / self.file.replace("/zh/", "/"))
        time = words["exercises"].format(found.with_exercises)
        return f'<p class="bar">{time} · {words["open"]} {links}</p>\n'

    def contents(self):
        """What the home page of a language ends in: all its other pages, for the column at the side."""
        if self.address not in ("index.html", "zh/index.html"):
            return ""
        mine = [
            address.removeprefix(LANGUAGES[self.language]).removesuffix(".html")
            for address in self.found.values()
            if language(address) == self.language
        ]
        text = ""
        for part in ("", *map(os.path.basename, FOLDERS)):
            listed = [page for page in mine if page != "index" and part_of(page) == part]
            if listed:
                caption = f":caption: {WORDS[self.language][part]}\n" if part else ""
                text += "\n```{toctree}\n:hidden:\n" + caption + "\n" + "\n".join(listed) + "\n```\n"
        return text


def write(root, stage):
    """Write what Sphinx reads into `stage`."""
    found = pages(root)
    for file in found:
        page = Page(root, file, found, stage)
        path = page.source.with_suffix(PurePosixPath(file).suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.text(), encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "site", help="folder of the site")
    to = parser.parse_args(arguments).to.resolve()
    stage = to.with_name(f"{to.name}-source")
    for folder in (to, stage):
        shutil.rmtree(folder, ignore_errors=True)
    write(ROOT, stage)
    for code, folder in LANGUAGES.items():
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(Path(__file__).parent)]
        command += [
            "-d",
            str(stage / f"{code}-doctrees"),
            "-D",
            f"language={code}",
            str(stage / code),
            str(to / folder),
        ]
        subprocess.run(command, check=True)
    shutil.copytree(stage / "figures", to, dirs_exist_ok=True)
    base = f"/{REPOSITORY.partition('/')[2]}/" if REPOSITORY else "/"  # the page is shown under any address
    (to / "404.html").write_text((Path(__file__).with_name("404.html")).read_text().replace("BASE", base))
    texts = {to: (ROOT / file).read_text("utf-8") for file, to in pages(ROOT).items() if file.endswith(".md")}
    titles = {address: re.search("^# (.*)", text, re.MULTILINE)[1] for address, text in texts.items()}
    english = {address: title for address, title in titles.items() if language(address) == "en"}
    for_models = home.for_models(texts["index.html"], {k: english[k] for k in english if k != "index.html"})
    (to / "llms.txt").write_text(for_models, encoding="utf-8")
    print(f"{len(pages(ROOT))} pages in {to}")


if __name__ == "__main__":
    main()
