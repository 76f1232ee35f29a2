#pragma once

#include <memory>
#include <span>

#include "device/device.h"

namespace invar {

// An array that the host fills and the device reads. On the host both are the same memory.
template <typename T>
class StepArray {
 public:
  // Room for `count` elements, for the host to fill; allocates only when there were fewer.
  std::span<T> prepare(Device& device, size_t count) {
    if (count > capacity_) {
      capacity_ = count;
      host_ = std::make_unique<T[]>(count);
      if (!device.is_host()) mirror_ = DeviceArray<T>(device, count, "a step's row tables");
    }
    device_ = &device;
    return {host_.get(), count};
  }
  // Makes the first `count` elements visible to the device and returns their address there.
  const T* publish(size_t count) {
    if (device_->is_host()) return host_.get();
    device_->upload(mirror_.data(), host_.get(), count * sizeof(T));
    return mirror_.data();
  }

 private:
  Device* device_ = nullptr;
  size_t capacity_ = 0;
  std::unique_ptr<T[]> host_;
  DeviceArray<T> mirror_;
};

}  // namespace invar
