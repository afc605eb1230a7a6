"""Make `npu` a device of this process: the real torch_npu if it is installed, else the emulated one."""

import functools
import os
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path

from .cards import check_settings, is_emulated

SHIMS = Path(__file__).parent / "shims"  # `torch_npu` and `apex` for those who have not got them


def load(log=print) -> str:
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
        _register(log)
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


def _installed(package, module=""):
    """Whether `package` (with a `module` in it) can be imported from somewhere other than our shims."""
    path = [entry for entry in sys.path if not entry.startswith(str(SHIMS))]
    spec = PathFinder.find_spec(package, path)
    if spec is None or spec.origin is None:  # a mere folder of that name is no package
        return False
    return not module or PathFinder.find_spec(module, spec.submodule_search_locations) is not None


def _register(log):
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from .build import library

    torch.ops.load_library(library(log))
    torch.utils.rename_privateuse1_backend("npu")
    from . import amp, batch_norm, hccl, module

    torch._register_device_module("npu", module)
    sys.modules["torch.npu"], sys.modules["torch.npu.amp"] = module, amp
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    hccl.register()
    module._library = batch_norm.register()
    _print_on_the_host(torch)
    _compile_to_eager(torch)
    _refuse_one_process(torch)
    _take_old_types(torch, module)
    register_optimizer_step_post_hook(_find_left_behind)
    if folder := os.environ.get("HELPERS_NPU_REPORT"):
        from . import counts

        counts.write_at_exit(folder)


def _compile_to_eager(torch):
    """torch.compile with its own backend, inductor, which has no code for npu: run what it would compile as it is."""
    inductor = torch._TorchCompileInductorWrapper
    compiled = inductor.__call__

    def compile_or_run(self, module, inputs):
        if all(getattr(it, "device", torch.device("cpu")).type != "npu" for it in inputs):
            return compiled(self, module, inputs)
        text = "inductor has no kernels for npu: torch.compile runs this graph eagerly (emulated NPU)"
        warnings.warn(text, stacklevel=2)
        return module.forward

    inductor.__call__ = compile_or_run


def _take_old_types(torch, module):
    """x.type(torch.npu.HalfTensor), and such a class as the default: PyTorch itself takes those of CPU and CUDA."""
    convert, choose = torch.Tensor.type, torch.set_default_tensor_type
    chosen = []

    @functools.wraps(convert)
    def type_(self, dtype=None, non_blocking=False, **kwargs):
        if isinstance(dtype, module._TensorType):
            return self.to("npu", dtype.dtype, non_blocking)
        return convert(self, dtype, non_blocking, **kwargs) if dtype is not None else convert(self)

    @functools.wraps(choose)
    def set_default_tensor_type(t):
        kind = torch._import_dotted_name(t) if isinstance(t, str) else t
        if isinstance(kind, module._TensorType):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("npu")
            chosen[:] = [kind]
            return
        choose(t)
        if chosen:
            torch.set_default_device(None)
            chosen.clear()

    torch.Tensor.type, torch.set_default_tensor_type = type_, set_default_tensor_type


def _refuse_one_process(torch):
    """RuntimeError for nn.DataParallel and share_memory() of a model on a card.

    torch_npu 2.1, that of the guide, raises it for both, 2.7 to 2.11 for share_memory() only (torch_npu's
    utils/unsupport_api.py). The emulated device has neither copies of a model on other cards nor cards that two
    processes share.
    """
    from torch.nn import Module, parallel

    for owner, name, what in (
        (parallel.DataParallel, "__init__", "nn.DataParallel"),
        (parallel.DataParallel, "forward", "nn.DataParallel"),
        (parallel, "data_parallel", "nn.parallel.data_parallel"),
        (Module, "share_memory", "share_memory()"),
    ):
        setattr(owner, name, _refusing(getattr(owner, name), what, Module))


def _refusing(call, what, module):
    @functools.wraps(call)
    def checked(*args, **kwargs):
        models = (it for it in (*args, *kwargs.values()) if isinstance(it, module) and "_modules" in vars(it))
        if any(it.device.type == "npu" for model in models for it in model.parameters()):
            raise RuntimeError(
                f"{what} is not supported for a model on an NPU: each card needs a process of its own. Start one "
                "process a card (torchrun, or mp.spawn), join them (step 7 of the guide) and wrap the model in "
                "DistributedDataParallel (step 11) (emulated NPU)"
            )
        return call(*args, **kwargs)

    return checked


def _find_left_behind(optimizer, *_):
    """Warn once for an optimizer whose parameters stayed on the CPU, without gradients, when its model moved.

    A move to the card makes new parameters (torch.nn.Module._apply), so nothing would train and nothing fail.
    """
    import torch

    parameters = [it for group in optimizer.param_groups for it in group["params"] if it.device.type == "cpu"]
    if parameters and torch.npu.is_initialized() and all(it.grad is None for it in parameters):
        if not vars(optimizer).setdefault("_left_behind", False):
            optimizer._left_behind = True
            warnings.warn(
                f"{type(optimizer).__name__} steps {len(parameters)} parameters that are on the CPU and have no "
                "gradients, so they do not train: on an NPU a move makes new parameters. Make the optimizer after "
                "model.npu() (emulated NPU)",
                stacklevel=3,
            )


def _print_on_the_host(torch):
    """Show a card's tensor through a copy, as torch_npu does: the formatting computes in float64."""
    shown = torch._tensor_str._tensor_str
    torch._tensor_str._tensor_str = lambda t, indent: shown(t.cpu() if t.device.type == "npu" else t, indent)
