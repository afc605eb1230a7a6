// The cards of the emulated host: how many there are, which one this thread works on, what was counted.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace npu {
constexpr auto kNPU = c10::DeviceType::PrivateUse1;
constexpr int kMostCards = 8;

inline int64_t from_environment(const char* name, int64_t otherwise) {  // Python has checked the values
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}
inline int count() {  // cards that this process may see
  static const int n = [] {
    const char* visible = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!visible || !*visible) return int(from_environment("HELPERS_NPU_DEVICES", kMostCards));
    return 1 + int(std::count(visible, visible + std::strlen(visible), ','));
  }();
  return n;
}

struct Counters {
  std::atomic<int64_t> bytes{0}, peak{0}, allocations{0}, h2d{0}, d2h{0}, syncs{0}, ops{0}, kernels{0}, int32_targets{0};
};
inline Counters counters[kMostCards];
inline std::atomic<int64_t> pinned{0};

// A device's context does not survive fork(): a child of a process that used the device may not use it.
inline std::atomic<bool> used{false}, bad_fork{false};
inline void use() {
  TORCH_CHECK(!bad_fork, "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use "
              "the 'spawn' start method (emulated NPU)");
  if (!used.exchange(true)) pthread_atfork(nullptr, nullptr, [] { bad_fork = true; });
}

inline void check_index(int64_t index) {
  TORCH_CHECK(index >= 0 && index < count(), "Invalid device ID npu:", index, ": this host has ", count(), " card",
              count() == 1 ? "" : "s", ", npu:0 to npu:", count() - 1, ". HELPERS_NPU_DEVICES sets their number (emulated NPU)");
}
inline thread_local int current = 0;
inline void set_current(int64_t index) {
  check_index(index);
  use();
  current = int(index);
}

// Streams and events do nothing: an operator has finished when it returns.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kNPU;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kNPU; }
  c10::Device getDevice() const override { return {kNPU, c10::DeviceIndex(current)}; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto before = getDevice();
    setDevice(d);
    return before;
  }
  void setDevice(c10::Device d) const override {
    if (d.has_index() && d.index() != current) set_current(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) current = d.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(count()); }

  c10::Stream getStream(c10::Device d) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override { return s; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    static int any;
    *event = &any;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
}  // namespace npu
