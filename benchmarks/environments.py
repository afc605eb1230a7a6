"""Environments for packages that the kit does not depend on: each its own, below the cache.

What the running environment has, torch above all, is not installed again: a line in the new environment's `.pth`
file points there. So all run with the same torch, kernel and Python.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata

from helpers import paths

PATIENCE = 240  # s for one installation


class NoEnvironment(RuntimeError):
    """An environment could not be made; the message says why in one line."""


def python(name, pins, install=None):
    """Path of the interpreter of the environment `name`, made now if need be; of the running one without `pins`.

    Args:
        pins: requirements such as "torchrunx==0.4.0".
        install: (folder, pins) -> command that installs them, for tests.

    Raises:
        NoEnvironment: the installation failed, without a network for example.
    """
    if not pins:
        return sys.executable
    where = paths.cache_root() / "peers" / name
    marker, wanted = where / "installed.txt", "\n".join([sys.version, sys.prefix, *pins])
    if not (marker.is_file() and marker.read_text() == wanted):
        shutil.rmtree(where, ignore_errors=True)
        print(f"  making an environment for {' '.join(pins)} …", flush=True)
        venv.create(where, symlinks=True, with_pip=False)
        (packages,) = where.glob("lib/python*/site-packages")
        own = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        (packages / "running-environment.pth").write_text("".join(f"{path}\n" for path in own))
        _install((install or command)(where, pins))
        for stopper in ("pkill", "killall"):  # one peer stops its ranks by name, which would hit other programs' too
            (where / "bin" / stopper).write_text("#!/bin/sh\nexit 0\n")
            (where / "bin" / stopper).chmod(0o755)
        marker.write_text(wanted)  # last, so that half an environment is made again
    return str(where / "bin" / "python")


def command(where, pins):
    """The command that installs `pins` in `where` and leaves out what the running environment has."""
    target, folders = str(where / "bin" / "python"), [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    uv = shutil.which("uv", path=os.pathsep.join(folders))
    if not uv:  # pip sees what the pointer leads to, and takes it for installed
        return [sys.executable, "-m", "pip", "--python", target, "install", "--quiet", *pins]
    own = {pin.partition("==")[0].lower() for pin in pins}
    there = sorted({dist.metadata["Name"] for dist in metadata.distributions()} - {None})
    left_out = where / "left-out.txt"
    left_out.write_text("".join(f'{name} ; python_version < "3"\n' for name in there if name.lower() not in own))
    return [uv, "pip", "install", "--quiet", "--python", target, "--override", str(left_out), *pins]


def _install(line):
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoEnvironment(f"{type(error).__name__}: {error}") from None
    if run.returncode:
        lines = [part.strip() for part in (run.stderr or run.stdout).splitlines() if part.strip()] or ["no message"]
        last = next((part for part in reversed(lines) if "error" in part.lower()), lines[-1])
        raise NoEnvironment(f"the installation failed with exit code {run.returncode}: {last[:200]}")
