"""Print the cheat sheet on one page: build/cheatsheet/en.pdf and zh.pdf, and the same as HTML.

    python -m tools.cheatsheet              needs Chromium or Chrome for the PDF
    python -m tools.cheatsheet --to FOLDER

The text is that of docs/teaching/cheatsheet.md and its Chinese counterpart.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mistune

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"en": ROOT / "docs/teaching/cheatsheet.md", "zh": ROOT / "docs/zh/teaching/cheatsheet.md"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STYLE = """
@page { size: A4 landscape; margin: 8mm; }
body { color: #1f2328; font: 9pt/1.35 "DejaVu Sans", "Noto Sans CJK SC", "PingFang SC", sans-serif; margin: 0; }
h1 { font-size: 14pt; margin: 0 0 2mm; }
main { column-count: 3; column-gap: 6mm; }
section { break-inside: avoid; margin-bottom: 2.5mm; }
h2 { background: #0072b2; color: #fff; font-size: 9.5pt; margin: 0 0 1mm; padding: 0.6mm 1.5mm; }
p, ol, ul, table, pre { margin: 0 0 1.2mm; }
ol, ul { padding-left: 7mm; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 0.2mm solid #d0d7de; padding: 0.3mm 1mm 0.3mm 0; text-align: left; vertical-align: top; }
code { font-family: "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace; font-size: 7.4pt; overflow-wrap: anywhere; }
pre { background: #f6f8fa; padding: 1mm 1.5mm; }
pre code { font-size: 6.6pt; overflow-wrap: normal; white-space: pre; }
@media screen { body { margin: 1rem auto; max-width: 75rem; padding: 0 1rem; } pre { overflow-x: auto; } }
@media screen and (max-width: 60rem) { main { column-count: 1; } }
"""


class NoBrowser(RuntimeError):
    """No browser here can print."""


def page(language) -> str:
    """The sheet as a web page of one file."""
    text = mistune.create_markdown(plugins=["table"])(PAGES[language].read_text(encoding="utf-8"))
    title, *sections = re.split(r"(?=<h2)", text)
    body = "".join(f"<section>{section}</section>\n" for section in sections)
    name = re.sub(r"<[^>]+>", "", title).strip()
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    code = {"en": "en", "zh": "zh-CN"}[language]
    return (
        f'<!doctype html>\n<html lang="{code}">\n<head>{head}<title>{name}</title>\n<style>{STYLE}</style></head>\n'
        f"<body>\n{title}<main>\n{body}</main>\n</body>\n</html>\n"
    )


def printed(html, pdf):
    """Print a web page into a PDF file; raises NoBrowser."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise NoBrowser(f"no Chromium or Chrome is on the path; open {html} in a browser and print it")
    flags = ["--headless", "--disable-gpu", "--no-pdf-header-footer", "--virtual-time-budget=5000"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium's sandbox refuses root, as in a container
        flags.append("--no-sandbox")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *flags, f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", html.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode or not pdf.exists():
        raise NoBrowser(f"{program} could not print {html}: {done.stderr.strip()[-500:]}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "cheatsheet", help="folder of the files")
    to = parser.parse_args(arguments).to
    to.mkdir(parents=True, exist_ok=True)
    for language in PAGES:
        html = to / f"{language}.html"
        html.write_text(page(language), encoding="utf-8")
        print(html)
    try:
        for language in PAGES:
            printed(to / f"{language}.html", to / f"{language}.pdf")
            print(to / f"{language}.pdf")
    except NoBrowser as error:
        print(f"cheatsheet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
