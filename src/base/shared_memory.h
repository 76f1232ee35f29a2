// Memory that processes of this host share: one makes it, those that inherit its file map it, too.
#pragma once

#include <cstddef>
#include <utility>

namespace invar {

class SharedMemory {
 public:
  SharedMemory() = default;
  // So many bytes of zeros. Throws Error when the system gives none.
  explicit SharedMemory(size_t bytes);
  // Memory that another process made: `file` is its number here, which the caller closes. Throws
  // Error when it cannot be mapped.
  static SharedMemory of_file(int file);
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Not inherited by a started program unless it is named; -1: none.
  int file() const { return file_; }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void map(int file);

  int file_ = -1;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace invar
