// What differs between releases of PyTorch, from 2.6 on: classes to derive from that ask for the same everywhere. Where
// an older release does not ask for something, its class here declares it, and nobody calls it.
#pragma once
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#define NPU_TORCH_FROM(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace npu {
#if NPU_TORCH_FROM(9)
// torch.accelerator asks a device's allocator for its numbers.
struct DeviceAllocator : c10::DeviceAllocator {
  void emptyCache(c10::MempoolId_t) override {}
};
#else
struct DeviceAllocator : c10::Allocator {
  virtual bool initialized() = 0;
  virtual void recordStream(const c10::DataPtr&, c10::Stream) = 0;
  virtual void resetAccumulatedStats(c10::DeviceIndex) = 0;
  virtual void resetPeakStats(c10::DeviceIndex) = 0;
  virtual std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) = 0;
  virtual c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) = 0;
};
#endif

#if NPU_TORCH_FROM(7)
using HooksInterface = at::PrivateUse1HooksInterface;
#define NPU_REGISTER_GENERATOR(make)
#else
#define NPU_REGISTER_GENERATOR(make) REGISTER_GENERATOR_PRIVATEUSE1(make)  // 2.6 does not ask the hooks for one
struct HooksInterface : at::PrivateUse1HooksInterface {
  virtual bool isBuilt() const = 0;
  virtual bool isAvailable() const = 0;
};
#endif
}  // namespace npu
