"""Compile the emulated device: one C++ file and its headers, once for each version of torch."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from helpers.launcher import progress
from helpers.launcher.language import marked
from helpers.paths import cache_root

SOURCE = Path(__file__).parent / "csrc" / "npu.cpp"
TIME_LIMIT = 600  # s; 20 s on an idle core


class NpuMissing(RuntimeError):
    """The emulated NPU cannot be built here; the message says why and what to do."""


def library(log=print) -> Path:
    """Path of the compiled device, built at the first call; `log` is told when that begins.

    Raises:
        NpuMissing: there is no C++ compiler, or it failed.
    """
    path = cache_root() / "npu" / _key() / "libnpu.so"
    if path.is_file():
        return path
    compiler = _compiler()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(path.parent / "lock"):
        if not path.is_file():
            log("building the emulated NPU (once, about half a minute) …")
            _compile(compiler, path)
    return path


def _key():
    """Names what a build depends on: torch and our source."""
    import torch

    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(SOURCE.parent.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"torch-{torch.__version__}-{digest.hexdigest()[:12]}"


def _compiler():
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        if found := shutil.which(name):
            return found
    what = marked("there is none here (looked for c++, g++, clang++)")
    if wanted:
        what = marked(f"CXX is {wanted!r}, which is no program here")
    raise NpuMissing(
        f"the emulated NPU has to be compiled, and needs a C++ compiler for it: {what}.\n"
        "Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install "
        "-c conda-forge cxx-compiler) and run this again."
    )


def _compile(compiler, path):
    import torch

    home = Path(torch.__file__).parent
    temporary = path.with_name(f"{os.getpid()}.so")
    command = [compiler, "-O1", "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(temporary)]
    command += [f"-ffile-prefix-map={SOURCE.parent}=platforms/npu/csrc"]  # messages name no folder of this machine
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]  # PyPI's 2.6 has the older strings
    command += [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    command += [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home / 'lib'}"]
    try:
        with progress.waiting("compiling the emulated NPU, once"):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            told = "\n".join(lines[:5])
            raise NpuMissing(
                f"the emulated NPU could not be compiled with {compiler} for torch {torch.__version__} (g++ 11 or "
                f"clang++ 14 or later is needed):\n{told}"
            )
        os.replace(temporary, path)
    except subprocess.TimeoutExpired:
        raise NpuMissing(f"compiling the emulated NPU took longer than {TIME_LIMIT} s and was stopped") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time(path):
    """Ranks that start together build once."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":  # `python -m platforms.npu.build`: ahead of a workshop
    try:
        print(library())
    except NpuMissing as missing:
        sys.exit(str(missing))
