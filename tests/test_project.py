"""The project's own promises: consistent pins, imports that run one way, nothing of one machine in it."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it for Python 3.10

ROOT = Path(__file__).resolve().parent.parent

# Pins


def pins_of(name):
    """The requirements of one of the project's files."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".yml"):
        lines = [line for line in yaml.safe_load(text)["dependencies"][-1]["pip"] if not line.startswith("-")]
    else:
        lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return [Requirement(line) for line in lines]


def direct(group):
    """The direct requirements in pyproject.toml: of .venv (with those of the tests), or of a dependency group."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]["dependencies"] + sum(data["project"]["optional-dependencies"].values(), [])
    return [Requirement(line) for line in (project if group == "project" else data["dependency-groups"][group])]


def that_hold(requirements, python):
    """{name: specifier} of the requirements that hold for a Python version on Linux."""
    held = [one for one in requirements if not one.marker or one.marker.evaluate(
        {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"})]  # fmt: skip
    return {canonicalize_name(one.name): one.specifier for one in held}


@pytest.mark.parametrize(
    "group, files, pythons",
    [
        ("project", ["environment.yml", "requirements.txt"], ["3.10", "3.11", "3.12", "3.13", "3.14"]),
        ("xla", ["environment-xla.yml", "requirements-xla.txt"], ["3.10", "3.13"]),
        ("keras", ["requirements-keras.txt"], ["3.10", "3.13"]),
        ("mxnet", ["requirements-mxnet.txt"], ["3.8"]),
        ("site", ["requirements-site.txt"], ["3.11", "3.14"]),
    ],
)
def test_every_file_pins_the_same_versions_within_the_ranges_of_pyproject(group, files, pythons):
    for python in pythons:
        ranges = that_hold(direct(group), python)
        pinned = [that_hold(pins_of(name), python) for name in files]
        for package, specifier in ranges.items():
            exact = {str(of_file.get(package)) for of_file in pinned}
            assert len(exact) == 1 and exact.copy().pop().startswith("=="), f"{package} in {files}: {exact}"
            assert specifier.contains(exact.pop()[2:]), f"{package}, Python {python}"


# Imports

# Each room may import from the rooms to its right. Wings and the exercises' checks may import from every room, and a
# room imports from them only inside a function.
ROOMS = (
    "report comparison profile costmodel training compiler hosts plots records config data launcher device paths"
).split()
WINGS = ("hvd", "npu", "migrate", "xla", "check")


@cache
def imports(path):
    """(dotted name, whether it is inside a function) of all that a module imports from helpers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(node) for function in ast.walk(tree) if isinstance(function, (ast.FunctionDef, ast.Lambda))
              for node in ast.walk(function)}  # fmt: skip
    package = path.relative_to(ROOT).parts[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name, id(node) in inside) for name in names if name.split(".")[0] == "helpers"]
    return found


MODULES = sorted((ROOT / "helpers").rglob("*.py"))


def upward_imports():
    """Problems: modules that import from a room to the left of their own."""
    for path in MODULES:
        where = path.relative_to(ROOT / "helpers").with_suffix("").parts
        for name, lazy in imports(path):
            there = (name.split(".") + [""])[1]
            if where[0] in WINGS and there not in ("report", "__main__"):
                continue
            if where[0] in ROOMS and there in ROOMS and ROOMS.index(there) < ROOMS.index(where[0]):
                yield f"{path.relative_to(ROOT)} imports {name}: {where[0]} stands below {there}"
            elif where[0] in ROOMS and there in WINGS and not lazy:
                yield f"{path.relative_to(ROOT)} imports {name} where it is loaded: import a wing inside a function"


def test_imports_run_one_way():
    assert list(upward_imports()) == []


def test_modules_do_not_import_in_circles_when_they_are_loaded():
    paths = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in paths.items():
        loaded = [target for target, lazy in imports(path) if not lazy]
        targets = {target if target in paths else target.rpartition(".")[0] for target in loaded}
        graph[name] = {t for t in targets if t in paths and t != name and not name.startswith(f"{t}.")}
    TopologicalSorter(graph).prepare()


def test_few_files_stand_at_the_root_of_helpers():
    assert len(list((ROOT / "helpers").glob("*.py"))) <= 8
    folders = {path.name for path in (ROOT / "helpers").iterdir() if any(path.glob("*.py"))}
    assert folders == {*ROOMS, *WINGS} - {"config", "device", "paths"}


def test_importing_helpers_loads_nothing_slow():
    code = "import sys, helpers; sys.exit(bool({'torch', 'matplotlib', 'pandas', 'jinja2'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


# Files


def project_files():
    """Every file of the project that git tracks or would take in."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


# In pieces, since this file is one of those that are searched.
HOSTS = [
    ("pypi", "org"), ("pypi", "python", "org"), ("files", "pythonhosted", "org"), ("download", "pytorch", "org"),
    ("repo", "anaconda", "com"), ("conda", "anaconda", "org"), ("registry", "npmjs", "org"), ("deb", "debian", "org"),
]  # fmt: skip
FOLDERS = ["/" + "root/", "/" + "work/", "/" + "tmp/w/", "/" + r"home/\w", "/" + r"Users/\w", "/" + "opt/pypi"]
FORBIDDEN = re.compile("|".join([*(r"\.".join(host) for host in HOSTS), *(rf"(?<![\w.]){it}" for it in FOLDERS)]))


def forbidden(text):
    return [match[0] for match in FORBIDDEN.finditer(text)]


def test_nothing_of_one_machine_is_in_the_files():
    texts = {path.relative_to(ROOT): path.read_bytes() for path in project_files()}
    assert not [(path, forbidden(text.decode("utf-8"))) for path, text in texts.items()
                if b"\0" not in text and forbidden(text.decode("utf-8"))]  # fmt: skip


def test_the_code_is_tidy():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_continuous_integration_runs_make_test():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    commands = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert commands.index("make test") < commands.index("make test-long")


@pytest.mark.parametrize("name, command", [("test", ".ci/run"), ("site", "make site")])
def test_workflows_run_the_commands_of_a_clone(name, command):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert command in [step.get("run") for step in job["steps"]]
