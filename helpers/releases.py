"""Which release of torch the kit can use here, and what differs between releases; the one place that asks.

It imports nothing but Python's own library, also on Python 3.8: tools/choose_torch.py reads it before anything is
installed.
"""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from datetime import timedelta
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
    """Whether `torch` is a CPU-only build for which PyPI's torchvision, which is missing or there, will not do.

    Both are versions. PyPI's torchvision for Linux and x86-64 links to CUDA's libraries: `import torchvision` fails.
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
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return (
        f"{len(found)} × {found[0][0]} (driver {found[0][1]}) cannot be used by torch {torch.__version__}, which is "
        f"{built}: in the project, `python tools/choose_torch.py` names the torch that can. {ON_CPU}"
    )


@lru_cache
def check() -> None:
    """Raises UnfitTorch if torch is missing or too old; does not import it."""
    torch = version_of("torch")
    if torch is None:
        raise UnfitTorch(f"{sys.executable} has no torch: {sys.executable} -m pip install torch torchvision")
    if number(torch) < number(OLDEST):
        raise UnfitTorch(
            f"torch {torch} is older than {OLDEST}, the oldest that the kit runs on: "
            f"{sys.executable} -m pip install --upgrade torch torchvision"
        )


def need_torchvision(what) -> None:
    """Raises UnfitTorch, with the command that leaves torch as it is, if torchvision is not installed."""
    torch, vision = version_of("torch"), version_of("torchvision")
    if without_cuda(torch, vision):
        where = "from the address that https://pytorch.org/get-started/locally gives for CPU"
        raise UnfitTorch(f"{what} needs a torchvision built without CUDA: install torchvision torch=={torch} {where}")
    if vision is None:
        command = f"{sys.executable} -m pip install torchvision torch=={torch}"
        raise UnfitTorch(f"{what} needs torchvision, which is not installed: {command}")


def check_gloo() -> None:
    """Raises UnfitTorch if this torch cannot connect processes on CPUs. Imports torch."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        release = ".".join(map(str, number(version_of("torch"))))
        raise UnfitTorch(
            f"torch {version_of('torch')} was built without gloo, through which ranks communicate; PyPI's has it: "
            f"{sys.executable} -m pip install --force-reinstall 'torch=={release}.*'"
        )


# -- what differs between releases ----------------------------------------------------------------

# Torch 2.8 to 2.10 print this on stdout for each group that is made, among what the program prints.
_CONNECTED = re.compile(r"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\. Expected number of .* is : \1\n")


def strip_gloo_banner(text) -> str:
    """What a rank printed, without gloo's lines that say it is connected to all others."""
    return _CONNECTED.sub("", text)


@lru_cache
def torch_release() -> tuple:
    """The release of the torch installed here, as (major, minor). Imports torch."""
    import torch

    return number(torch.__version__)


def serve_store(listening, port, size=None, patience=300):
    """A TCPStore on a socket that listens already: nobody can take its port, and nobody comes too early.

    Args:
        listening: the socket's file descriptor, which the store then owns.
        port: the socket's port.
        size: ranks to wait for; None waits for nobody.
        patience: seconds to wait for them.
    """
    from torch.distributed import TCPStore

    # From 2.4 to 2.6 the newer of torch's two servers takes no such socket. Clients do not notice which one serves.
    older = {"use_libuv": False} if (2, 4) <= torch_release() < (2, 7) else {}
    return TCPStore(
        "127.0.0.1",
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=patience),
        wait_for_workers=size is not None,
        master_listen_fd=listening,
        **older,
    )


def recompile_reason(compilation) -> str:
    """Why a frame was compiled again, of an entry of torch's compilation metrics; "" for the first time."""
    if hasattr(compilation, "recompile_reason"):
        return compilation.recompile_reason or ""
    again = str(compilation.compile_id).partition("/")[2] not in ("0", "")
    return "this release of torch does not say why; 2.8 does" if again else ""


@lru_cache
def isolated() -> dict:
    """Options of torch.compile that keep the recompilations of one compiled function apart from another's."""
    import inspect

    import torch

    # Torch 2.12 has no such option: functions that share their code share their recompilations.
    return {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}


def device_memory(kind):
    """The module with `reset_peak_memory_stats` and `max_memory_allocated` for devices of `kind` (not "cpu")."""
    import torch

    # torch.accelerator has had them since 2.9.
    return torch.accelerator if torch_release() >= (2, 9) else torch.get_device_module(kind)


def fsdp_refusal(kind) -> str:
    """Why FSDP2 cannot reduce gradients on devices of `kind` with the torch installed here; "" if it can."""
    version = version_of("torch")
    if kind != "cpu" or number(version) >= (2, 8):
        return ""
    return (
        f"strategy 'fsdp' on CPUs needs torch 2.8 or newer, and this is {version}, whose FSDP averages gradients by an "
        "operation that gloo does not have; choose strategy 'zero1', or upgrade torch"
    )


def flight_records():
    """What this rank's flight recorder holds of gloo: a dict for each of the last collectives, the oldest first.

    It records where TORCH_FR_BUFFER_SIZE was set before the process group was made. None with torches such as 2.6,
    whose recorder knows NCCL only.
    """
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_fr_trace_json", None)
    return json.loads(dump())["entries"] if dump else None
