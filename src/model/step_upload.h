// Small arrays that the host writes and the device reads in one step: they lie in one piece of
// memory and reach the device in one copy, which the host does not wait for.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "device/execution.h"

namespace invar {

class StepUpload {
 public:
  // Bytes that an array takes; arrays begin at cache lines.
  template <typename T>
  static constexpr size_t bytes_of(size_t count) {
    return (count * sizeof(T) + kLine - 1) / kLine * kLine;
  }

  // Forgets the arrays of the step before the last one, once they have been read, and makes room
  // for `bytes` in all. Those of the last one may still be on their way. Allocates, and waits for
  // the device, only when there was less.
  void begin(const Execution& on, size_t bytes);

  // The next array, for the host to fill before send().
  template <typename T>
  struct Array {
    std::span<T> host;
    T* device;
  };
  template <typename T>
  Array<T> take(size_t count) {
    std::byte* host = sources_[turn_].memory.data() + used_;
    std::byte* device = device_begin_ + used_;
    used_ += bytes_of<T>(count);
    return {{reinterpret_cast<T*>(host), count}, reinterpret_cast<T*>(device)};
  }
  // The same with the elements of `values`; where they lie on the device.
  template <typename T>
  const T* put(std::span<const T> values) {
    const Array<T> array = take<T>(values.size());
    std::copy(values.begin(), values.end(), array.host.begin());
    return array.device;
  }

  // Puts the copy of everything taken into the stream.
  void send(const Execution& on);

 private:
  static constexpr size_t kLine = 64;
  struct Source {
    PinnedArray<std::byte> memory;
    std::unique_ptr<Event> sent;
  };

  std::array<Source, 2> sources_;  // of the steps in turn
  size_t turn_ = 0;
  DeviceArray<std::byte> mirror_;  // none on a host: it reads what was written
  std::byte* device_begin_ = nullptr;
  size_t used_ = 0;
};

}  // namespace invar
