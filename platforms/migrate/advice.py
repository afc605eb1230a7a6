"""What to do about things that work on CUDA devices only, by their qualified names."""

import re

from helpers.language import N_, Message

from .counterparts import counterpart, offered

# What a text says when it speaks of NVIDIA's devices or libraries.
WORD = re.compile(r"cuda|cudnn|cublas|nccl|nvidia|nvtx|nvml", re.IGNORECASE)

FLOAT64 = N_("An NPU computes it as float32, with a warning, and HCCL refuses it: use float32.")
_NO_COUNTERPART = N_("torch_npu {version} has no counterpart: take it out, or keep it for CUDA behind a test.")
_OFFERED = N_("torch_npu has it: import it from torch_npu.npu, in a statement of its own.")
_PARALLEL = N_(
    "It is for CUDA devices only. Start one process a card (torchrun) and wrap the model in DistributedDataParallel."
)
_JIT = N_("Not supported on NPUs in training: call the module itself.")
_PROFILER = N_("Marks for NVIDIA's profiler. torch.npu.mstx marks ranges for Ascend's; or take it out.")
_EXTENSION = N_("It compiles for CUDA: write the operator in PyTorch, or with Ascend C.")
_NO_PACKAGE = N_("This package is for NVIDIA devices: find what replaces it on Ascend, or do without.")
_DRIVER = N_("It reads NVIDIA's driver: `npu-smi info` shows the cards, torch.npu.mem_get_info() their memory.")
_ATTENTION = N_("torch_npu.npu_fusion_attention, or torch's scaled_dot_product_attention.")

# Names in torch; of several that fit the longest counts.
TORCH = {
    "torch.cuda": _NO_COUNTERPART,
    "torch.cuda.nvtx": _PROFILER,
    "torch.cuda.nccl": N_("HCCL takes its place and is reached through torch.distributed only: take it out."),
    "torch.cuda.comm": N_(
        "Copies between the cards of one process. "
        "Start one process a card (torchrun) and wrap the model in DistributedDataParallel."
    ),
    "torch.backends.cudnn": N_("There is no cuDNN on an NPU, and this has no effect: take it out."),
    "torch.backends.cuda": N_("It steers CUDA's kernels and has no effect on an NPU: take it out."),
    "torch.version.cuda": N_("It is None there: ask torch.version.cann, or leave the text out."),
    "torch.nn.DataParallel": _PARALLEL,
    "torch.nn.parallel.DataParallel": _PARALLEL,
    "torch.nn.parallel.data_parallel": _PARALLEL,
    "torch.jit.script": _JIT,
    "torch.jit.trace": _JIT,
    "torch.compile": N_("Inductor writes kernels for CUDA and CPU: switch it off, or use torchair's backend."),
    "torch.float64": FLOAT64,
    "torch.double": FLOAT64,
    "torch.DoubleTensor": FLOAT64,
    "torch.npu.DoubleTensor": FLOAT64,
    "torch.profiler.ProfilerActivity.CUDA": N_(
        "torch_npu.profiler has ProfilerActivity.NPU and takes the same arguments."
    ),
    "torch.utils.cpp_extension": _EXTENSION,
}

# Packages, noted where they are imported.
PACKAGES = {
    "apex.optimizers": N_("Fused kernels for CUDA: use the optimizer of torch.optim, or that of Ascend's apex."),
    "apex.parallel": N_("Use torch.nn.parallel.DistributedDataParallel and torch.nn.SyncBatchNorm."),
    "apex.parallel.LARC": N_("It is plain PyTorch and works as it is, around an optimizer of torch.optim."),
    "horovod": N_("Horovod has no NPU: use torch.distributed with the backend 'hccl' and DistributedDataParallel."),
    "triton": N_("The kernels are for CUDA: Triton-Ascend compiles some of them, else write them in PyTorch."),
    "nvtx": _PROFILER,
    "torch.utils.cpp_extension": _EXTENSION,
}
PACKAGES |= dict.fromkeys(("apex.contrib", "pycuda", "tensorrt", "bitsandbytes", "transformer_engine"), _NO_PACKAGE)
PACKAGES |= dict.fromkeys(("pynvml", "nvidia_smi", "GPUtil", "gpustat"), _DRIVER)
PACKAGES |= dict.fromkeys(("flash_attn", "xformers"), _ATTENTION)


def of_name(name, table=TORCH):
    """(the known part of a dotted name, advice), or None."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        known = ".".join(parts[:length])
        if known in table:
            return known, _OFFERED if known == "torch.cuda" and counterpart(name) else with_version(table[known])
    return None


def with_version(advice):
    """An advice with the version of torch_npu in its place."""
    return Message(advice, version=offered()["version"]) if "{version}" in advice else advice
