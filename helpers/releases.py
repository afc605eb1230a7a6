"""Which release of torch runs the kit here, and what differs between releases; the one place that asks.

As a script, for tools/bootstrap.sh, it decides which torch an environment gets. It prints constraints for pip (none
where the versions of requirements.txt will do) and says why on stderr; it needs Python 3.8 and nothing installed:

    python helpers/releases.py                 what this machine's NVIDIA driver can run
    python helpers/releases.py --keep PYTHON   the torch that is installed here, which is that of PYTHON
    python helpers/releases.py --release 2.6   that release
    python helpers/releases.py --install       install the kit into this Python's environment, whose torch stays

Drivers: https://docs.nvidia.com/deploy/cuda-compatibility (CUDA 12 wants 525, CUDA 13 wants 580). PyPI's torch comes
with CUDA 12 up to 2.10 and with CUDA 13 since 2.11; cards of compute capability 7.0 (V100) are in those up to 2.10,
older ones in those up to 2.7 (https://github.com/pytorch/pytorch/issues/157517 and 172352).
"""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import argparse
import importlib.metadata
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from functools import lru_cache

OLDEST = "2.6"
NEWEST_WITH = (  # (oldest driver, least compute capability, newest release; "" is that of requirements.txt)
    (580, 7.5, ""),
    (525, 7.0, "2.10"),
    (525, 5.0, "2.7"),
)
LEFT_OUT = "# no torchvision"  # among constraints; read by tools/bootstrap.sh, too
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


def origin():
    """The environment that the installed torch belongs to: this Python's own, or the one that lends it."""
    place = str(importlib.metadata.distribution("torch").locate_file(""))
    return sys.prefix if place.startswith(sys.prefix) else place


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


def kept(python):
    """Constraints that keep the torch and torchvision seen here, which are those of `python`, and a sentence on it."""
    torch = version_of("torch")
    if torch is None:
        return None
    if number(torch) < number(OLDEST):
        raise UnfitTorch(
            f"{python} has torch {torch}; the kit needs {OLDEST} or newer. Upgrade it there "
            f"('{python} -m pip install --upgrade torch torchvision'), or leave PYTHON and HERE out."
        )
    found = {"torch": torch, "torchvision": version_of("torchvision")}
    lines = [f"{name}=={version}" for name, version in found.items() if version]
    why = f"using torch {torch} of {python}, which stays as it is; only what is missing is installed"
    if without_cuda(torch, found["torchvision"]):
        lines.append(LEFT_OUT)
        why += "; torchvision is not, since PyPI's wants CUDA"
    return lines, why


def for_driver(found):
    """Constraints for these GPUs (see `gpus`), and the sentence that says why."""
    if not found or os.environ.get("HELPERS_DEVICE") == "cpu":
        return [], ""
    driver = min(int(gpu[1].split(".")[0]) for gpu in found)
    capability = min((gpu[2] for gpu in found if gpu[2]), default=99.0)
    here = f"{found[0][0]} with driver {found[0][1]}"
    for oldest_driver, least, release in NEWEST_WITH:
        if driver >= oldest_driver and capability >= least:
            if not release:
                return [], f"{here} runs the newest torch"
            return [f"torch=={release}.*"], f"{here} runs torch {release}, not the newest, so that is installed"
    driver, least, _ = NEWEST_WITH[-1]
    raise UnfitTorch(
        f"no torch from {OLDEST} on, as PyPI has it, runs on {here}: it needs driver {driver} and compute capability "
        f"{least}. Update the driver, or give a Python with a torch built for it: "
        f"make run PYTHON=/path/to/python. {ON_CPU}"
    )


# -- whether what is installed will do -------------------------------------------------------------


@lru_cache
def check() -> None:
    """Look at the versions of torch and torchvision that are installed, without importing them.

    Raises:
        UnfitTorch: torch is missing or too old, or torchvision is made for another one.
    """
    torch, vision = version_of("torch"), version_of("torchvision")
    if torch is None:
        raise UnfitTorch(f"{sys.executable} has no torch: {sys.executable} -m pip install torch torchvision")
    if number(torch) < number(OLDEST):
        raise UnfitTorch(
            f"torch {torch} is older than {OLDEST}, the oldest that the kit runs on: "
            f"{sys.executable} -m pip install --upgrade torch torchvision"
        )
    for line in importlib.metadata.requires("torchvision") or () if vision else ():
        exact = re.fullmatch(r"torch ?\(?==([0-9.]+)\)?", line.partition(";")[0].strip())
        if exact and number(exact[1]) != number(torch):
            raise UnfitTorch(
                f"torchvision {vision} is made for torch {exact[1]}, but torch {torch} is installed: "
                f"{sys.executable} -m pip install --upgrade torchvision torch=={torch}"
            )


def need_torchvision(what) -> None:
    """Raises UnfitTorch, with the command that leaves torch as it is, if torchvision is not installed."""
    torch, vision = version_of("torch"), version_of("torchvision")
    if without_cuda(torch, vision):
        has = f"torchvision {vision} wants CUDA" if vision else "torchvision is not installed"
        raise UnfitTorch(
            f"{what} needs a torchvision built without CUDA, as torch {torch} is, and {has}: install "
            f"torchvision torch=={torch} from the address that https://pytorch.org/get-started/locally gives for CPU"
        )
    if vision is None:
        raise UnfitTorch(
            f"{what} needs torchvision, which is not installed: "
            f"{sys.executable} -m pip install torchvision torch=={torch}"
        )


def check_gloo() -> None:
    """Raises UnfitTorch if this torch cannot connect processes on CPUs. Imports torch."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        version = version_of("torch")
        release = ".".join(map(str, number(version)))
        raise UnfitTorch(
            f"torch {version} was built without gloo, through which ranks communicate; PyPI's torch {release} has it: "
            f"{sys.executable} -m pip install --force-reinstall 'torch=={release}.*'"
        )


def idle_gpus() -> str:
    """Why torch cannot use the NVIDIA GPUs that are here, and what to do; "" where there are none, or it can."""
    found = gpus()
    if not found or os.environ.get("HELPERS_DEVICE") or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    import torch

    if torch.cuda.is_available():
        return ""
    here = f"{len(found)} × {found[0][0]} (driver {found[0][1]})"
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    try:
        wanted, _ = for_driver(found)
    except UnfitTorch as error:
        return str(error)
    return (
        f"{here} cannot be used by torch {torch.__version__}, which is {built}: "
        f"{sys.executable} -m pip install --force-reinstall '{(wanted or ['torch'])[0]}' torchvision. {ON_CPU}"
    )


# -- what differs between releases ----------------------------------------------------------------

# Torch 2.8 to 2.10 print this on stdout for each group that is made, among what the program prints.
_CONNECTED = re.compile(r"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\. Expected number of .* is : \1\n")


def without_greeting(text) -> str:
    """What a rank printed, without gloo's lines that say it is connected to all others."""
    return _CONNECTED.sub("", text)


@lru_cache
def torch_release() -> tuple:
    """The release of the torch installed here, as (major, minor). Imports torch."""
    import torch

    return number(torch.__version__)


def serve_store(listening, port, host="127.0.0.1"):
    """A TCPStore on a socket that listens already: nobody can take its port, and nobody comes too early.

    Args:
        listening: the socket's file descriptor, which the store then owns.
        port, host: the socket's address.
    """
    from torch.distributed import TCPStore

    # From 2.4 to 2.6 the newer of torch's two servers takes no such socket. Clients do not notice which one serves.
    older = {"use_libuv": False} if (2, 4) <= torch_release() < (2, 7) else {}
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening, **older)


def recompile_reason(compilation) -> str:
    """Why a frame was compiled again, of an entry of torch's compilation metrics; "" for the first time."""
    if hasattr(compilation, "recompile_reason"):
        return compilation.recompile_reason or ""
    again = str(compilation.compile_id).partition("/")[2] not in ("0", "")
    return "this release of torch does not say why; 2.8 does" if again else ""


def compile_in_place(module, backend) -> None:
    """`module.compile(backend=backend)`, also for a module whose forward is torch's own, such as nn.Sequential.

    Releases such as 2.6 and 2.8 skip the code of torch's own modules, and then compile nothing, silently.
    """
    import torch
    from torch._dynamo import eval_frame, external_utils, trace_rules

    wraps = hasattr(eval_frame.OptimizedModule, "_should_wrap_module_call_impl")
    if wraps or not trace_rules.check(module.forward):
        module.compile(backend=backend)
        return
    call = external_utils.wrap_inline(module._call_impl)  # a frame of its own, which is not skipped
    # Another code object for each module, since functions that share their code share their recompilations.
    call.__code__ = call.__code__.replace(co_name=call.__code__.co_name)
    module._compiled_call_impl = torch.compile(call, backend=backend)


@lru_cache
def isolated() -> dict:
    """Options of torch.compile that keep the recompilations of one compiled function apart from another's."""
    import inspect

    import torch

    # Torch 2.12 has no such option: functions that share their code share their recompilations.
    return {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}


def gradients_as_they_are() -> dict:
    """Options of a pipeline's schedule that leave the gradients as backward makes them."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    # Since 2.7 schedules divide them by the number of micro-batches unless told otherwise; torch 2.6 never did.
    known = inspect.signature(PipelineScheduleSingle).parameters
    return {"scale_grads": False} if "scale_grads" in known else {}


def wait_for_every_message() -> None:
    """Make the schedules of a pipeline wait for all messages of a batch, as newer releases do.

    Releases such as 2.6 keep the last one only, which is enough for NCCL; gloo forgets the others, and all ranks wait.
    """
    import torch.distributed as dist
    from torch.distributed.pipelining import schedules

    class Works(list):
        def wait(self):
            return all([work.wait() for work in self])

    if not hasattr(schedules, "_wait_batch_p2p"):
        schedules._batch_p2p = lambda ops, desc=None: Works(dist.batch_isend_irecv(ops)) if ops else None


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


def backend_class() -> type:
    """The class that a backend of torch.distributed derives from when it is written in Python."""
    from torch._C import _distributed_c10d as c10d

    try:
        c10d.Backend(0, 1)
    except TypeError:  # Releases such as 2.12 cannot make one in Python. There a whole process group stands for it.
        return c10d.ProcessGroup
    return c10d.Backend


def forgets_works() -> bool:
    """Whether C++ does not keep the Python part of a collective's work alive (2.6), and waits for ever without it."""
    return torch_release() < (2, 8)


def flight_records():
    """What this rank's flight recorder holds of gloo: a dict for each of the last collectives, the oldest first.

    It records where TORCH_FR_BUFFER_SIZE was set before the process group was made. None with torches such as 2.6,
    whose recorder knows NCCL only.
    """
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_fr_trace_json", None)
    return json.loads(dump())["entries"] if dump else None


# -- for the bootstrap ------------------------------------------------------------------------------


def install(constraints):
    """Install this clone, and what it needs, into the environment of this Python; returns pip's exit status."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints))
        file.flush()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        kit = folder if LEFT_OUT in constraints else f"{folder}[vision]"
        return subprocess.call([*pip, "--constraint", file.name, "--editable", kit])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="PYTHON")
    parser.add_argument("--release")
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    if options.install:
        options.keep = sys.executable
    try:
        if options.release:
            if number(options.release) < number(OLDEST):
                raise UnfitTorch(f"torch {options.release} is older than {OLDEST}, the oldest that the kit runs on")
            constraints, why = [f"torch=={options.release}.*"], ""
        else:
            constraints, why = (options.keep and kept(options.keep)) or for_driver(gpus())
    except UnfitTorch as error:
        raise SystemExit(f"bootstrap: error: {error}") from None
    if why:
        print(f"bootstrap: {why}", file=sys.stderr)
    if options.install:
        size = "0.3 GB at most, a minute" if version_of("torch") else "3 GB, mostly CUDA for torch"
        print(f"bootstrap: installing the kit and what it needs ({size})", file=sys.stderr, flush=True)
        status = install(constraints)
        print(f"bootstrap: {'pip failed, see above' if status else 'the kit is installed'}", file=sys.stderr)
        raise SystemExit(status)
    for line in constraints:
        print(line)


if __name__ == "__main__":
    main()
