"""An Ascend NPU where there is none: the device `npu` and the process group `hccl`, emulated on the CPU.

    platforms.npu.load()        # now torch.npu, tensor.npu(), "npu:1", `import torch_npu` work in this process
    python -m platforms.npu --devices 2 main.py --amp      # a migrated script, from a shell

The emulated device goes through PyTorch's slot for devices of third parties, as the real one does,
and enforces what the hardware enforces. It brings no speed. Where the real torch_npu is installed,
that is what both use, and the emulator steps aside.
"""

from .build import NpuMissing
from .loading import environment, load
from .recorded import run_or_show

__all__ = ["NpuMissing", "environment", "load", "run_or_show"]
