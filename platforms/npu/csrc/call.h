// One operator call: the NPU tensors among its arguments become CPU tensors over the same memory, and its results
// become NPU tensors again, without copying.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include "generator.h"

namespace npu {
using at::Tensor;

inline Tensor as_like(Tensor t, const Tensor& like) {
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) t._set_conj(true);  // a lazy conjugate is the same memory
  if (like.is_neg()) t._set_neg(true);
  return t;
}
inline Tensor over(const c10::Storage& s, c10::DispatchKey key, const Tensor& like) {
  return as_like(at::detail::make_tensor<c10::TensorImpl>(c10::Storage(s), c10::DispatchKeySet(key), like.dtype()), like);
}
// A view is what its base is: within inference_mode, that of a normal tensor is normal.
inline Tensor view_of(const Tensor& base, const Tensor& like) {
  auto keys = base.key_set().remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative);
  return as_like(at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), keys, like.dtype()), like);
}
inline Tensor alias_cpu(const Tensor& t) { return over(host_view(t.storage()), c10::DispatchKey::CPU, t); }

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {}
  c10::Device device{c10::kCPU};  // that of the arguments; the CPU until one was seen
  bool widened = false;           // fp16 arguments were replaced by fp32 ones: half precision is slow on CPUs

  // The CPU's view of an argument. `wide`: fp16 is computed in fp32 and rounded once, as matrix units do.
  Tensor in(const Tensor& t, bool wide = false, bool written = false) {
    if (!t.defined() || t.is_cpu()) {
      host_ |= t.defined() && t.dim() > 0;  // a number in host memory may be mixed in, as with CUDA
      return t;
    }
    if (!t.is_privateuseone()) return t;
    see(t.device());
    for (auto& e : tensors_)
      if (e.card.is_same(t)) {
        e.written |= written;
        return e.host;
      }
    Tensor host = over(storage(t), c10::DispatchKey::CPU, t);
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
    const bool stand_in = wide && t.scalar_type() == at::kHalf;
    if (stand_in) host = host.to(at::kFloat);
    widened |= stand_in;
    tensors_.push_back({t, host, stand_in, written});
    return host;
  }
  void refuse_mixture() const {
    TORCH_CHECK(!host_ || device.is_cpu(), "Expected all tensors to be on the same device, but found at least two devices, ",
                device, " and cpu! (when checking arguments of ", op_.schema().operator_name(), "; emulated NPU)");
  }
  // The card's view of a result.
  Tensor out(const Tensor& t) {
    if (!t.defined() || !t.is_cpu()) return t;
    for (auto& e : tensors_)
      if (e.host.is_same(t)) return e.card;
    return fresh(widened && t.scalar_type() == at::kFloat ? t.to(at::kHalf) : t);
  }
  Tensor fresh(const Tensor& t) {
    for (auto& e : tensors_)  // a view of an argument
      if (!e.stand_in && e.host.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
        return view_of(e.card, t);
    for (auto& s : storages_)  // two results in one storage
      if (s.host.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
        return over(s.card, c10::DispatchKey::PrivateUse1, t);
    auto s = card_view(t.storage(), device.index());
    storages_.push_back({s, t.storage(), s.data()});
    return over(s, c10::DispatchKey::PrivateUse1, t);
  }
  // Arguments that the operator has grown or reshaped (resize_, out=) take that over.
  void reflect() {
    for (auto& s : storages_)
      if (s.host.data() != s.data) {
        auto* impl = s.card.unsafeGetStorageImpl();
        impl->set_data_ptr_noswap(on_card(keeping(s.host), int64_t(s.host.nbytes()), device.index()));
        impl->set_nbytes(s.host.nbytes());
      }
    for (auto& e : tensors_) {
      if (e.stand_in) {
        if (e.written) alias_cpu(e.card).copy_(e.host);
      } else if (e.host.sizes() != e.card.sizes() || e.host.strides() != e.card.strides() ||
                 e.host.storage_offset() != e.card.storage_offset()) {
        e.card.unsafeGetTensorImpl()->set_sizes_and_strides(e.host.sizes(), e.host.strides(), e.host.storage_offset());
      }
    }
  }
  size_t signature() const {  // of operator, dtypes and shapes: a compiled kernel of a device with static shapes
    auto& name = op_.schema().operator_name();
    size_t h = std::hash<std::string>()(name.name) * 31 + std::hash<std::string>()(name.overload_name);
    for (auto& e : tensors_) {
      h = h * 1000003 ^ (size_t(e.card.scalar_type()) + 1);
      for (auto n : e.card.sizes()) h = h * 1000003 ^ size_t(n + 7);
    }
    return h;
  }
  bool has_half() const {
    for (auto& e : tensors_)
      if (e.card.scalar_type() == at::kHalf) return true;
    return false;
  }
  bool has_double() const {
    for (auto& e : tensors_)
      if (e.card.scalar_type() == at::kDouble) return true;
    return false;
  }

 private:
  struct StoragePair {
    c10::Storage card, host;
    const void* data;
  };
  struct TensorPair {
    Tensor card, host;
    bool stand_in, written;
  };
  void see(c10::Device d) {
    if (device.is_cpu()) device = d;
    TORCH_CHECK(device == d, "Expected all tensors to be on the same device, but found at least two devices, ", device,
                " and ", d, "! (when checking arguments of ", op_.schema().operator_name(), "; emulated NPU)");
  }
  const c10::Storage& storage(const Tensor& t) {
    for (auto& s : storages_)
      if (s.card.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return s.host;
    storages_.push_back({t.storage(), host_view(t.storage()), t.storage().data()});
    return storages_.back().host;
  }
  const c10::OperatorHandle& op_;
  bool host_ = false;
  c10::SmallVector<StoragePair, 8> storages_;
  c10::SmallVector<TensorPair, 16> tensors_;
};
}  // namespace npu
