"""Write the learner's edition of the notebooks into workshop/: no outputs, empty predictions, no solutions.

    python -m tools.workshop            what is missing, and what changed here but was not touched there
    python -m tools.workshop --fresh    all anew; a notebook with work in it is kept under another name

The executed edition in notebooks/ has our predictions and results, so nobody should read it first. A file of workshop/
that its reader has changed is never overwritten.
"""

import argparse
import ast
import json
import os
import re
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import nbformat

from helpers.paths import replace_file

ROOT = Path(__file__).resolve().parent.parent
SOURCE, WORKSHOP = ROOT / "notebooks", ROOT / "workshop"
MADE = ".made.json"  # {file: digest of what we wrote}
SOLUTIONS = {  # the summary of a folded solution: what the learner's edition has in its place
    "A solution": '`exercises.solution("{}")` shows a solution, once you have tried.',
    "参考答案": '先尝试，再用 `exercises.solution("{}")` 查看参考答案。',
}
SOLUTION = re.compile(rf"<details><summary>({'|'.join(SOLUTIONS)})</summary>.*?</details>", re.DOTALL)
CHECK = re.compile(r"^check\.(\w+)\(", re.MULTILINE)
LINKED = ("scripts", "drawings")  # folders that cells and texts name


def learners(notebook):
    """The learner's edition of a notebook."""
    exercise = None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None, source=emptied(cell.source))
            if found := CHECK.search(cell.source):
                exercise = found[1]
        elif exercise:
            cell.source = SOLUTION.sub(partial(_pointer, exercise), cell.source)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code" and cell.id != "hosted")
    first.source = f"%load_ext tools.predictions\n{first.source}"
    return notebook


def _pointer(exercise, folded):
    return SOLUTIONS[folded[1]].format(exercise)


def emptied(source) -> str:
    """Code with `...` in the place of its predictions: of a dict the values, of several names a value each."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # magics
        return source
    lines = [line.encode() for line in source.split("\n")]
    values = [value for statement in tree.body for value in _predicted(statement)]
    for value in sorted(values, key=lambda value: (value.lineno, value.col_offset), reverse=True):
        last = lines[value.end_lineno - 1][value.end_col_offset :]
        lines[value.lineno - 1 : value.end_lineno] = [lines[value.lineno - 1][: value.col_offset] + b"..." + last]
    return b"\n".join(lines).decode()


def _predicted(statement):
    """The values of a statement that a reader is to predict; what is computed by a call is no prediction."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    (target,), value = statement.targets, statement.value
    names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
    if not all("predict" in name for name in names) or any(isinstance(node, ast.Call) for node in ast.walk(value)):
        return []
    if isinstance(value, ast.IfExp):
        value = value.body
    if isinstance(value, ast.Dict):
        return value.values
    return value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value]


def write(fresh=False):
    """Bring workshop/ up to date; yields a line for each file that holds its reader's work and is kept."""
    WORKSHOP.mkdir(exist_ok=True)
    made = WORKSHOP / MADE
    digests = json.loads(made.read_text(encoding="utf-8")) if made.exists() else {}
    folders = {WORKSHOP}
    for path in sorted(SOURCE.glob("**/*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        name = path.relative_to(SOURCE).as_posix()
        there = WORKSHOP / name
        there.parent.mkdir(parents=True, exist_ok=True)
        folders.add(there.parent)
        text = nbformat.writes(learners(nbformat.read(path, as_version=4))) + "\n"
        if there.exists() and digests.get(name) != digest(there.read_text(encoding="utf-8")):
            if not fresh:
                yield f"kept workshop/{name}: it has been changed there"
                continue
            os.replace(there, kept := _free(there))
            yield f"workshop/{name} is new; the one with work in it is {kept.relative_to(ROOT)}"
        replace_file(there, text)
        digests[name] = digest(text)
    for folder in folders:
        for linked in LINKED:
            source = SOURCE / folder.relative_to(WORKSHOP) / linked
            if source.exists() and not (folder / linked).exists():
                (folder / linked).symlink_to(os.path.relpath(source, folder), target_is_directory=True)
    replace_file(made, json.dumps(digests, indent=1) + "\n")


def digest(text):
    return sha256(text.encode()).hexdigest()


def _free(path):
    """A name like that of `path` that nobody has: 03_ddp.mine.ipynb, 03_ddp.mine2.ipynb."""
    names = (path.with_name(f"{path.stem}.mine{number or ''}.ipynb") for number in (0, *range(2, 1000)))
    return next(name for name in names if not name.exists())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="write all anew, keep work under another name")
    for line in write(parser.parse_args(arguments).fresh):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
