"""Another interpreter's environment for the ranks: may it be used, and what goes along to it?"""

import functools
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

TIMEOUT = 60  # seconds; a cold disk may take some to deliver an interpreter
ASK = (
    "import json, sys; from importlib.util import find_spec; print(json.dumps(['{}.{}'.format(*sys.version_info), "
    "sys.path, [name for name in ('torch', 'cloudpickle') if find_spec(name) is None]]))"
)
_paths = {}  # interpreter that was found fit -> its sys.path


def checked(python):
    """The absolute path of interpreter `python`, None for that of this process.

    Symbolic links stay: a virtual environment is known by the path that it was started under.

    Raises:
        TypeError: `python` is no path.
        ValueError: it does not run, has another minor version than this process, or lacks torch or cloudpickle.
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
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    options = dict(capture_output=True, text=True, timeout=TIMEOUT, env=environment, stdin=subprocess.DEVNULL)
    try:
        run = subprocess.run([path, "-c", ASK], **options)
        theirs, entries, lacks = json.loads(run.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"python is {path!r}, which cannot be run: {error}") from None
    except ValueError:
        last = run.stderr.strip().rpartition("\n")[2] or f"it left with exit code {run.returncode}"
        raise ValueError(f"python is {path!r}, which is no Python interpreter that works: {last}") from None
    ours = "{}.{}".format(*sys.version_info)
    if theirs != ours:
        raise ValueError(
            f"{path} is Python {theirs}, this process runs Python {ours}. Functions travel to the ranks as bytecode, "
            f"which only the same version reads: make that environment with Python {ours}"
        )
    if lacks:
        command = f"{path} -m pip install {' '.join(lacks)}"
        raise ValueError(f"{path} lacks {' and '.join(lacks)}, without which no rank can run there: {command}")
    _paths[path] = [entry for entry in entries if entry]
    return path


def import_path(python) -> list:
    """sys.path for ranks under `python`, as `checked` returned it.

    For another interpreter its own packages take the place of this one's. The folders of the
    reader and of the kit stay: what is defined there must be found there too.
    """
    if python is None:
        return list(sys.path)
    kit = str(Path(__file__).resolve().parents[2])  # need not be in sys.path where it is installed as editable
    own = [is_installed(entry) for entry in sys.path]
    before = sys.path[: own.index(True)] if True in own else sys.path
    readers = [entry for entry, installed in zip(sys.path, own, strict=True) if not installed]
    return list(dict.fromkeys([*before, *_paths[python], *readers, kit]))


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
