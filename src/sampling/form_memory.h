// The memory that the forms of all answers take together.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/error.h"

namespace invar {

// There is no room for another form now; later there may be.
class FormsFull : public Error {
 public:
  using Error::Error;
};

class FormMemory {
 public:
  // Bytes of the forms themselves, which answers need until they end.
  static constexpr size_t kMost = size_t{48} << 20;
  // Bytes that all forms may remember of their results, and one of them in any case. They find
  // these again, so that this changes no answer.
  static constexpr size_t kMostRemembered = size_t{8} << 20, kRemembered = size_t{128} << 10;

  // Throws FormsFull.
  void take(size_t bytes) {
    const size_t before = bytes_.fetch_add(bytes);
    if (before + bytes <= kMost) return;
    bytes_ -= bytes;
    throw FormsFull(fmt::format(
        "the forms of the answers that are made or wait take up to {} bytes, {} are taken and {} "
        "more are asked for",
        kMost, before, bytes));
  }
  void give(size_t bytes) { bytes_ -= bytes; }
  size_t bytes() const { return bytes_; }

  // One form remembers so much more, or less.
  void remember(size_t before, size_t now) { remembered_ += now - before; }
  bool is_crowded() const { return remembered_ > kMostRemembered; }

 private:
  std::atomic<size_t> bytes_ = 0, remembered_ = 0;
};

}  // namespace invar
