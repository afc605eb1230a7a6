"""For tests of what only a GPU can show: `pytestmark = gpu.MARKS`, and the KIND of device to ask for.

They are skipped where there is no CUDA device. HELPERS_GPU_TESTS=cpu runs them on the CPU in its place, as far as they
can be, so that on a machine with a GPU nothing but the device is new.
"""

import os

import pytest

from helpers import device

KIND = os.environ.get("HELPERS_GPU_TESTS", "cuda")
here = device.accelerator_kind() or "cpu"
MARKS = [pytest.mark.gpu, pytest.mark.skipif(KIND not in ("cpu", here), reason=f"needs a CUDA device; here is {here}")]
needs_cuda = pytest.mark.skipif(KIND != "cuda", reason="a CPU has nothing of the kind")
ENV = {"HELPERS_DEVICE": KIND}
EXACT = {**ENV, "NVIDIA_TF32_OVERRIDE": "0"}  # products of fp32 matrices without TF32, whatever torch's default is
