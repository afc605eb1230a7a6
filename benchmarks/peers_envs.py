"""Makes the environments of the peers: each its own, below the cache; the kit depends on none of them.

What the running environment has, torch above all, is not installed again: a line in the new environment's
`.pth` file points there. So all contenders run with the same torch, the same kernel and the same Python.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from helpers import paths

PATIENCE = 240  # s for one installation
POINTER = "running-environment.pth"
DONE = "installed.txt"  # which pins; written last, so that half an environment is made again
STUB = "#!/bin/sh\nexit 0\n"


class NoEnvironment(RuntimeError):
    """An environment could not be made; the message says why in one line."""


def folder() -> Path:
    return paths.cache_root() / "peers"


def python(name, pins, install=None):
    """Path of the interpreter of the environment `name`, made now if need be.

    Args:
        pins: requirements such as "torchrunx==0.4.0"; none of them means the running environment itself.
        install: (where, pins) -> command that installs them, for tests.

    Raises:
        NoEnvironment: the installation failed, without a network for example.
    """
    if not pins:
        return sys.executable
    where = folder() / name
    marker, wanted = where / DONE, "\n".join([sys.version, sys.prefix, *pins])
    if not (marker.is_file() and marker.read_text() == wanted):
        shutil.rmtree(where, ignore_errors=True)
        print(f"  making an environment for {' '.join(pins)} …", flush=True)
        _make(where)
        _installed((install or command)(where, pins))
        _disarm(where)
        marker.write_text(wanted)
    return str(where / "bin" / "python")


def _make(where):
    where.parent.mkdir(parents=True, exist_ok=True)
    venv.create(where, symlinks=True, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pointer = where / "lib" / version / "site-packages" / POINTER
    own = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    pointer.write_text("".join(f"{path}\n" for path in own))


def command(where, pins):
    """The command that installs `pins` there and leaves out what is to be had through the pointer."""
    target = str(where / "bin" / "python")
    uv = _uv()
    if not uv:  # pip sees what the pointer leads to, and takes it for installed
        return [sys.executable, "-m", "pip", "--python", target, "install", "--quiet", *pins]
    own = {pin.partition("==")[0].lower() for pin in pins}
    there = sorted({dist.metadata["Name"] for dist in metadata.distributions()} - {None})
    left_out = where / "left-out.txt"
    left_out.write_text("".join(f'{name} ; python_version < "3"\n' for name in there if name.lower() not in own))
    return [*uv, "pip", "install", "--quiet", "--python", target, "--override", str(left_out), *pins]


def _uv():
    beside = Path(sys.executable).with_name("uv")
    if os.environ.get("HELPERS_NO_UV"):
        return None
    if importlib.util.find_spec("uv") and beside.is_file():
        return [str(beside)]
    found = shutil.which("uv")
    return [found] if found else None


def _installed(line):
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoEnvironment(f"{type(error).__name__}: {error}") from None
    if run.returncode:
        said = [part.strip() for part in (run.stderr or run.stdout).splitlines() if part.strip()]
        last = next((part for part in reversed(said) if "error" in part.lower()), said[-1] if said else "no message")
        raise NoEnvironment(f"the installation failed with exit code {run.returncode}: {last[:200]}")


def _disarm(where):
    """A `pkill` that does nothing: one of the peers stops its ranks by name, which would hit other programs' too."""
    for name in ("pkill", "killall"):
        stub = where / "bin" / name
        stub.write_text(STUB)
        stub.chmod(0o755)


def version(interpreter, package):
    """The version of `package` in an environment, or "unknown"."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    run = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=60)
    return run.stdout.strip() or "unknown"
