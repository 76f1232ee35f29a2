#include "base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace invar {

InputFile::InputFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (file_ < 0) fail("{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
    ::close(file_);
    fail("{}: expected a regular file with content, found {}", path,
         S_ISREG(status.st_mode) ? "an empty file" : "something else");
  }
  size_ = status.st_size;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      size_(std::exchange(other.size_, 0)) {}

InputFile::~InputFile() {
  if (file_ >= 0) ::close(file_);
}

void InputFile::read_at(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(file_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("{}: cannot be read at byte {}: {}", path_, offset, std::strerror(errno));
    if (count == 0)
      fail("{}: expected {} bytes as when it was opened, found its end at or before byte {}", path_,
           size_, offset);
    out = out.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

std::string read_whole_file(const std::string& path, int64_t max_bytes) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored) && std::filesystem::is_empty(path, ignored))
    return "";
  const InputFile file(path);
  if (file.size() > max_bytes)
    fail("{}: expected at most {} bytes, found {}", path, max_bytes, file.size());
  std::string text(static_cast<size_t>(file.size()), 0);
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace invar
