"""An Ascend NPU where there is none: the device `npu` and the process group `hccl`, emulated on the CPU.

    platforms.npu.load()                       # now torch.npu, tensor.npu(), "npu:1", `import torch_npu` work here
    platforms.npu.run(["main.py", "--amp"])    # a migrated script, in processes of its own

The emulated device goes through PyTorch's slot for devices of third parties, as the real one does,
and enforces what the hardware enforces. It brings no speed. Where the real torch_npu is installed,
that is what load() and run() use, and the emulator steps aside.
"""

from .build import NpuMissing
from .cards import is_emulated
from .loading import load
from .recorded import run_or_show
from .script import Finished, environment, run

__all__ = ["Finished", "NpuMissing", "environment", "is_emulated", "load", "run", "run_or_show"]
