"""Run notebooks and write them in one canonical form, so that a diff shows only what changed.

    python tools/render_notebooks.py notebooks/*.ipynb            run, then write in place
    python tools/render_notebooks.py --check notebooks/*.ipynb    run nothing, write nothing

A notebook in which a cell failed, or whose outputs should not be published, is not written. One in a folder `zh` speaks
Chinese: its outputs are its own then, and `make zh` keeps them for as long as the code of their cells stays the same.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
import uuid
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import nbformat

MAX_BYTES = 500_000  # larger notebooks are slow to load, and code hosts stop rendering them
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SPEAKS = "outputs_speak"  # in the metadata of a notebook that was rendered in another language than English
FOLDED = "hide-input"  # Jupyter Book's word for it
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # empty without the widget state, which is dropped
MACHINE_PATH = re.compile(
    r"(?<![\w.])(?:/(?:root|home|tmp|work|mnt|Users|private|var/folders)(?![\w.-])|~/|[A-Z]:\\Users\\)[^\s'\"<>]*"
)


def kernel_environment(results, language="en"):
    """Environment variables of a kernel whose outputs are to be the same in every run.

    The tests start the notebooks' kernels with the same ones (conftest.py). `results` is the
    folder for what the notebooks record.
    """
    # ipykernel stops showing what child processes print when PYTEST_CURRENT_TEST is set.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    fixed = {"NBVAL": "1", "HELPERS_PROGRESS": "plain", "HELPERS_LANG": language, "PYTHONHASHSEED": "0"}
    fixed["HELPERS_ALONE"] = "0"  # other tests run at the same time; none measures what anybody compares
    return environment | fixed | {"HELPERS_RESULTS": str(results)}


def execute(notebook, folder, results, timeout, language="en"):
    """Run all cells of `notebook` in a fresh kernel started in `folder`; outputs are put into it.

    Raises what nbclient raises: a cell failed, took longer than `timeout` seconds, or its kernel died.
    """
    from nbclient import NotebookClient  # here, since conftest.py imports this module for every test run

    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=600,  # nbclient's 60 s are too few on a busy machine
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=kernel_environment(results, language))


def canonical(notebook):
    """The text of the notebook with everything left out that changes from run to run or viewer to viewer.

    Kept are the sources, cell ids, tags and outputs with their metadata (the alt text of figures). Jupyter folds
    the code of a cell that is tagged FOLDED.
    """
    notebook = deepcopy(notebook)
    spoken = {SPEAKS: notebook.metadata[SPEAKS]} if SPEAKS in notebook.metadata else {}
    notebook.metadata = nbformat.from_dict(METADATA | spoken)
    notebook.nbformat_minor = max(5, notebook.nbformat_minor)  # 4.5 brought cell ids
    count = 0
    for cell in notebook.cells:
        cell.setdefault("id", uuid.uuid4().hex[:8])
        tags = cell.metadata.get("tags")
        folded = {"jupyter": {"source_hidden": True}} if FOLDED in (tags or ()) else {}
        cell.metadata = nbformat.from_dict({"tags": tags} | folded if tags else {})
        if cell.cell_type == "code":
            count += bool(cell.source.strip())
            cell.execution_count = count if cell.source.strip() else None
            cell.outputs = canonical_outputs(cell.outputs, cell.execution_count)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def canonical_outputs(outputs, execution_count):
    """Outputs without widget views, with the pieces of a stream put together."""
    kept = []
    for output in outputs:
        if WIDGET_VIEW in output.get("data", {}):
            del output.data[WIDGET_VIEW]
            if not output.data:
                continue
        if output.output_type == "execute_result":
            output.execution_count = execution_count
        # Where a stream is cut into messages is a matter of timing.
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def output_text(output):
    """What an output says, pictures apart."""
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return "\n".join([output.evalue, *output.traceback])
    data = {mime: value for mime, value in output.data.items() if not mime.startswith("image/")}
    texts = [value if isinstance(value, str) else json.dumps(value) for value in data.values()]
    return "\n".join([*texts, json.dumps(output.metadata)])


def machine_paths(notebook):
    """Problems: paths in cells and outputs that exist on the machine of the author only."""
    problems = []
    for number, cell in enumerate(notebook.cells):
        for text in [cell.source, *map(output_text, cell.get("outputs", []))]:
            problems += [f"cell {number}: machine path {path}" for path in MACHINE_PATH.findall(text)]
    return problems


def too_large(text):
    """Problems: a notebook text of more than MAX_BYTES bytes."""
    size = len(text.encode())
    return [f"{size} bytes, allowed are {MAX_BYTES}: make figures smaller"] if size > MAX_BYTES else []


def render(path, results, timeout):
    """Run the notebook at `path` and replace it by its canonical form; returns the problems.

    With problems the file is left as it was.
    """
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    notebook, folder = nbformat.read(path, as_version=4), path.resolve().parent
    language = "zh" if "zh" in (folder.name, folder.parent.name) else "en"
    try:
        execute(notebook, folder, results, timeout, language)
    except (CellControlSignal, DeadKernelError) as error:
        return [str(error)]
    if language != "en":
        notebook.metadata[SPEAKS] = language
    text = canonical(notebook)
    problems = machine_paths(notebook) + too_large(text)
    if not problems:
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    return problems


def check(path):
    """Problems of the notebook at `path` as it lies there."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    problems = machine_paths(notebook) + too_large(text)
    if canonical(notebook) != text:
        problems.append("not in canonical form: run tools/render_notebooks.py on it")
    return problems


def main(arguments=None):
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--check", action="store_true", help="only check, without running")
    parser.add_argument("--results", help="folder for what the notebooks record (default: a temporary one)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell may take (default: 600)")
    options = parser.parse_args(arguments)

    failed = False
    with nullcontext(options.results) if options.results else tempfile.TemporaryDirectory() as results:
        for path in options.notebooks:
            start = time.monotonic()
            if options.check:
                problems = check(path)
            else:
                problems = render(path, Path(results).resolve(), options.timeout)
            verdict = "not written" if problems and not options.check else f"{len(problems)} problems"
            print(f"{path}: {verdict}, {time.monotonic() - start:.0f} s", flush=True)
            for problem in problems:
                print(f"  {problem}", file=sys.stderr)
            failed = failed or bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
