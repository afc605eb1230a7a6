"""How long a notebook takes to read and do, computed from its cells; headers and README show these numbers.

    python -m tools.minutes             a table: words, lines, figures, exercises, minutes
    python -m tools.minutes --write     the numbers into the notebooks' headers, README and the plans of a workshop

Prose is read at 180 words a minute; a line of visible code takes 10 seconds, a figure or a drawing 30, an exercise 5
minutes. Sections marked *(optional)* and folded text count for nothing, nor does notebooks/more.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

from helpers.paths import replace_file

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 45  # minutes of a notebook's required part, exercises included
WORDS_A_MINUTE, LINE_S, FIGURE_S, EXERCISE_MIN = 180, 10, 30, 5
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
IMAGE = re.compile(r"!\[[^]]*\]\([^)]*\)")
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
CHECK = re.compile(r"^check\.\w+\(", re.MULTILINE)
HEADERS = (  # in English and in Chinese, without exercises and with
    (
        re.compile(r"Reading: \d+ minutes(?:, \d+ with the exercises)?"),
        "Reading: {} minutes",
        ", {} with the exercises",
    ),
    (re.compile("阅读时间：\\d+ 分钟(?:，含练习 \\d+ 分钟)?"), "阅读时间：{} 分钟", "，含练习 {} 分钟"),
)


@dataclass
class Reading:
    """What there is to read and do in the required part of a notebook."""

    words: int = 0
    lines: int = 0
    figures: int = 0
    exercises: int = 0

    @property
    def minutes(self):
        """Reading alone."""
        return round(self.words / WORDS_A_MINUTE + (self.lines * LINE_S + self.figures * FIGURE_S) / 60)

    @property
    def with_exercises(self):
        return self.minutes + self.exercises * EXERCISE_MIN


def reading(path) -> Reading:
    """What a notebook takes; a section ends at the next heading of its level or above."""
    found, optional = Reading(), None  # the level of the optional section that we are in
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            optional = _markdown(cell.source, found, optional)
        elif optional is None:
            _code(cell, found)
    return found


def _markdown(source, found, optional):
    """Count the text of a cell part by part; the level of the optional section that the next cell is in, or None."""
    headings = [(match.start(), len(match[1]), match[2]) for match in HEADING.finditer(CODE.sub(_blank, source))]
    starts = [(0, None, "")] + headings
    for (start, level, title), (end, *_) in zip(starts, [*starts[1:], (len(source), None)], strict=True):
        if level is not None and (optional is None or level <= optional):
            optional = level if "optional" in title else None
        if optional is None:
            _prose(source[start:end], found)
    return optional


def _blank(found):
    return re.sub(r"[^\n]", " ", found[0])


def _prose(text, found):
    text = FOLDED.sub(" ", text)
    found.figures += len(IMAGE.findall(text))
    text = IMAGE.sub(" ", text)
    found.lines += sum(len(block.splitlines()) - 2 for block in CODE.findall(text))
    found.words += len(re.findall(r"\w[\w'’.-]*", CODE.sub(" ", text)))


def _code(cell, found):
    pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    found.figures += len(pictures)
    found.exercises += len(CHECK.findall(cell.source))
    if "hide-input" not in cell.metadata.get("tags", []):
        lines = (line.strip() for line in cell.source.splitlines())
        found.lines += sum(bool(line) and not line.startswith("#") for line in lines)


def notebooks() -> list:
    """The notebooks of the course, in reading order."""
    return sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def headed(text, found) -> str:
    """A notebook's text, or that of its catalog, with the numbers of `found` in its header."""
    for pattern, alone, exercises in HEADERS:
        said = alone.format(found.minutes) + (exercises.format(found.with_exercises) if found.exercises else "")
        text = pattern.sub(said, text, count=1 if text.startswith("{") else 0)
    return text


def listed(text, readings) -> str:
    """README's text, or that of its catalog, with the minutes of each notebook in its row."""
    for stem, found in readings.items():
        row = re.compile(rf"(\(notebooks/(?:zh/)?{stem}\.ipynb\)(?:(?!\\n|\n).)*\| )\d+( \|)")
        text = row.sub(rf"\g<1>{found.with_exercises}\g<2>", text)
    return text


SLOT = re.compile(r"(?P<before>\| )(?P<at>\d\d:\d\d)(?P<what> \| .* \| )(?P<minutes>\d+)(?P<after> \|)")


def planned(text, readings) -> str:
    """Workshop plans, or their catalog, with each notebook's minutes; the slot before the end gets what is left."""
    lines = text.split("\n")
    for table in tables(lines):
        (first, *_), end = table, clock(SLOT.search(lines[table[-1]])["at"])
        now = clock(SLOT.search(lines[first])["at"])
        for k in table:
            slot = SLOT.search(lines[k])
            stem = re.search(r"notebooks/(\w+)\.ipynb", slot["what"])
            minutes = readings[stem[1]].with_exercises if stem else int(slot["minutes"])
            if k == table[-2]:
                minutes = max(0, end - now)
            at = f"{now // 60:02}:{now % 60:02}"
            lines[k] = SLOT.sub(rf"\g<before>{at}\g<what>{minutes}\g<after>", lines[k])
            now += minutes
    return "\n".join(lines)


def tables(lines):
    """The numbers of the lines of each plan, which stand one below the other."""
    table = []
    for k, line in enumerate([*lines, ""]):
        if SLOT.search(line):
            table.append(k)
        elif table:
            yield table
            table = []


def clock(time):
    hours, minutes = time.split(":")
    return 60 * int(hours) + int(minutes)


def written() -> dict:
    """{file: its text with the computed numbers}."""
    readings = {path.stem: reading(path) for path in notebooks()}
    files = {}
    for path in notebooks():
        for file in (path, ROOT / "locale" / "zh_CN" / f"{path.stem}.po"):
            files[file] = headed(file.read_text(encoding="utf-8"), readings[path.stem])
    for file in (ROOT / "README.md", ROOT / "locale" / "zh_CN" / "readme.po"):
        files[file] = listed(file.read_text(encoding="utf-8"), readings)
    for file in (ROOT / "docs/teaching/schedules.md", ROOT / "locale/zh_CN/docs/teaching/schedules.po"):
        files[file] = planned(file.read_text(encoding="utf-8"), readings)
    return files


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the numbers into headers and README")
    options = parser.parse_args(arguments)
    print(f"{'notebook':24}{'words':>7}{'lines':>7}{'figures':>9}{'exercises':>11}{'reading':>9}{'in all':>8}")
    for path in notebooks():
        found = reading(path)
        print(
            f"{path.stem:24}{found.words:7,}{found.lines:7}{found.figures:9}{found.exercises:11}"
            f"{found.minutes:9}{found.with_exercises:8}{' !' if found.with_exercises > LIMIT else ''}"
        )
    for file, text in written().items() if options.write else ():
        replace_file(file, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
