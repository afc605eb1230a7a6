// An emulated accelerator in PyTorch's slot for devices of third parties (PrivateUse1, renamed "npu" by module.py).
// Its memory is host memory and every operator runs the CPU's kernel on it: PyTorch's dispatch, autograd, autocast and
// DDP treat it as they treat a real device. It is no faster than the CPU.
// How a device joins PyTorch: https://docs.pytorch.org/tutorials/advanced/privateuseone.html
#include <ATen/autocast_mode.h>

#include "cells.h"
#include "operators.h"
#include "timer.h"

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&npu::fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", npu::empty);
  m.impl("empty_strided", npu::empty_strided);
  m.impl("empty_like", npu::empty_like);
  m.impl("_to_copy", npu::to_copy);
  m.impl("_copy_from", npu::copy_from);
  m.impl("_copy_from_and_resize", npu::copy_from_and_resize);
  m.impl("_pin_memory", npu::refuse_pinning);
  m.impl("record_stream", npu::ignore_stream);
  m.impl("_has_compatible_shallow_copy_type", npu::moves_in_place);
  m.impl("set_.source_Storage_storage_offset", npu::set_storage);
  m.impl("set_.source_Storage", npu::set_whole_storage);
  m.impl("set_.source_Tensor", npu::set_tensor);
  m.impl("convolution_overrideable", npu::convolution);
  m.impl("convolution_backward_overrideable", npu::convolution_backward);
  m.impl("_thnn_fused_lstm_cell", npu::lstm_cell);
  m.impl("_thnn_fused_gru_cell", npu::gru_cell);
  // PyTorch's shape check of these refuses int32 labels before a backend is asked.
  for (auto* name : {"nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&npu::fallback>());
  // Operators that PyTorch would take apart for a device without kernels ("structured" ones): asked as a whole, they
  // take one step instead of three, and mixtures of devices are refused in the emulator's words.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (name.name.rfind("aten::", 0) == 0 && op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      m.impl((name.name + (name.overload_name.empty() ? "" : "." + name.overload_name)).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&npu::fallback>());
  }
}
// PyTorch resolves a lazy conjugate by copying it: that copy must see it.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", npu::lstm_cell);
  m.impl("_thnn_fused_gru_cell", npu::gru_cell);
}
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_to_copy", npu::to_copy); }  // for what comes from the host

// torch.autocast("npu"): PyTorch's own lists for devices in this slot.
namespace npu_autocast {
using namespace at;  // for the types in the macros' lists, which differ between releases
using namespace at::autocast;
static Tensor refuse_bce(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(false, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
              "binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which take the layer before the sigmoid.");
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FP32_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define DIFFERENT(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FP32_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(DIFFERENT)
  AT_FORALL_PROMOTE(PROMOTE)
  m.impl("binary_cross_entropy", refuse_bce);
}
}  // namespace npu_autocast

// What module.py calls. No pybind, so one build serves every Python.
TORCH_LIBRARY(helpers_npu, m) {
  using at::Tensor;
  m.def("device_count() -> int", [] { return int64_t(npu::count()); });
  m.def("current_device() -> int", [] { return int64_t(npu::current); });
  m.def("set_device(int card) -> ()", [](int64_t card) { npu::set_current(card); });
  m.def("used() -> bool", [] { return bool(npu::used); });
  m.def("bad_fork() -> bool", [] { return bool(npu::bad_fork); });
  m.def("capacity() -> int", [] { return npu::capacity(); });
  m.def("set_fraction(int card, float part) -> ()", [](int64_t card, double part) {
    npu::check_index(card);
    npu::fraction[card] = part;
  });
  m.def("manual_seed(int card, int seed) -> ()", [](int64_t card, int64_t seed) {
    at::Generator(npu::default_generator(card)).set_current_seed(uint64_t(seed));
  });
  m.def("initial_seed(int card) -> int", [](int64_t card) { return int64_t(npu::default_generator(card).current_seed()); });
  m.def("get_rng_state(int card) -> Tensor", [](int64_t card) { return npu::default_generator(card).get_state(); });
  m.def("set_rng_state(int card, Tensor state) -> ()", [](int64_t card, const Tensor& state) {
    at::Generator(npu::default_generator(card)).set_state(state);
  });
  m.def("counters(int card) -> int[]", [](int64_t card) {
    npu::check_index(card);
    auto& c = npu::counters[card];
    return std::vector<int64_t>{c.bytes, c.peak, c.allocations, c.h2d, c.d2h, c.syncs, c.ops, c.kernels, c.int32_targets, npu::pinned};
  });
  m.def("reset_peak(int card) -> ()", [](int64_t card) {
    npu::check_index(card);
    npu::counters[card].peak = npu::counters[card].bytes.load();
  });
  m.def("alias_cpu(Tensor(a) t) -> Tensor(a)");
}
TORCH_LIBRARY_IMPL(helpers_npu, PrivateUse1, m) { m.impl("alias_cpu", npu::alias_cpu); }
// hccl.py calls it from Python's side of a process group, too, where autograd has not been passed yet.
TORCH_LIBRARY_IMPL(helpers_npu, AutogradPrivateUse1, m) { m.impl("alias_cpu", torch::CppFunction::makeFallthrough()); }

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, npu::Timer);
}
namespace npu {
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
NPU_REGISTER_GENERATOR(new_generator)
static const bool registered = [] {
  c10::SetAllocator(kNPU, &allocator);
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();
}  // namespace npu
