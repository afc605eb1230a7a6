"""Make `npu` a device of this process: the real torch_npu if it is installed, else the emulated one."""

import functools
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from .build import library
from .cards import check_settings, is_emulated

SHIMS = Path(__file__).parent / "shims"  # `torch_npu` and `apex` for those who have not got them


def load() -> str:
    """Make torch.npu, tensor.npu(), "npu:1", the backend hccl, `torch_npu` and `apex` work in this process.

    Returns:
        "torch_npu" if that is installed, else "emulated". Calling it again does nothing.

    Raises:
        NpuMissing: the emulated device has to be compiled and cannot be.
        ValueError: HELPERS_NPU_DEVICES or HELPERS_NPU_MEMORY_MB is not a number that can be had.
        RuntimeError: another device has taken PyTorch's slot.
    """
    for folder in shims():
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that whatever is installed comes first
    if real_torch_npu():
        import torch_npu

        return "torch_npu"
    import torch

    if not is_emulated():
        check_settings(os.environ)
        taken = torch._C._get_privateuse1_backend_name()
        if taken not in ("privateuseone", "npu"):
            raise RuntimeError(f"PyTorch has room for one device of a third party, and {taken!r} is there already")
        _register()
    import torch_npu  # noqa: F401 - so that `sys.modules` has it, as after a real import

    return "emulated"


def real_torch_npu() -> bool:
    """Whether the real torch_npu is installed."""
    return _installed("torch_npu")


def shims() -> list:
    """Folders that a process needs on its path for `import torch_npu` and `from apex import amp`."""
    return [
        str(SHIMS / name) for name in ("torch_npu", "apex") if not _installed(name, "amp" if name == "apex" else "")
    ]


def environment(devices=None, memory=None) -> dict:
    """Environment variables for a Python process that is to find `torch_npu` and `apex`.

    Args:
        devices: cards of the emulated host, 1 to 8 (default: HELPERS_NPU_DEVICES, or 8).
        memory: MiB of each card (default: HELPERS_NPU_MEMORY_MB, or 32 GiB).

    Raises:
        ValueError: so many cards, or so much memory, cannot be had.
    """
    made = dict(os.environ)
    for name, value in (("HELPERS_NPU_DEVICES", devices), ("HELPERS_NPU_MEMORY_MB", memory)):
        if value is not None:
            made[name] = str(value)
    check_settings(made)
    made["PYTHONPATH"] = os.pathsep.join([*shims(), *filter(None, [made.get("PYTHONPATH")])])
    return made


def _installed(package, module=""):
    """Whether `package` (with a `module` in it) can be imported from somewhere other than our shims."""
    path = [entry for entry in sys.path if not entry.startswith(str(SHIMS))]
    spec = PathFinder.find_spec(package, path)
    if spec is None or spec.origin is None:  # a mere folder of that name is no package
        return False
    return not module or PathFinder.find_spec(module, spec.submodule_search_locations) is not None


def _register():
    import torch

    torch.ops.load_library(library())
    torch.utils.rename_privateuse1_backend("npu")
    from . import amp, batch_norm, hccl, module

    torch._register_device_module("npu", module)
    sys.modules["torch.npu"], sys.modules["torch.npu.amp"] = module, amp
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    hccl.register()
    batch_norm.register()
    _print_on_the_host(torch)
    _refuse_one_process(torch)
    _take_old_types(torch, module)


def _print_on_the_host(torch):
    """Show a card's tensor through a copy, as torch_npu does: the formatting computes in float64."""
    shown = torch._tensor_str._tensor_str
    torch._tensor_str._tensor_str = lambda t, indent: shown(t.cpu() if t.device.type == "npu" else t, indent)


def _take_old_types(torch, module):
    """x.type(torch.npu.HalfTensor), and such a class as the default: PyTorch itself takes those of CPU and CUDA."""
    convert, choose = torch.Tensor.type, torch.set_default_tensor_type

    @functools.wraps(convert)
    def type_(self, dtype=None, *args, **kwargs):
        if isinstance(dtype, module._TensorType):
            return self.to("npu", dtype.dtype, *args, **kwargs)
        return convert(self) if dtype is None else convert(self, dtype, *args, **kwargs)

    @functools.wraps(choose)
    def set_default_tensor_type(t):
        kind = torch._import_dotted_name(t) if isinstance(t, str) else t
        if isinstance(kind, module._TensorType):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("npu")
            return
        if torch.get_default_device().type == "npu":
            torch.set_default_device(None)
        choose(t)

    torch.Tensor.type, torch.set_default_tensor_type = type_, set_default_tensor_type


def _refuse_one_process(torch):
    """RuntimeError for nn.DataParallel and share_memory() of a model on a card.

    torch_npu 2.1, that of the guide, raises it for both, 2.7 to 2.11 for share_memory() only (torch_npu's
    utils/unsupport_api.py). The emulated device has neither copies of a model on other cards nor cards that two
    processes share.
    """
    parallel = torch.nn.DataParallel
    parallel.__init__ = _refusing(parallel.__init__, "nn.DataParallel")
    parallel.forward = _refusing(parallel.forward, "nn.DataParallel")
    torch.nn.Module.share_memory = _refusing(torch.nn.Module.share_memory, "share_memory()")


def _refusing(call, what):
    from torch.nn import Module

    @functools.wraps(call)
    def checked(*args, **kwargs):
        models = (it for it in (*args, *kwargs.values()) if isinstance(it, Module) and "_modules" in vars(it))
        if any(it.device.type == "npu" for model in models for it in model.parameters()):
            raise RuntimeError(
                f"{what} is not supported for a model on an NPU: each card needs a process of its own. Start one "
                "process a card (torchrun, or mp.spawn), join them (step 7 of the guide) and wrap the model in "
                "DistributedDataParallel (step 11) (emulated NPU)"
            )
        return call(*args, **kwargs)

    return checked
