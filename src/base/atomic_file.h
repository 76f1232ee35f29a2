// A file that appears under its name only when it is complete: it is written beside it under a
// temporary name, flushed to the disk and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace invar {

class AtomicFile {
 public:
  // Creates the temporary file and reserves `size` bytes, so that a full disk is known at once. A
  // file that has the name already must be an ordinary one: a rename would destroy a device. This
  // and every function below throws Error naming the file and what the system said.
  explicit AtomicFile(const std::string& path, int64_t size = 0);
  ~AtomicFile();  // removes the temporary file when it was not committed
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  const std::string& path() const { return path_; }
  // Writes at a place of its own; safe from several threads.
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  // Gives the file its name. A file that had it before is replaced.
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* action) const;

  std::string path_, temporary_;
  int file_ = -1;
};

void write_file_atomically(const std::string& path, std::string_view content);

// A directory with all above it, where they are missing.
void make_directories(const std::string& path);

}  // namespace invar
