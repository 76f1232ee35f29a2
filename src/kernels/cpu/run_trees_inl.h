// Runs of products, or trees of them, that wait for their neighbour in the tree of 8 (numerics 2):
// (s0 + s1) + (s2 + s3) ... Included after a vec16 header.
#pragma once

#include <cstdint>

namespace invar::cpu {

namespace {

// The trees of `kRows` rows and two or more panels.
template <int64_t kRows, int64_t kPanels>
class RunTrees {
 public:
  static constexpr int64_t kLevels = 4, kFloats = kRows * kPanels * 16;

  float* next() { return trees_ + depth_ * kFloats; }
  const float* dots() const { return trees_; }
  void start() { depth_ = 0; }
  // The run at next() is there: run r, `vectors` of 16 floats.
  void add(int r, int64_t vectors) {
    for (int odd = r; odd & 1; odd >>= 1) {
      float* left = trees_ + --depth_ * kFloats;
      for (int64_t i = 0; i < vectors * 16; i += 16)
        store(left + i, load(left + i) + load(left + kFloats + i));
    }
    ++depth_;
  }

 private:
  int depth_ = 0;
  alignas(64) float trees_[kLevels * kFloats];
};

}  // namespace

}  // namespace invar::cpu
