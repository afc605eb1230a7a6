"""`apex.amp` on the kit's own mixed precision, for scripts that say `from apex import amp`.

NVIDIA took `amp` out of apex in 2025 in favour of torch.amp. This package is written from the documented behaviour
(https://nvidia.github.io/apex/amp.html) and runs on CPU, CUDA and npu.
"""

from . import amp

__all__ = ["amp"]
