"""The project's own promises: one set of pins, imports that point down, nothing of one machine in it."""

import ast
import os
import re
import subprocess
import sys
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
PYPROJECT, ENVIRONMENT, REQUIREMENTS = "pyproject.toml", "environment.yml", "requirements.txt"
MAX_LINES = 300  # of a module


# Pins


def pyproject_pins(text):
    """The requirements a user of `pyproject.toml` gets, with those of the tests."""
    project = tomllib.loads(text)["project"]
    return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["test"]]


def group_pins(text):
    """The requirements of the XLA environment in `pyproject.toml`."""
    return [Requirement(line) for line in tomllib.loads(text)["dependency-groups"]["xla"]]


def environment_pins(text):
    """The requirements in the pip section of an `environment.yml`, and the Python version of its conda section."""
    *conda, last = yaml.safe_load(text)["dependencies"]
    python = next(line.partition("=")[2] for line in conda if line.startswith("python="))
    return [Requirement(line) for line in last["pip"] if not line.startswith("-")], python


def requirements_pins(text):
    """The requirements of `requirements.txt`; its comments left out."""
    return [Requirement(line) for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def not_exact(pins):
    """Problems: requirements that leave the version open or name an address."""
    for pin in pins:
        operators = [specifier.operator for specifier in pin.specifier]
        if operators != ["=="] or "*" in str(pin.specifier) or pin.url:
            yield f"'{pin}' is no exact version"


def versions(pins, python, platform):
    """{name: version} of the pins that hold for a Python version and a platform."""
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": platform}
    held = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    found = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in held}
    assert len(found) == len(held), f"two versions of one package for Python {python}"
    return found


def drift(pyproject, environment, requirements, direct_pins=pyproject_pins):
    """Problems: where the three files, given as texts, do not ask for the same versions."""
    direct, (conda, conda_python), closure = (
        direct_pins(pyproject), environment_pins(environment), requirements_pins(requirements),
    )  # fmt: skip
    yield from not_exact([*direct, *conda, *closure])
    for pin in sorted(set(map(str, direct)) ^ set(map(str, conda))):
        yield f"'{pin}' is in only one of {PYPROJECT} and {ENVIRONMENT}"
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        for platform in ("linux", "darwin"):
            pinned = versions(closure, python, platform)
            for name, version in versions(direct, python, platform).items():
                if pinned.get(name) != version:
                    yield f"{name} {version} is {pinned.get(name)} in {REQUIREMENTS} (Python {python}, {platform})"
    if conda_python not in ("3.10", "3.11", "3.12", "3.13"):
        yield f"{ENVIRONMENT} asks for Python {conda_python}"


def pin_files():
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in (PYPROJECT, ENVIRONMENT, REQUIREMENTS)}


def test_the_three_files_pin_the_same_versions():
    assert list(drift(*pin_files().values())) == []


@pytest.mark.parametrize(
    "file, old, new",
    [
        (PYPROJECT, "nbval==0.11.0", "nbval==0.11.1"),
        (PYPROJECT, "nbval==0.11.0", "nbval>=0.11.0"),
        (PYPROJECT, "'nbval==0.11.0',", ""),
        (PYPROJECT, 'pandas==2.3.3; python_version < "3.11"', 'pandas==2.3.3; python_version < "3.10"'),
        (ENVIRONMENT, "- cloudpickle==3.1.2", "- cloudpickle==3.1.1"),
        (ENVIRONMENT, "- ruff==", "# - ruff=="),
        (ENVIRONMENT, "      - -e .", "      - rich==1.0.0\n      - -e ."),
        (ENVIRONMENT, "python=3.11", "python=3.9"),
        (REQUIREMENTS, "torch==2.15.0 ;", "torch==2.14.1 ;"),
        (REQUIREMENTS, "\nipywidgets==", "\n#ipywidgets=="),
        (REQUIREMENTS, "\nipykernel==", "\nipykernel>="),
    ],
)
def test_a_planted_drift_is_found(file, old, new):
    texts = pin_files()
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    assert list(drift(*texts.values())) != []


def xla_pin_files():
    names = (PYPROJECT, "environment-xla.yml", "requirements-xla.txt")
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def test_the_files_of_the_xla_environment_pin_the_same_versions():
    assert list(drift(*xla_pin_files().values(), group_pins)) == []
    pythons = {environment_pins((ROOT / name).read_text())[1] for name in (ENVIRONMENT, "environment-xla.yml")}
    assert len(pythons) == 1, "functions travel as bytecode between the two environments"


@pytest.mark.parametrize(
    "file, old, new",
    [
        (PYPROJECT, "torch_xla==2.9.0", "torch_xla==2.8.1"),
        (PYPROJECT, "'torchvision==0.24.0'", "'torchvision>=0.24.0'"),
        ("environment-xla.yml", "- cloudpickle==3.1.2", "- cloudpickle==3.1.1"),
        ("environment-xla.yml", "      - torchvision==0.24.0\n", ""),
        ("requirements-xla.txt", "\ntorch==2.9.0", "\ntorch==2.9.1"),
        ("requirements-xla.txt", "\ntorch-xla==", "\n#torch-xla=="),
    ],
)
def test_a_planted_drift_of_the_xla_environment_is_found(file, old, new):
    texts = xla_pin_files()
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    assert list(drift(*texts.values(), group_pins)) != []


def test_both_environments_carry_functions_with_one_cloudpickle():
    versions = [{str(pin) for pin in pins if pin.name == "cloudpickle"} for pins in (
        pyproject_pins(pin_files()[PYPROJECT]), group_pins(pin_files()[PYPROJECT])
    )]  # fmt: skip
    assert versions[0] == versions[1] != set()


@pytest.mark.parametrize("name", [REQUIREMENTS, "requirements-xla.txt"])
def test_requirements_hold_pins_only(name):
    """No address, index or hash: where packages come from is the reader's affair."""
    assert not re.search(r"^\s*-|://|--hash", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)


# Imports

FLOORS = {
    1: "background cable costmodel costmodel_fit costmodel_measure device elastic launch launcher live measure "
    "meeting memory mpirun npu paths process_group published show show_panel style torchrun twohosts watch",
    2: "batches communication compiler convolutions costmodel_links data data_parallel datasets evaluation hvd inputs "
    "loaders mapped migrate models models_pointwise op_kinds op_profile op_work precision precision_levels prepare "
    "prepare_cifar10 prepare_recipes prepare_sets prepare_store schedules strategies sync_batch_norm",
    3: "checkpoint compiled_run config config_checks results resume train xla",
    4: "compared comparison drawing plots plots_compile_time plots_compiler plots_costmodel plots_hvd plots_learning "
    "plots_npu plots_plans plots_precision plots_report plots_runs plots_speed_up plots_time_to_accuracy seeds "
    "studies study_configs",
    5: "__init__ __main__ check cli form form_choice form_page form_refusal form_widgets form_words hosts reading "
    "reading_between reading_causes reading_ladder reading_pairs reading_pool report report_all report_cli "
    "report_drawing report_export report_figures report_forks report_heads report_html report_index report_ladders "
    "report_page report_progress report_published report_records report_short report_text",
}
FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()}


def imported(tree, package):
    """Dotted names that a module in `package`, say 'helpers.check', imports from helpers, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "helpers")
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            if module.split(".")[0] == "helpers":
                yield from (f"{module}.{alias.name}" for alias in node.names)


def upward_imports(root):
    """Problems: modules of `root`/helpers that import from a floor above their own, or have no floor."""
    for path in sorted((root / "helpers").rglob("*.py")):
        inside = path.relative_to(root / "helpers").with_suffix("").parts
        here = inside[0]
        if here not in FLOOR:
            yield f"helpers/{'/'.join(inside)}.py has no floor: add it to FLOORS in tests/test_project.py"
            continue
        package = ".".join(["helpers", *inside[:-1]])
        for name in imported(ast.parse(path.read_text(encoding="utf-8")), package):
            part = (name.split(".") + [""])[1]
            there = part if part in FLOOR else "__init__"  # a name of helpers itself
            if FLOOR[there] > FLOOR[here]:
                yield (
                    f"helpers/{'/'.join(inside)}.py (floor {FLOOR[here]}) imports {name} (floor {FLOOR[there]})"
                )


def test_imports_point_down():
    assert list(upward_imports(ROOT)) == []


@pytest.mark.parametrize(
    "module, line, refused",
    [
        ("train.py", "from . import comparison", True),
        ("train.py", "def f():\n    from .comparison import compare", True),
        ("train.py", "import helpers.comparison", True),
        ("train.py", "from helpers import train", False),
        ("train.py", "from helpers import RunConfig", True),
        ("launcher/rank.py", "from ..train import train", True),
        ("launcher/rank.py", "from . import wire", False),
        ("cli.py", "from . import comparison, live", False),
        ("unheard_of.py", "", True),
    ],
)
def test_a_planted_upward_import_is_found(module, line, refused, tmp_path):
    path = tmp_path / "helpers" / module
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert bool(list(upward_imports(tmp_path))) == refused


def test_importing_helpers_does_not_import_torch():
    code = "import sys, helpers; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


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
    problems = []
    for path in project_files():
        content = path.read_bytes()
        if b"\0" not in content:
            found = forbidden(content.decode("utf-8"))
            problems += [f"{path.relative_to(ROOT)}: {text}" for text in found]
    assert problems == []


def test_a_planted_path_or_host_is_found():
    for text in ("https://" + "pypi" + ".org/simple", "in /" + "root/x", "'/" + "work/main'", "/" + "home/me/x"):
        assert forbidden(text), text
    assert not forbidden("a tmp/" + "work/ folder, https://example.org/home/you, ./" + "root/x")


def test_modules_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.glob("helpers/**/*.py")}
    assert lengths and [str(path) for path, length in lengths.items() if length >= MAX_LINES] == []


def test_the_code_is_tidy():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_continuous_integration_runs_make_test():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    commands = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert "make test" in commands and "make test-xla" in commands
