// A card's memory is host memory, counted by card and capped.
#pragma once
#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <map>
#include <mutex>

#include "device.h"
#include "releases.h"

namespace npu {
inline int64_t capacity() {
  static const int64_t bytes = from_environment("HELPERS_NPU_MEMORY_MB", 32768) << 20;
  return bytes;
}
inline std::atomic<double> fraction[kMostCards] = {1, 1, 1, 1, 1, 1, 1, 1};  // set_per_process_memory_fraction

struct Block {
  int card;
  int64_t bytes;
  c10::DataPtr host;
};
inline void release(void* block) {
  auto* b = static_cast<Block*>(block);
  counters[b->card].bytes -= b->bytes;
  delete b;
}

// Host memory `host` of `bytes` becomes memory of `card`, if there is room for it.
inline c10::DataPtr on_card(c10::DataPtr host, int64_t bytes, int card) {
  use();
  auto& c = counters[card];
  const int64_t now = (c.bytes += bytes), room = int64_t(double(capacity()) * fraction[card]);
  if (now > room) {
    c.bytes -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", double(bytes) / (1 << 20),
                     " MiB (NPU ", card, "; ", room >> 20, " MiB total capacity; ", (now - bytes) >> 20,
                     " MiB already allocated). HELPERS_NPU_MEMORY_MB sets the capacity (emulated NPU)");
  }
  int64_t peak = c.peak;
  while (now > peak && !c.peak.compare_exchange_weak(peak, now)) {
  }
  c.allocations++;
  void* data = host.get();
  return {data, new Block{card, bytes, std::move(host)}, &release, c10::Device(kNPU, c10::DeviceIndex(card))};
}

struct Allocator final : DeviceAllocator {
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex card) override { counters[card].peak = counters[card].bytes.load(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex card) override {
    return {size_t(capacity() - counters[card].bytes), size_t(capacity())};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex card) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*bytes)[0].current = counters[card].bytes;
      (*bytes)[0].peak = counters[card].peak;
    }
    return stats;
  }

  c10::DataPtr allocate(size_t bytes) override {
    return on_card(c10::GetCPUAllocator()->allocate(bytes), int64_t(bytes), current);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
inline Allocator allocator;

// Pinned host memory is plain memory that is known to be pinned: scripts and DDP ask. It is counted, since pinning is
// what a migration takes out.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    pinned++;
    auto* host = new c10::DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    void* data = host->get();
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[data] = bytes;
    return {data, host, &unpin, c10::Device(c10::kCPU)};
  }
  bool holds(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = blocks_.upper_bound(data);
    if (next == blocks_.begin()) return false;
    --next;
    return static_cast<const char*>(data) < static_cast<const char*>(next->first) + next->second;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void unpin(void* host);
  std::mutex mutex_;
  std::map<const void*, size_t> blocks_;
};
inline PinnedAllocator pinned_allocator;
inline void PinnedAllocator::unpin(void* host) {
  auto* block = static_cast<c10::DataPtr*>(host);
  {
    std::lock_guard<std::mutex> lock(pinned_allocator.mutex_);
    pinned_allocator.blocks_.erase(block->get());
  }
  delete block;
}

// The two views of one storage. Each keeps the other alive.
inline c10::DataPtr keeping(const c10::Storage& s) {
  auto* keep = new c10::Storage(s);
  return {const_cast<void*>(s.data()), keep, [](void* p) { delete static_cast<c10::Storage*>(p); }, c10::Device(c10::kCPU)};
}
inline c10::Storage host_view(const c10::Storage& s) {
  return c10::Storage(c10::Storage::use_byte_size_t(), s.nbytes(), keeping(s), c10::GetCPUAllocator(), true);
}
inline c10::Storage card_view(const c10::Storage& s, int card) {
  return c10::Storage(c10::Storage::use_byte_size_t(), s.nbytes(), on_card(keeping(s), int64_t(s.nbytes()), card), &allocator, true);
}
}  // namespace npu
