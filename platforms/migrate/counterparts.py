"""What torch_npu has for the names of torch.cuda: those of the published package, in `platforms/npu/names.json`."""

import functools
import json
import re
from pathlib import Path

MODULES = {"torch.cuda": "torch.npu", "torch.cuda.amp": "torch.npu.amp"}
# Modules inside torch.cuda whose names torch_npu offers one level higher.
_FLAT = ("memory", "random", "streams", "graphs", "autocast_mode", "grad_scaler")
_OTHER = {  # what it calls differently
    **MODULES,
    "torch.cuda.OutOfMemoryError": "torch.OutOfMemoryError",
    "torch.cuda.CUDAGraph": "torch.npu.NPUGraph",
    "torch.backends.cuda.matmul.allow_tf32": "torch.npu.matmul.allow_hf32",
    "torch.backends.cudnn.allow_tf32": "torch.npu.conv.allow_hf32",
    "torch.Tensor.cuda": "torch.Tensor.npu",
    "torch.Tensor.is_cuda": "torch.Tensor.is_npu",
    "torch.nn.Module.cuda": "torch.nn.Module.npu",
    "torch.distributed.is_nccl_available": "torch.distributed.is_hccl_available",
    # The NPU keeps tensors in layouts of its own and refuses channels_last.
    "torch.channels_last": "torch.contiguous_format",
}
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING": "ASCEND_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_NPU_ALLOC_CONF",
    "NCCL_SOCKET_IFNAME": "HCCL_SOCKET_IFNAME",
}


@functools.cache
def offered():
    """{"npu": names, "npu.amp": names, "version": ...} of the real torch_npu."""
    path = Path(__file__).parent.parent / "npu" / "names.json"
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def counterpart(name):
    """The name of torch with torch_npu for the full name of a thing of CUDA; None where there is none.

    counterpart("torch.cuda.memory.empty_cache") is "torch.npu.empty_cache".
    """
    if name in _OTHER:
        return _OTHER[name]
    if not name.startswith("torch.cuda."):
        return None
    inside = name.removeprefix("torch.cuda.")
    inside = re.sub(rf"^(amp\.)?({'|'.join(_FLAT)})\.", r"\1", inside)
    parent, _, last = inside.rpartition(".")
    names = offered().get(f"npu.{parent}".rstrip("."), ())
    if last in names or (last.startswith("__") and parent in ("", "amp")):
        return f"torch.npu.{inside}"
    return None
