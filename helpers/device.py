"""Which devices are here, what they can compute, and how to drive them.

On a machine without accelerators each device is a CPU process with a fixed number of
threads, so that "two devices" means the same there as elsewhere: twice the hardware of one.
"""

import os
import platform
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from pathlib import Path

from . import releases
from .language import _

KINDS = ("cuda", "npu", "xla", "mps", "cpu")
BACKENDS = {"cuda": "nccl", "npu": "hccl", "xla": "xla", "mps": "gloo", "cpu": "gloo"}
MOST_CPU_DEVICES = 8
FORMATS = ("float32", "bfloat16", "float16")
# Of a CPU, as Linux names them: those that decide how fast it computes in which format.
INSTRUCTIONS = "avx2 avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_fp16 asimd sve bf16".split()
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


@dataclass(frozen=True)
class Machine:
    """The devices that a run on this machine uses."""

    kind: str  # one of KINDS
    count: int  # devices of that kind; on a CPU how many ranks play one each
    name: str  # the device's own
    backend: str  # the process-group backend that goes with it
    cores: int  # CPU cores this process may use (cgroup limits and affinity respected)
    threads: int  # CPU threads of each rank, the same in every run of a comparison
    instructions: tuple = ()  # those of INSTRUCTIONS that the CPU has
    bf16: str = ""  # whether there are instructions for it: "native", or "emulated"; "" if that is not known

    def describe(self) -> str:
        """One line for people."""
        known = {**asdict(self), "bf16": _(", bf16 emulated") if self.bf16 == "emulated" else ""}
        if self.kind != "cpu":
            return _("{count} × {name} ({kind}, {backend}), {cores} CPU cores{bf16}").format(**known)
        text = _(
            "no accelerator: {count} CPU process(es) of {threads} thread(s) emulate the devices "
            "({name}, {cores} cores{bf16})"
        )
        return ". ".join(filter(None, (text.format(**known), releases.idle_gpus())))

    def as_dict(self) -> dict:
        """The same for a record, with what the libraries of this process use of the CPU. Imports torch.

        "capability": the instructions that torch chose its kernels for; "limits": variables that hold libraries back.
        """
        import torch

        limits = {name: os.environ[name] for name in LIMITS if name in os.environ}
        used = {"capability": torch.backends.cpu.get_cpu_capability(), "limits": limits}
        return {**asdict(self), "instructions": list(self.instructions), **used}


def machine(kind=None) -> Machine:
    """The machine as seen by a run on `kind` (default: the best there is).

    A Machine has kind, count, name and backend of its devices, cores, threads a rank, and whether bf16 is native.

    Raises:
        ValueError: there is no such device here.
    """
    here = accelerator_kind()
    kind = kind or os.environ.get("HELPERS_DEVICE") or here or "cpu"
    if kind not in KINDS:
        raise ValueError(f"no device called {kind!r}; known are {', '.join(KINDS)}")
    if kind not in ("cpu", here):
        raise ValueError(f"this machine has no {kind} device; it has {here or 'only its CPU (cpu)'}")
    cores = usable_cores()
    count = max(2, min(cores, MOST_CPU_DEVICES)) if kind == "cpu" else _count(kind)
    threads = max(1, cores // count)
    return Machine(kind, count, _name(kind), BACKENDS[kind], cores, threads, _instructions(), _bf16(kind))


def choose(at_least=2) -> Machine:
    """The machine for lessons that need several devices; sets HELPERS_DEVICE and returns it.

    With fewer than `at_least` accelerators the CPU emulates the devices, unless HELPERS_DEVICE was set before.
    """
    here = machine()
    if here.kind != "cpu" and here.count < at_least and not os.environ.get("HELPERS_DEVICE"):
        here = machine("cpu")
    os.environ["HELPERS_DEVICE"] = here.kind
    return here


def accelerator_kind():
    """The kind of accelerator present ("cuda", …), or None; does not initialise it. An emulated one is none."""
    if not _may_have_accelerator():
        return None
    import torch

    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator().type
    return kind if kind in KINDS and not _is_emulated(kind) else None


def accelerator_count(environment=None) -> int:
    """Accelerators that ranks started with `environment` will see; 0 where they run on the CPU."""
    environment = os.environ if environment is None else environment
    kind = accelerator_kind() if environment.get("HELPERS_DEVICE") != "cpu" else None
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if kind == "cuda" and visible is not None:
        return min(_count(kind), len([d for d in visible.split(",") if d.strip() not in ("", "-1")]))
    return _count(kind) if kind else 0


def usable_cores() -> int:
    """CPU cores this process may use: affinity and the container's quota count, not the host's size."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, round(min(cores, container_limits()[0])))


def usable_memory() -> int:
    """Bytes of memory that this process and those it starts may use: the machine's, or what the container leaves."""
    return int(min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), container_limits()[1]))


@lru_cache  # a launch asks several times, and each look takes 2 ms
def container_limits(root="/sys/fs/cgroup", own="/proc/self/cgroup") -> tuple:
    """(cores, bytes of memory) that the control groups (v2) of this process allow; inf where nothing limits it.

    The tightest limit on the way from this process's group up to `root` holds.
    """
    root, cores, memory = Path(root), [inf], [inf]
    groups = [line.partition("::")[2] for line in _text(own).splitlines() if line.startswith("0::")]
    for folder in (root / group.strip("/") for group in groups):
        for level in (folder, *folder.parents):
            if root in (level, *level.parents):
                quota, _, period = _text(level / "cpu.max").partition(" ")
                cores.append(int(quota) / int(period) if quota.isdigit() else inf)
                most = _text(level / "memory.max").strip()
                memory.append(int(most) if most.isdigit() else inf)
    return min(cores), min(memory)


def _text(file):
    """What is in `file`; "" where there is none."""
    with suppress(OSError):
        return Path(file).read_text()
    return ""


def oversubscribed(devices, threads=None, kind=None) -> str:
    """A warning if `devices` emulated on CPU cores have more threads than there are cores, else ""."""
    here = machine(kind)
    wanted = devices * (threads or here.threads)
    if here.kind != "cpu" or wanted <= here.cores:
        return ""
    turns = f"{devices} device(s) with {wanted} CPU threads in all take turns on {here.cores} cores"
    return f"{turns}: their times are not those of {devices} devices"


def of_rank(local_rank=0, kind=None):
    """The torch.device of a local rank, made current. Raises ValueError if there is none.

    Only here is an emulated device given out, to those who name its kind: no run that is measured may use it.
    """
    import torch

    if not _is_emulated(kind):
        kind = machine(kind).kind
    if kind in ("cpu", "mps"):
        return torch.device(kind)
    if local_rank >= (count := _count(kind)):
        raise ValueError(f"local rank {local_rank} has no device of its own: there are {count} here")
    torch.get_device_module(kind).set_device(local_rank)  # torch.accelerator has another name for it in 2.6
    return torch.device(kind, local_rank)


def synchronize(device) -> None:
    """Wait until the device has done all it was given; without this a clock measures the queueing."""
    if device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def dtypes(kind=None) -> dict:
    """The floating formats that a device of `kind` computes in, with their speed relative to float32.

    Found by running a convolution forward and backward in each (about half a second, once): tables of instruction
    sets would not tell what a library makes of them. One far below 1 is emulated.
    """
    here = machine(kind)
    return dict(_dtypes(here.kind, here.threads))


@lru_cache
def _dtypes(kind, use_threads):
    import torch

    batch, channels = (8, 64) if kind == "cpu" else (64, 256)  # enough work to outweigh the start of it
    threads, seconds = torch.get_num_threads(), {}
    torch.set_num_threads(use_threads)
    for dtype, spent in ((getattr(torch, name), []) for name in FORMATS):
        with suppress(RuntimeError, TypeError, NotImplementedError):  # what torch raises varies with the device
            images = torch.randn(batch, channels, 16, 16, device=kind).to(dtype).requires_grad_()
            weights = torch.randn(channels, channels, 3, 3, device=kind).to(dtype).requires_grad_()
            for _repeat in range(4):
                began = time.perf_counter()
                torch.nn.functional.conv2d(images, weights, padding=1).sum().backward()
                synchronize(images.device)
                spent.append(time.perf_counter() - began)
            seconds[str(dtype).removeprefix("torch.")] = min(spent[1:])
    torch.set_num_threads(threads)
    return {name: seconds["float32"] / spent for name, spent in seconds.items()}


def reset_peak_memory(device) -> None:
    """Start a new measurement of `peak_memory`."""
    if device.type == "cpu":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak resident set size
        return
    if device.type == "cuda":
        import torch

        torch.cuda.init()  # else the allocator knows no device yet: torch.cuda's function, used up to 2.8, raises
    releases.device_memory(device.type).reset_peak_memory_stats(device)


def peak_memory(device) -> int:
    """Peak bytes: the allocator's on an accelerator, this process's resident set on a CPU."""
    if device.type != "cpu":
        return releases.device_memory(device.type).max_memory_allocated(device)
    for line in _text("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _is_emulated(kind):
    """Whether `kind` is a device that `platforms.npu` has put here."""
    return getattr(getattr(sys.modules.get("torch"), kind or "", None), "EMULATED", False)


@lru_cache
def _may_have_accelerator():
    """A look that spares an import of torch on machines that surely have none."""
    if "torch" in sys.modules or sys.platform != "linux":
        return True
    signs = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/davinci_manager", "/dev/accel", "/dev/dri")
    return any(os.path.exists(sign) for sign in signs)


def _count(kind):
    import torch

    return torch.accelerator.device_count() if kind != "mps" else 1


def _name(kind):
    if kind == "cpu":
        return _cpuinfo().get("model name") or platform.processor() or platform.machine()
    import torch

    module = torch.get_device_module(kind)
    return module.get_device_name(0) if hasattr(module, "get_device_name") else kind


def _instructions():
    flags = f"{_cpuinfo().get('flags', '')} {_cpuinfo().get('Features', '')}".split()  # x86 and Arm
    return tuple(name for name in INSTRUCTIONS if name in flags)


@lru_cache
def _cpuinfo():
    """What Linux says of the first core, as {name: text}; {} elsewhere."""
    pairs = (line.partition(":") for line in _text("/proc/cpuinfo").partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _colon, value in pairs}


def _bf16(kind):
    if kind == "cuda":
        import torch

        return "native" if torch.cuda.is_bf16_supported(including_emulation=False) else "emulated"
    if kind != "cpu" or not _instructions():
        return ""
    return "native" if BF16 & {*_instructions()} else "emulated"
