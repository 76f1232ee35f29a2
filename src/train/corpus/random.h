// The random choices of the corpus: a stream for each document, a function of (seed, document,
// split) alone.
#pragma once

#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "numerics/philox.h"

namespace invar::corpus {

// Training documents, held-out ones and the problems of reinforcement learning never share a
// stream.
enum class Split : uint32_t { training = 0, held_out = 1, problems = 2, held_out_problems = 3 };

class Random {
 public:
  Random(uint64_t seed, int64_t document, Split split)
      : seed_(seed),
        counter_{
            0, static_cast<uint32_t>(document), static_cast<uint32_t>(document >> 32),
            static_cast<uint32_t>(RandomPurpose::corpus) + 256 * static_cast<uint32_t>(split)} {}

  uint32_t next() {
    if (used_ == 4) {
      block_ = philox4x32(counter_, seed_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[used_++];
  }
  // Uniform in [0, count).
  int below(int count) {
    return static_cast<int>((uint64_t{next()} * static_cast<uint32_t>(count)) >> 32);
  }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int count) { return below(count) == 0; }

  template <typename List>
  const auto& pick(const List& list) {
    return list[static_cast<size_t>(below(static_cast<int>(std::size(list))))];
  }
  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (int i = static_cast<int>(list.size()); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  uint64_t seed_;
  PhiloxCounter counter_, block_{};
  int used_ = 4;
};

}  // namespace invar::corpus
