"""`from apex import amp` where NVIDIA's or Huawei's apex is not installed: the kit's own takes its name."""

import sys
from pathlib import Path

try:
    from platforms.npu.apex import amp
except ImportError:  # a script in another folder: the package is where this file is
    sys.path.append(str(Path(__file__).resolve().parents[5]))
    from platforms.npu.apex import amp

sys.modules["apex.amp"] = amp
