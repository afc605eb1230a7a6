"""Which release of torch the kit can use here, and what differs between releases; the one place that asks.

It imports Python's own library only, also on Python 3.8: tools/choose_torch.py reads it before anything is installed.
"""

import importlib.metadata
import inspect
import os
import platform
import re
import subprocess
import sys
from functools import lru_cache

OLDEST = "2.6"
ON_CPU = "To use the CPU all the same, set HELPERS_DEVICE=cpu."


class UnfitTorch(RuntimeError):
    """No torch here will do; the message says what will."""


def number(version) -> tuple:
    """(2, 10) of "2.10.1+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def version_of(package):
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def without_cuda(torch, vision):
    """Whether of these versions `torch` is a CPU-only build, for which PyPI's torchvision (`vision`, or none) fails.

    That for Linux and x86-64 links to CUDA's libraries.
    """
    unfit = torch.endswith("+cpu") and "+" not in (vision or "")
    return unfit and (sys.platform, platform.machine()) == ("linux", "x86_64")


def gpus():
    """[(name, driver, compute capability or None)] of the NVIDIA GPUs here; [] without any."""
    for fields in ("name,driver_version,compute_cap", "name,driver_version"):  # old ones do not know the third
        command = ["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return []
        if done.returncode == 0:
            rows = [line.split(", ") for line in done.stdout.decode().splitlines() if ", " in line]
            return [(row[0], row[1], float(row[2]) if len(row) > 2 else None) for row in rows]
    return []


def idle_gpus() -> str:
    """Why torch cannot use the NVIDIA GPUs that are here, and what to do; "" where there are none, or it can."""
    chosen = os.environ.get("HELPERS_DEVICE") or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    found = [] if chosen else gpus()
    if not found:
        return ""
    import torch

    if torch.cuda.is_available():
        return ""
    return (
        f"{len(found)} × {found[0][0]} (driver {found[0][1]}) cannot be used by torch {torch.__version__} (for CUDA: "
        f"{torch.version.cuda}): in the project, `python tools/choose_torch.py` names the torch that can. {ON_CPU}"
    )


@lru_cache
def check() -> None:
    """Raises UnfitTorch if torch is missing or too old; does not import it."""
    torch = version_of("torch")
    if torch is None or number(torch) < number(OLDEST):
        found = "no torch" if torch is None else f"torch {torch}, which is older than {OLDEST}"
        command = f"{sys.executable} -m pip install --upgrade torch torchvision"
        raise UnfitTorch(f"the kit needs torch {OLDEST} or newer, and here is {found}: {command}")


def need_torchvision(what) -> None:
    """Raises UnfitTorch, with the command that leaves torch as it is, if there is no torchvision that fits."""
    torch, vision = version_of("torch"), version_of("torchvision")
    unfit = without_cuda(torch, vision)
    if unfit or vision is None:
        where = " from the address that https://pytorch.org/get-started/locally gives for CPU" if unfit else ""
        command = f"{sys.executable} -m pip install torchvision torch=={torch}{where}"
        raise UnfitTorch(f"{what} needs a torchvision that fits torch {torch}: {command}")


# -- what differs between releases ----------------------------------------------------------------

# Torch 2.8 to 2.10 print this on stdout for each group that is made, among what the program prints.
_CONNECTED = re.compile(r"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\. Expected number of .* is : \1\n")


def strip_gloo_banner(text) -> str:
    """What a rank printed, without gloo's lines that say it is connected to all others."""
    return _CONNECTED.sub("", text)


@lru_cache
def torch_release() -> tuple:
    """The release of the torch installed here, as (major, minor)."""
    return number(version_of("torch"))


def serve_store(listening, port, host="127.0.0.1"):
    """A TCPStore on a socket, given by its file descriptor, that listens already: nobody can take its port."""
    from torch.distributed import TCPStore

    # In 2.6 the newer of torch's two servers takes no such socket. Clients do not notice which one serves.
    older = {"use_libuv": False} if torch_release() < (2, 7) else {}
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening, **older)


def recompile_reason(compilation) -> str:
    """Why a frame was compiled again, of an entry of torch's compilation metrics; "" for the first time."""
    again = str(compilation.compile_id).partition("/")[2] not in ("0", "")
    unknown = "this release of torch does not say why; 2.8 does" if again else ""
    return getattr(compilation, "recompile_reason", unknown) or ""


def isolated() -> dict:
    """Options of torch.compile that keep recompilations of one function apart from another's, if it has any."""
    import torch

    known = inspect.signature(torch.compile).parameters  # in 2.12 functions that share their code share them
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def device_memory(kind):
    """The module with `reset_peak_memory_stats` and `max_memory_allocated` for devices of `kind` (not "cpu")."""
    import torch

    return torch.accelerator if torch_release() >= (2, 9) else torch.get_device_module(kind)


def fsdp_refusal(kind) -> str:
    """Why FSDP2 cannot reduce gradients on devices of `kind` with the torch installed here; "" if it can."""
    version = version_of("torch")
    if kind != "cpu" or number(version) >= (2, 8):
        return ""
    why = f"needs torch 2.8 or newer, and this is {version}, whose FSDP averages gradients by what gloo cannot"
    return f"strategy 'fsdp' on CPUs {why}; choose strategy 'zero1', or upgrade torch"
