// Where arrays live: host memory or a GPU's. The model allocates and fills through this interface
// and hands the addresses to kernels; it never reads device memory except through download.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace invar {

class Device {
 public:
  virtual ~Device() = default;

  // `bytes` of zeroed memory, 64-byte aligned. Throws Error with the size and `what` when there is
  // not enough.
  virtual void* allocate(size_t bytes, const char* what) = 0;
  virtual void release(void* address, size_t bytes) = 0;
  // Copies between host memory and this device; returns when the source may be reused and the
  // result be read.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // Copies `rows` runs of `width` bytes within this device; strides in bytes.
  virtual void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride,
                         size_t width, size_t rows) = 0;
  // Whether the host may read and write this device's addresses itself.
  virtual bool is_host() const = 0;
  // Bytes that could still be allocated.
  virtual size_t available_bytes() const = 0;
};

// Ordinary memory in huge pages where the kernel grants them.
std::unique_ptr<Device> make_host_device();

// An array in a device's memory; moves, does not copy.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, size_t size, const char* what)
      : device_(&device),
        size_(size),
        data_(static_cast<T*>(device.allocate(size * sizeof(T), what))) {}
  ~DeviceArray() { reset(); }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
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
    if (data_) device_->release(data_, size_ * sizeof(T));
  }

  Device* device_ = nullptr;
  size_t size_ = 0;
  T* data_ = nullptr;
};

}  // namespace invar
