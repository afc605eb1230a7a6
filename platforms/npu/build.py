"""Compile the emulated device: one C++ file and its headers, once for each version of torch."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from helpers.language import _
from helpers.launcher import progress
from helpers.paths import cache_root

SOURCE = Path(__file__).parent / "csrc" / "npu.cpp"
TIME_LIMIT = 600  # s; 20 s on an idle core


class NpuMissing(RuntimeError):
    """The emulated NPU cannot be built here; the message says why and what to do."""


def library() -> Path:
    """Path of the compiled device, built at the first call.

    Raises:
        NpuMissing: there is no C++ compiler, or it failed.
    """
    import torch

    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(SOURCE.parent.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    path = cache_root() / "npu" / f"torch-{torch.__version__}-{digest.hexdigest()[:12]}" / "libnpu.so"
    if not path.is_file():
        compiler = _compiler()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ranks that start together build once
            if not path.is_file():
                _compile(compiler, path)
    return path


def _compiler():
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        if found := shutil.which(name):
            return found
    what = f"CXX is {wanted!r}, which is no program here" if wanted else "c++, g++ and clang++ are missing"
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
        with progress.waiting(_("compiling the emulated NPU, once")):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise NpuMissing(f"compiling the emulated NPU took longer than {TIME_LIMIT} s and was stopped") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        told = "\n".join(lines[:5])
        raise NpuMissing(
            f"the emulated NPU could not be compiled with {compiler} for torch {torch.__version__} (g++ 11 or "
            f"clang++ 14 or later is needed):\n{told}"
        )
    os.replace(temporary, path)
