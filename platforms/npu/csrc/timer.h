// DDP asks a device for a clock of its own, and without one says so on stderr at every run. This one is the host's.
#pragma once
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "device.h"

namespace npu {
struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from <= 0 || to <= 0 || to < from) return std::nullopt;  // not recorded, or of another iteration
    return to - from;
  }
};
}  // namespace npu
