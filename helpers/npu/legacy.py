"""`torch.npu.FloatTensor` and its kin: the old way of naming a format together with a device."""

import torch


class _TensorType(type):
    """A class that nothing is an instance of by construction, but every fitting tensor by test."""

    def __instancecheck__(cls, value):
        return isinstance(value, torch.Tensor) and value.device.type == "npu" and value.dtype == cls.dtype

    def __call__(cls, *sizes_or_data):
        """FloatTensor(2, 3) is uninitialised memory of that shape, FloatTensor([1, 2]) holds the numbers."""
        if len(sizes_or_data) == 1 and not isinstance(sizes_or_data[0], (int, torch.Size)):
            return torch.as_tensor(sizes_or_data[0]).to(device="npu", dtype=cls.dtype)
        return torch.empty(*(sizes_or_data or (0,)), dtype=cls.dtype, device="npu")


def _tensor_type(name, dtype):
    return _TensorType(name, (), {"dtype": dtype, "is_cuda": False, "__module__": "torch.npu"})


BoolTensor = _tensor_type("BoolTensor", torch.bool)
ByteTensor = _tensor_type("ByteTensor", torch.uint8)
CharTensor = _tensor_type("CharTensor", torch.int8)
ShortTensor = _tensor_type("ShortTensor", torch.int16)
IntTensor = _tensor_type("IntTensor", torch.int32)
LongTensor = _tensor_type("LongTensor", torch.int64)
HalfTensor = _tensor_type("HalfTensor", torch.float16)
BFloat16Tensor = _tensor_type("BFloat16Tensor", torch.bfloat16)
FloatTensor = _tensor_type("FloatTensor", torch.float32)
DoubleTensor = _tensor_type("DoubleTensor", torch.float64)
