// Every operator of the device: one fallback to the CPU's kernel, and the few that cannot be one.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like_native.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_set>

#include "call.h"

namespace npu {
using Names = std::unordered_set<std::string>;

inline void count_operator(const Call& call) {
  static std::mutex mutex;
  static std::unordered_set<size_t> seen;  // what a device with static shapes would have had to compile
  auto& c = counters[call.device.is_cpu() ? current : call.device.index()];
  c.ops++;
  std::lock_guard<std::mutex> lock(mutex);
  if (seen.insert(call.signature()).second) c.kernels++;
}

// An operator of chance that takes no generator (native_dropout) draws from the CPU's: lend it the card's state.
class CardsChance {
 public:
  CardsChance(const c10::OperatorHandle& op, int card) {
    if (!op.hasTag(at::Tag::nondeterministic_seeded)) return;
    for (auto& argument : op.schema().arguments())
      if (argument.name() == "generator") return;
    card_ = inner(default_generator(card));
    before_ = host_.get_state();
    host_.set_state(card_.get_state());
  }
  ~CardsChance() {
    if (!card_.defined()) return;
    card_.set_state(host_.get_state());
    host_.set_state(before_);
  }

 private:
  at::Generator card_, host_ = at::detail::getDefaultCPUGenerator();
  Tensor before_;
};

// The arguments on the stack as the CPU is to see them; the device that the call asks for, if it names one.
inline std::optional<c10::Device> to_host(Call& call, const c10::FunctionSchema& schema, torch::jit::Stack& stack, bool wide) {
  static const Names labelled = {"aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward",
                                 "aten::nll_loss2d_backward"};
  const size_t n = schema.arguments().size(), base = stack.size() - n;
  std::optional<c10::Device> asked;
  for (size_t i = 0; i < n; i++) {
    auto& value = stack[base + i];
    const auto& argument = schema.arguments()[i];
    if (value.isTensor()) {
      Tensor t = call.in(value.toTensor(), wide, argument.alias_info() && argument.alias_info()->isWrite());
      if (t.defined() && t.scalar_type() == at::kInt && argument.name() == "target" && labelled.count(schema.name())) {
        if (schema.name().find("forward") != std::string::npos && !call.device.is_cpu()) counters[call.device.index()].int32_targets++;
        t = t.to(at::kLong);  // class indices in 32 bits are the device's own; the CPU has no kernel for them
      }
      value = std::move(t);
    } else if (value.isTensorList()) {
      const bool written = argument.alias_info() && argument.alias_info()->isWrite();
      auto list = value.toTensorVector();
      for (auto& t : list) t = call.in(t, wide, written);
      value = c10::IValue(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> t : value.toOptionalTensorList())
        list.push_back(t ? std::optional<Tensor>(call.in(*t, wide)) : std::nullopt);
      value = c10::IValue(std::move(list));
    } else if (value.isDevice()) {
      asked = value.toDevice();
      value = c10::IValue(c10::Device(c10::kCPU));
    } else if (value.isGenerator()) {
      value = c10::IValue(inner(value.toGenerator()));
    }
  }
  if (call.device.is_cpu())
    call.device = asked && asked->is_privateuseone() && asked->has_index() ? *asked : c10::Device(kNPU, c10::DeviceIndex(current));
  for (size_t i = 0; i < n; i++)  // randomness without a generator comes from the card's own
    if (schema.arguments()[i].name() == "generator" && stack[base + i].isNone())
      stack[base + i] = c10::IValue(inner(default_generator(call.device.index())));
  return asked;
}

inline void to_card(Call& call, const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const size_t n = schema.returns().size(), base = stack.size() - n;
  for (size_t i = 0; i < n; i++) {
    auto& value = stack[base + i];
    if (value.isTensor()) {
      value = call.out(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& t : list) t = call.out(t);
      value = c10::IValue(std::move(list));
    }
  }
}

// Matrices of one format only: the CPU refuses a mixture, and must see it.
inline bool same_format(const std::vector<Tensor>& tensors) {
  std::unordered_set<at::ScalarType> formats;
  for (auto& t : tensors)
    if (t.defined() && at::isFloatingType(t.scalar_type())) formats.insert(t.scalar_type());
  return formats.size() < 2;
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const Names matrices = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv",
                                 "aten::dot", "aten::addbmm", "aten::convolution_overrideable"};
  static const Names mixes = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::set_",
                              "aten::_pack_padded_sequence"};  // CUDA takes their indices in host memory, too
  const auto& schema = op.schema();
  const size_t base = stack->size() - schema.arguments().size();
  const torch::jit::Stack given(stack->begin() + base, stack->end());
  const bool matrix = matrices.count(schema.name());
  std::vector<Tensor> tensors;
  for (auto& value : given)
    if (matrix && value.isTensor()) tensors.push_back(value.toTensor());
  auto run = [&](Call& call, bool wide) {
    auto asked = to_host(call, schema, *stack, wide);
    if (!mixes.count(schema.name())) call.refuse_mixture();
    TORCH_CHECK(!matrix || !call.has_double(), schema.name(), ": DT_DOUBLE is not supported, use float32 (emulated NPU)");
    CardsChance chance(op, call.device.index());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return asked;
  };
  Call first(op), second(op);
  Call* call = &first;
  std::optional<c10::Device> asked;
  try {
    asked = run(first, matrix && same_format(tensors));
  } catch (const c10::NotImplementedError&) {  // no CPU kernel in fp16: once more in fp32, rounded at the end
    if (!first.has_half() || first.widened || matrix) throw;
    stack->resize(base);
    stack->insert(stack->end(), given.begin(), given.end());
    asked = run(second, true);
    call = &second;
  }
  count_operator(*call);
  if (schema.name() == "aten::_local_scalar_dense") counters[call->device.index()].syncs++;
  call->reflect();
  if (!asked || !asked->is_cpu()) to_card(*call, schema, *stack);
}

inline c10::DeviceGuard on(std::optional<c10::Device> d) {
  c10::Device device = d.value_or(c10::Device(kNPU));
  if (!device.has_index()) device = c10::Device(kNPU, c10::DeviceIndex(current));
  check_index(device.index());
  return c10::DeviceGuard(device);
}
inline void refuse_channels_last(std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format || *format == at::MemoryFormat::Preserve || *format == at::MemoryFormat::Contiguous,
              "Only contiguous_format or preserve_format is supported, channels_last is not (emulated NPU)");
}

inline Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<c10::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned (emulated NPU)");
  auto guard = on(device);
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  auto guard = on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
inline Tensor empty_like(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  refuse_channels_last(format);
  return at::native::empty_like(self, dtype, layout, device, pin, format);
}

// Copies to a card and casts on a card. A card's memory may hold float64, but it computes in float32: asked for a cast to
// float64 and nothing else, torch_npu casts to float32 and warns (torch_npu/csrc/aten/common/ToKernelNpu.cpp).
inline Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<c10::Device> device, std::optional<bool> pin, bool non_blocking,
                      std::optional<at::MemoryFormat> format) {
  if (device.value_or(self.device()).is_privateuseone()) {
    refuse_channels_last(format);
    if (dtype == at::kDouble && self.scalar_type() != at::kDouble && !layout && !device) {
      TORCH_WARN_ONCE("Device do not support double dtype now, dtype cast replace with float. (emulated NPU)");
      dtype = at::kFloat;
    }
  }
  return at::native::_to_copy(self, dtype, layout, device, pin, non_blocking, format);
}
inline Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  if (self.is_cpu()) counters[to.device().index()].h2d++;
  if (to.is_cpu()) counters[self.device().index()].d2h++;
  Tensor target = to.is_privateuseone() ? alias_cpu(to) : to;
  target.copy_(self.is_privateuseone() ? alias_cpu(self) : self);
  return to;
}
inline Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) const_cast<Tensor&>(to).resize_(self.sizes());
  return copy_from(self, to, false);
}
inline Tensor refuse_pinning(const Tensor&, std::optional<c10::Device>) {
  TORCH_CHECK(false, "Only dense CPU tensors can be pinned (emulated NPU)");
}

inline void ignore_stream(Tensor&, c10::Stream) {}

// A parameter becomes one of a card in place, and one of the host again: torch_npu answers the same for dense tensors of
// both (torch_npu/csrc/aten/ops/HasCompatibleShallowCopyType.cpp), so Module.to() keeps its parameters.
inline bool moves_in_place(const Tensor& self, const Tensor& from) {
  auto dense = [](const Tensor& t) { return t.layout() == at::kStrided && (t.is_cpu() || t.is_privateuseone()); };
  return self.key_set() == from.key_set() || (dense(self) && dense(from));
}

inline Tensor& set_storage(Tensor& self, at::Storage s, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(s.device() == self.device(), "set_: the storage is on ", s.device(), ", the tensor on ", self.device());
  const auto strides = stride.empty() && !size.empty() ? c10::TensorType::contiguousStridesOf(size) : stride.vec();
  TORCH_CHECK(at::detail::computeStorageNbytes(size, strides, self.itemsize(), offset) <= s.nbytes(),
              "set_: the storage is too small");
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(s));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides, offset);
  return self;
}
inline Tensor& set_whole_storage(Tensor& self, at::Storage s) {
  const int64_t n = int64_t(s.nbytes()) / self.itemsize();
  return set_storage(self, std::move(s), 0, {n}, {1});
}
inline Tensor& set_tensor(Tensor& self, const Tensor& from) {
  return set_storage(self, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}

inline Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b, c10::SymIntArrayRef stride,
                          c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                          c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_overrideable", "");
  Call call(op);
  const bool wide = same_format({x, w, b ? *b : Tensor()});
  Tensor hx = call.in(x, wide), hw = call.in(w, wide), hb = b ? call.in(*b, wide) : Tensor();
  call.refuse_mixture();
  TORCH_CHECK(!call.has_double(), "convolution: DT_DOUBLE is not supported, use float32 (emulated NPU)");
  count_operator(call);
  return call.out(at::convolution_symint(hx, hw, hb.defined() ? std::optional<Tensor>(hb) : std::nullopt, stride, padding,
                                         dilation, transposed, output_padding, groups));
}
inline std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gy, const Tensor& x, const Tensor& w, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> mask) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward_overrideable", "");
  Call call(op);
  Tensor hg = call.in(gy, true), hx = call.in(x, true), hw = call.in(w, true);
  call.refuse_mixture();
  count_operator(call);
  std::vector<c10::SymInt> bias = {transposed ? hw.sym_size(1) * groups : hw.sym_size(0)};
  auto [gx, gw, gb] = at::convolution_backward_symint(hg, hx, hw, at::OptionalSymIntArrayRef(bias), stride, padding, dilation,
                                                      transposed, output_padding, groups, mask);
  return {call.out(gx), call.out(gw), call.out(gb)};
}
}  // namespace npu
