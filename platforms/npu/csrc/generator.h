// Each card's random numbers: a CPU generator under the card's name; and the hooks through which PyTorch asks for
// device-wide things.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "memory.h"

namespace npu {
struct Generator final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Generator(int card)
      : c10::GeneratorImpl({kNPU, c10::DeviceIndex(card)}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "this generator has no offset (emulated NPU)"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "this generator has no offset (emulated NPU)"); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->inner = inner.clone();
    return copy;
  }
};
inline const at::Generator& default_generator(int64_t card) {
  static const std::vector<at::Generator> all = [] {
    std::vector<at::Generator> v;
    for (int i = 0; i < count(); i++) v.push_back(at::make_generator<Generator>(i));
    return v;
  }();
  if (card < 0) card = current;
  check_index(card);
  return all[card];
}
inline at::Generator inner(const at::Generator& g) {
  auto* ours = dynamic_cast<Generator*>(g.unsafeGetGeneratorImpl());
  return ours ? ours->inner : g;
}

inline at::Generator new_generator(c10::DeviceIndex d) { return at::make_generator<Generator>(d < 0 ? current : d); }

struct Hooks final : HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return used; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(count()); }
  void setCurrentDevice(c10::DeviceIndex d) const override { set_current(d); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(current); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    auto before = getCurrentDevice();
    set_current(d);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
    return d < 0 ? getCurrentDevice() : exchangeDevice(d);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override { return default_generator(d); }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override { return new_generator(d); }
  bool isPinnedPtr(const void* data) const override { return pinned_allocator.holds(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t bytes) const override {
    auto* impl = s.unsafeGetStorageImpl();
    auto fresh = on_card(c10::GetCPUAllocator()->allocate(bytes), int64_t(bytes), impl->device().index());
    const size_t kept = std::min(bytes, impl->nbytes());
    if (kept) std::memcpy(fresh.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};
}  // namespace npu
