// A read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace invar {

class MappedFile {
 public:
  // Throws Error when the file cannot be opened, is empty, or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the kernel that these pages are no longer needed, so that they stop counting as resident.
  void drop(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace invar
