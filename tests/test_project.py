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
    extras = data["project"]["optional-dependencies"]  # of which those of engines are for who has a cluster
    project = data["project"]["dependencies"] + extras["vision"] + extras["test"]
    return [Requirement(line) for line in (project if group == "project" else data["dependency-groups"][group])]


def that_hold(requirements, python):
    """{name: specifier} of the requirements that hold for a Python version on Linux."""
    held = [
        one
        for one in requirements
        if not one.marker
        or one.marker.evaluate(
            {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
        )
    ]
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

# Each room of helpers may import from the rooms to its right. Platforms and exercises import helpers, never back; an
# exercise about a platform imports it inside the function that needs it.
ROOMS = (
    "report comparison profile costmodel training compiler cluster plots records config data persistent group launcher "
    "device language paths"
).split()
PLATFORMS = {"horovod", "migrate", "npu", "xla"}
PACKAGES = ("exercises", "helpers", "platforms")


@cache
def imports(path):
    """(dotted name, whether it is inside a function) of all that a module imports from the project's packages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    inside = {id(node) for function in functions for node in ast.walk(function)}
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
        found += [(name, id(node) in inside) for name in names if name.split(".")[0] in PACKAGES]
    return found


MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def upward_imports():
    """Problems: modules that import from a room to the left of their own, or from a package that builds on theirs."""
    for path in MODULES:
        package, room, *_ = (*path.relative_to(ROOT).with_suffix("").parts, "")
        for name, lazy in imports(path):
            there, its_room, *_ = (*name.split("."), "", "")
            where = f"{path.relative_to(ROOT)} imports {name}"
            if there == "exercises" != package or (there == "platforms" and package == "helpers"):
                yield f"{where}: {there} builds on {package}"
            elif there == "platforms" and package == "exercises" and not lazy:
                yield f"{where} where it is loaded: import a platform inside a function"
            elif package == there == "helpers" and room in ROOMS and its_room in ROOMS:
                if ROOMS.index(its_room) < ROOMS.index(room):
                    yield f"{where}: {room} stands below {its_room}"


def test_imports_run_one_way():
    assert list(upward_imports()) == []


def test_modules_do_not_import_in_circles():
    paths = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in paths.items():
        targets = {target if target in paths else target.rpartition(".")[0] for target, _ in imports(path)}
        graph[name] = {t for t in targets if t in paths and t != name and paths[t].name != "__init__.py"}
    TopologicalSorter(graph).prepare()


def test_few_files_stand_at_the_root_of_helpers():
    assert len(list((ROOT / "helpers").glob("*.py"))) <= 9
    folders = {path.name for path in (ROOT / "helpers").iterdir() if any(path.glob("*.py"))}
    assert folders == {*ROOMS} - {"config", "device", "language", "paths"}
    assert {path.name for path in (ROOT / "platforms").iterdir() if any(path.glob("*.py"))} == PLATFORMS


def test_launch_and_compare_load_no_platform_and_no_exercise():
    code = "import sys; from helpers import launch, compare; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300, capture_output=True)
    assert {"exercises", "platforms"}.isdisjoint(loaded.stdout.decode().split())


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
    ("pypi", "org"),
    ("pypi", "python", "org"),
    ("files", "pythonhosted", "org"),
    ("download", "pytorch", "org"),
    ("repo", "anaconda", "com"),
    ("conda", "anaconda", "org"),
    ("registry", "npmjs", "org"),
    ("deb", "debian", "org"),
]
FOLDERS = ["/" + "root/", "/" + "work/", "/" + "tmp/w/", "/" + r"home/\w", "/" + r"Users/\w", "/" + "opt/pypi"]
FORBIDDEN = re.compile("|".join([*(r"\.".join(host) for host in HOSTS), *(rf"(?<![\w.]){it}" for it in FOLDERS)]))


def forbidden(text):
    return [match[0] for match in FORBIDDEN.finditer(text)]


def test_nothing_of_one_machine_is_in_the_files():
    texts = {path.relative_to(ROOT): path.read_bytes() for path in project_files()}
    assert not [
        (path, forbidden(text.decode("utf-8")))
        for path, text in texts.items()
        if b"\0" not in text and forbidden(text.decode("utf-8"))
    ]


def test_the_code_is_tidy():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_code_is_formatted():
    command = [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    kept = [path for path in MODULES if re.search(r"# fmt: (skip|off)", path.read_text(encoding="utf-8"))]
    assert not kept, kept


def test_continuous_integration_runs_make_test():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    commands = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert commands.index("make test") < commands.index("make test-long")


@pytest.mark.parametrize("name, command", [("test", ".ci/run"), ("site", "make site")])
def test_workflows_run_the_commands_of_a_clone(name, command):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert command in [step.get("run") for step in job["steps"]]
