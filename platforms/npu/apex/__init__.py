"""`apex.amp` and `apex.parallel.LARC` on torch alone: the interface that scripts with NVIDIA's apex were written for.

NVIDIA took `amp` out of apex in 2025 in favour of torch.amp; scripts and migration guides still say
`from apex import amp`. This package is written from the documented behaviour
(https://nvidia.github.io/apex/amp.html) and runs on CPU, CUDA and npu.
"""

from . import amp, parallel

__all__ = ["amp", "parallel"]
