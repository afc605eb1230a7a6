"""`torch.npu.amp` of the emulated device: PyTorch's own autocast and gradient scaler, for npu."""

from functools import partial

import torch


class autocast(torch.amp.autocast):
    """`with torch.npu.amp.autocast():` fp16 where it is safe (torch_npu's default format)."""

    def __init__(self, enabled=True, dtype=torch.float16, cache_enabled=True):
        super().__init__("npu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """The gradient scaler of torch.amp on npu. `dynamic=False` keeps the first scale, as torch_npu has it."""

    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        dynamic=True,
        enabled=True,
    ):
        if not dynamic:  # factors that round to 1 in float32
            growth_factor, backoff_factor = 1 + 1e-12, 1 - 1e-12
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = partial(torch.amp.custom_bwd, device_type="npu")
