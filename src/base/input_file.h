// A file that is read by places. Not a memory map: a mapped file that another process cuts short
// kills the reader (SIGBUS), a read says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace invar {

class InputFile {
 public:
  // Throws Error when the file cannot be opened, is empty, or is not a regular file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened
  // Fills `out` with the bytes from `offset`; safe from several threads. Throws Error when they
  // cannot be read, for instance since the file has become shorter.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int file_ = -1;
  int64_t size_ = 0;
};

// The whole of a regular file; nothing when it is empty. Throws Error when there is none, when it
// is something else (a pipe or a device may never end), and past `max_bytes`.
std::string read_whole_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

}  // namespace invar
