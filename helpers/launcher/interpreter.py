"""Another interpreter's environment for the ranks: may it be used, and which import path is its own?"""

import functools
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

NEEDED = ("torch", "cloudpickle")
TIMEOUT = 60  # seconds; a cold disk may take some to deliver an interpreter
ASK = (
    "import json, sys; from importlib.util import find_spec; "
    "print(json.dumps({'version': sys.version_info[:2], 'path': sys.path, "
    "'lacks': [name for name in sys.argv[1:] if find_spec(name) is None]}))"
)

_paths = {}  # interpreter that was found fit -> its sys.path


def checked(python):
    """The absolute path of interpreter `python`, None for that of this process.

    Symbolic links stay: a virtual environment is known by the path that it was started under.

    Raises:
        TypeError: `python` is no path.
        ValueError: it does not run, has another minor version than this process, or lacks NEEDED.
    """
    if python is None:
        return None
    if not isinstance(python, (str, os.PathLike)):
        raise TypeError(f"python is {python!r}; give the path of an interpreter, or None for this one")
    path = os.path.abspath(shutil.which(os.path.expanduser(python)) or os.path.expanduser(python))
    if path == os.path.abspath(sys.executable):
        return None
    if path in _paths:
        return path
    found = _ask(path)
    theirs, ours = ("{}.{}".format(*version[:2]) for version in (found["version"], sys.version_info))
    if theirs != ours:
        raise ValueError(
            f"{path} is Python {theirs}, this process runs Python {ours}. Functions travel to the ranks as bytecode, "
            f"which only the same version reads: make that environment with Python {ours}"
        )
    if found["lacks"]:
        raise ValueError(
            f"{path} lacks {' and '.join(found['lacks'])}, without which no rank can run there; "
            f"install with: {path} -m pip install {' '.join(found['lacks'])}"
        )
    _paths[path] = [entry for entry in found["path"] if entry]
    return path


def import_path(python) -> list:
    """sys.path for ranks under `python`, as `checked` returned it.

    For another interpreter its own packages take the place of this one's. The folders of the
    reader and of the kit stay: what is defined there must be found there too.
    """
    if python is None:
        return list(sys.path)
    kit = str(Path(__file__).resolve().parents[2])  # need not be in sys.path where it is installed as editable
    readers = [entry for entry in [*sys.path, kit] if not is_installed(entry)]
    before = next((i for i, entry in enumerate(sys.path) if is_installed(entry)), len(sys.path))
    return list(dict.fromkeys([*sys.path[:before], *_paths[python], *readers]))


def _ask(path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    options = dict(capture_output=True, text=True, timeout=TIMEOUT, env=environment, stdin=subprocess.DEVNULL)
    try:
        run = subprocess.run([path, "-c", ASK, *NEEDED], **options)
        return json.loads(run.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"python is {path!r}, which cannot be run: {error}") from None
    except (ValueError, IndexError):
        last = "".join(run.stderr.strip().splitlines()[-1:]) or f"it left with exit code {run.returncode}"
        raise ValueError(f"python is {path!r}, which is no Python interpreter that works: {last}") from None


def is_installed(entry):
    """Whether `entry` of sys.path is this interpreter's library or packages, inside one, or the zip file beside it."""
    real = os.path.realpath(entry)
    zipped = Path(real).match("python*.zip") and os.path.dirname(real) in map(os.path.dirname, _folders())
    return bool(entry) and (zipped or any(f"{real}/".startswith(f"{folder}/") for folder in _folders()))


@functools.cache
def _folders():
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()}
    return {os.path.realpath(folder) for folder in folders}
