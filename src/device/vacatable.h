// Arrays whose memory can be given back for a while and had again at the same addresses.
#pragma once

#include "base/error.h"
#include "device/device.h"

namespace invar {

// A Device is one, too, where it can give memory back.
class VacatesMemory {
 public:
  virtual ~VacatesMemory() = default;

  // As Device::allocate and release.
  virtual void* allocate_vacatable(size_t bytes, const char* what) = 0;
  virtual void release_vacatable(void* address, size_t bytes) = 0;
  // The memory goes and loses what is there; the address stays. Nobody may use it.
  virtual void vacate(void* address, size_t bytes) = 0;
  // Zeroed memory at the address again. Throws Error where there is not enough; it is then still
  // away.
  virtual void occupy(void* address, size_t bytes, const char* what) = 0;
};

template <typename T>
class VacatableArray {
 public:
  VacatableArray() = default;
  VacatableArray(Device& device, size_t size, const char* what)
      : owner_(dynamic_cast<VacatesMemory*>(&device)), size_(size) {
    if (!owner_) fail("expected a device that gives memory back, for {}", what);
    data_ = static_cast<T*>(owner_->allocate_vacatable(bytes(), what));
  }
  ~VacatableArray() { reset(); }
  VacatableArray(VacatableArray&& other) noexcept { *this = std::move(other); }
  VacatableArray& operator=(VacatableArray&& other) noexcept {
    reset();
    owner_ = std::exchange(other.owner_, nullptr);
    size_ = std::exchange(other.size_, 0);
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  // An empty array has nothing to give.
  void vacate() {
    if (data_) owner_->vacate(data_, bytes());
  }
  void occupy(const char* what) {
    if (data_) owner_->occupy(data_, bytes(), what);
  }

 private:
  size_t bytes() const { return size_ * sizeof(T); }
  void reset() {
    if (data_) owner_->release_vacatable(data_, bytes());
  }

  VacatesMemory* owner_ = nullptr;
  size_t size_ = 0;
  T* data_ = nullptr;
};

}  // namespace invar
