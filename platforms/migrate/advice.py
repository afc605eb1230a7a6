"""What to do about things that work on CUDA devices only, by their qualified names."""

import re

# What a text says when it speaks of NVIDIA's devices or libraries.
WORD = re.compile(r"cuda|cudnn|cublas|nccl|nvidia|nvtx|nvml", re.IGNORECASE)

_DDP = "Start one process a card (torchrun) and wrap the model in DistributedDataParallel."
_NO_PACKAGE = "This package is for NVIDIA devices: find what replaces it on Ascend, or do without."

# Names in torch; of several that fit the longest counts.
TORCH = {
    "torch.cuda": "torch_npu {version} has no counterpart: take it out, or keep it for CUDA behind a test.",
    "torch.cuda.nvtx": "Marks for NVIDIA's profiler. torch.npu.mstx marks ranges for Ascend's; or take it out.",
    "torch.cuda.nccl": "HCCL takes its place and is reached through torch.distributed only: take it out.",
    "torch.cuda.comm": f"Copies between the cards of one process. {_DDP}",
    "torch.cuda.default_generators": "Use torch.npu.manual_seed and torch.npu.get_rng_state instead.",
    "torch.cuda.CUDAPluggableAllocator": "torch.npu.NPUPluggableAllocator takes a library written for Ascend.",
    "torch.backends.cudnn": "There is no cuDNN on an NPU, and this has no effect: take it out.",
    "torch.backends.cuda": "It steers CUDA's kernels and has no effect on an NPU: take it out.",
    "torch.version.cuda": "It is None there: ask torch.version.cann, or leave the text out.",
    "torch.nn.DataParallel": f"It is for CUDA devices only. {_DDP}",
    "torch.nn.parallel.DataParallel": f"It is for CUDA devices only. {_DDP}",
    "torch.nn.parallel.data_parallel": f"It is for CUDA devices only. {_DDP}",
    "torch.jit.script": "Not supported on NPUs in training: call the module itself.",
    "torch.jit.trace": "Not supported on NPUs in training: call the module itself.",
    "torch.compile": "Inductor writes kernels for CUDA and CPU: switch it off, or use torchair's backend.",
    "torch.float64": "An NPU computes it as float32, with a warning, and HCCL refuses it: use float32.",
    "torch.double": "An NPU computes it as float32, with a warning, and HCCL refuses it: use float32.",
    "torch.DoubleTensor": "An NPU computes it as float32, with a warning, and HCCL refuses it: use float32.",
    "torch.npu.DoubleTensor": "An NPU computes it as float32, with a warning, and HCCL refuses it: use float32.",
    "torch.distributed.ProcessGroupNCCL": "HCCL takes its place: use torch.distributed with the backend 'hccl'.",
    "torch.profiler.ProfilerActivity.CUDA": "torch_npu.profiler has ProfilerActivity.NPU and takes the same arguments.",
    "torch.utils.cpp_extension": "It compiles for CUDA: write the operator in PyTorch, or with Ascend C.",
    "torch.distributed.Backend.NCCL": "The name of the NPU's backend is 'hccl'.",
}

# Packages, told where they are imported.
PACKAGES = {
    "apex.optimizers": "Fused kernels for CUDA: use the optimizer of torch.optim, or that of Ascend's apex.",
    "apex.parallel": "Use torch.nn.parallel.DistributedDataParallel and torch.nn.SyncBatchNorm.",
    "apex.parallel.LARC": "It is plain PyTorch and works as it is, around an optimizer of torch.optim.",
    "apex.normalization": "Use the layer of the same name in torch.nn.",
    "apex.contrib": _NO_PACKAGE,
    "apex.fp16_utils": "Use apex.amp, or torch.amp.",
    "horovod": "Horovod has no NPU: use torch.distributed with the backend 'hccl' and DistributedDataParallel.",
    "cupy": "Use torch, or NumPy on the CPU.",
    "pycuda": _NO_PACKAGE,
    "cuda": _NO_PACKAGE,
    "numba.cuda": "Write the kernel in PyTorch, or with Ascend C.",
    "triton": "The kernels are for CUDA: Triton-Ascend compiles some of them, else write them in PyTorch.",
    "pynvml": "It reads NVIDIA's driver: `npu-smi info` shows the cards, torch.npu.mem_get_info() their memory.",
    "py3nvml": "It reads NVIDIA's driver: `npu-smi info` shows the cards, torch.npu.mem_get_info() their memory.",
    "nvidia_smi": "It reads NVIDIA's driver: `npu-smi info` shows the cards.",
    "GPUtil": "It reads NVIDIA's driver: `npu-smi info` shows the cards.",
    "gpustat": "It reads NVIDIA's driver: `npu-smi info` shows the cards.",
    "nvtx": "Marks for NVIDIA's profiler. torch.npu.mstx marks ranges for Ascend's; or take it out.",
    "nvidia": "Use torchvision's transforms and torch's DataLoader.",
    "tensorrt": _NO_PACKAGE,
    "torch_tensorrt": _NO_PACKAGE,
    "bitsandbytes": _NO_PACKAGE,
    "flash_attn": "torch_npu.npu_fusion_attention, or torch's scaled_dot_product_attention.",
    "xformers": "torch_npu.npu_fusion_attention, or torch's scaled_dot_product_attention.",
    "transformer_engine": _NO_PACKAGE,
    "deepspeed": "It needs its NPU build; the launcher then takes hccl by itself.",
    "torch.utils.cpp_extension": TORCH["torch.utils.cpp_extension"],
}


def of_name(name, table=TORCH):
    """(the known part of a dotted name, advice), or None."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        known = ".".join(parts[:length])
        if known in table:
            return known, table[known]
    return None
