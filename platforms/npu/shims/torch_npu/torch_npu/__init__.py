"""`import torch_npu` where the real package is not installed: the emulated device takes its name."""

import sys
from pathlib import Path

import torch

try:
    from platforms.npu.loading import load
except ImportError:  # a script in another folder: the package is where this file is
    sys.path.append(str(Path(__file__).resolve().parents[5]))
    from platforms.npu.loading import load

load()
from torch import npu  # noqa: E402

sys.modules["torch_npu.npu"], sys.modules["torch_npu.npu.amp"] = npu, npu.amp
__version__ = f"{torch.__version__.split('+')[0]}+emulated"
