// The budget for making a form: counted work, not time, so that a form is refused on every machine
// or on none.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace invar::grammar {

class Budget {
 public:
  // The most work for a language and all the parts that are made for it.
  static constexpr int64_t kMost = 2'500'000;

  explicit Budget(int64_t most = kMost) : left_(most) {}

  // Throws UsageError when that is more than is left. One is about a hundred nanoseconds or a
  // hundred bytes.
  void spend(int64_t work) {
    left_ -= work;
    if (left_ < 0)
      fail_usage(
          "the grammar is too large: what its patterns with their lengths, its multiples within "
          "their bounds, its combinations and the names that it excludes stand for takes more "
          "than {} steps to find",
          kMost);
  }
  int64_t left() const { return left_; }

 private:
  int64_t left_;
};

}  // namespace invar::grammar
