// Where arrays live: host memory or a GPU's. The model allocates and fills through this interface
// and hands the addresses to kernels; it never reads device memory except through copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/stream.h"

namespace invar {

class Device {
 public:
  virtual ~Device() = default;

  // `bytes` of zeroed memory, 64-byte aligned. Throws Error with the size and `what` when there is
  // not enough.
  virtual void* allocate(size_t bytes, const char* what) = 0;
  virtual void release(void* address, size_t bytes) = 0;
  // Host memory that the device's streams can copy from and to beside the host; zeroed.
  virtual void* allocate_pinned(size_t bytes, const char* what) = 0;
  virtual void release_pinned(void* address, size_t bytes) = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  // Copies between any host memory and this device, for loading and looking: wait for all work
  // that the device has been given, and return when the source may be reused and the result be
  // read. A step copies through its stream instead.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;

  // Whether the host may read and write this device's addresses itself.
  virtual bool is_host() const = 0;
  // Bytes that could still be allocated.
  virtual size_t available_bytes() const = 0;

  // How many times the host has been made to wait for this device; none for a host. A step should
  // add one: for its tokens.
  int64_t waits() const { return waits_.load(std::memory_order_relaxed); }
  void note_wait() { waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> waits_{0};
};

// Ordinary memory in huge pages where the kernel grants them.
std::unique_ptr<Device> make_host_device();

enum class Memory {
  device,
  pinned,  // the host's, for the device's streams
};

// An array in memory that a device gives; moves, does not copy.
template <typename T, Memory memory>
class ArrayOf {
 public:
  ArrayOf() = default;
  ArrayOf(Device& device, size_t size, const char* what) : device_(&device), size_(size) {
    const size_t bytes = size * sizeof(T);
    data_ = static_cast<T*>(memory == Memory::device ? device.allocate(bytes, what)
                                                     : device.allocate_pinned(bytes, what));
  }
  ~ArrayOf() { reset(); }
  ArrayOf(ArrayOf&& other) noexcept { *this = std::move(other); }
  ArrayOf& operator=(ArrayOf&& other) noexcept {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    size_ = std::exchange(other.size_, 0);
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void reset() {
    if (!data_) return;
    if (memory == Memory::device)
      device_->release(data_, size_ * sizeof(T));
    else
      device_->release_pinned(data_, size_ * sizeof(T));
  }

  Device* device_ = nullptr;
  size_t size_ = 0;
  T* data_ = nullptr;
};

template <typename T>
using DeviceArray = ArrayOf<T, Memory::device>;
template <typename T>
using PinnedArray = ArrayOf<T, Memory::pinned>;

}  // namespace invar
