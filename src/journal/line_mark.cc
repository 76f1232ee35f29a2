#include "line_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace invar::server {

namespace {

constexpr size_t kDigits = 19;  // of any int64_t, so that a write changes no length

}  // namespace

LineMark::LineMark(const std::string& path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) fail("{}: cannot be opened: {}", path, std::strerror(errno));
  char text[kDigits];
  if (::pread(file_, text, kDigits, 0) == kDigits) std::from_chars(text, text + kDigits, lines_);
}

LineMark::~LineMark() {
  ::close(file_);
}

// Where the disk takes nothing the mark stays behind, and less is noticed.
void LineMark::write(int64_t lines) {
  if (std::exchange(lines_, lines) == lines) return;
  const std::string text = fmt::format("{:0{}}\n", lines, kDigits);
  [[maybe_unused]] const ssize_t written = ::pwrite(file_, text.data(), text.size(), 0);
}

}  // namespace invar::server
