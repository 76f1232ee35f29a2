#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace invar {

AtomicFile::AtomicFile(const std::string& path, int64_t size)
    : path_(path), temporary_(fmt::format("{}.{}.tmp", path, ::getpid())) {
  struct stat found;
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode))
    fail("{}: expected an ordinary file or none, found a directory or a device", path);
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail_with_errno("created");
  if (size <= 0 || ::fallocate(file_, 0, 0, size) == 0 || errno == EOPNOTSUPP) return;
  const int error = errno;
  ::close(file_);
  ::unlink(temporary_.c_str());
  fail("{}: {} bytes cannot be reserved: {}", path, size, std::strerror(error));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::exchange(other.file_, -1)) {}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail_with_errno(const char* action) const {
  fail("{}: cannot be {}: {}", path_, action, std::strerror(errno));
}

void AtomicFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_with_errno("written");
    bytes = bytes.subspan(written);
    offset += written;
  }
}

namespace {

// A rename is durable only when its directory is: a failure here loses nothing that a reader sees.
void flush_directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const int directory = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

}  // namespace

void AtomicFile::commit() {
  if (::fsync(file_) != 0) fail_with_errno("flushed");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno("renamed");
  ::close(std::exchange(file_, -1));
  flush_directory_of(path_);
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(content)));
  file.commit();
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("{}: cannot be created: {}", path, error.message());
}

}  // namespace invar
