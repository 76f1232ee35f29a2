// The baseline of numerics 10: a conventional arithmetic that promises nothing, for comparison
// only. It runs on the same tuned kernels; what it does differently is what conventional engines
// do. It cuts the inner size of a product by the number of rows in the step, keeps its residual
// stream in bf16, and attends to the keys of a sequence in two ranges that are merged afterwards:
// cached keys and new ones, or, when few rows would leave threads idle, the halves of a long cache.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/inference.h"
#include "model/decoder.h"

namespace invar::baseline {

// Runs of a product with inner size k: few rows leave threads idle, so the inner size is split;
// many rows do not. With `fixed`, a power of two, it is that many in every step, or the most that
// fit.
inline int split_k(int64_t rows, int64_t k, int fixed) {
  const int wanted = fixed > 0 ? fixed : rows <= 4 ? 4 : rows <= 16 ? 2 : 1;
  if (fixed == 0) return k % (32 * wanted) == 0 ? wanted : 1;
  int split_k = wanted;
  while (split_k > 1 && k % (32 * split_k) != 0) split_k /= 2;
  return split_k;
}

// Memory of a step's attention; grows to the largest step.
class Attention {
 public:
  // Does the work of decoder.kernels.attention, in two ranges of keys.
  void run(const Decoder& decoder, const AttentionParams& params);

 private:
  struct Range {
    std::vector<int32_t> begin, last;  // [T]: a row's slots of the range
    std::vector<float> out;            // [T][H * E], normalised
    std::vector<float> max, sum;       // [T][H]
  };
  struct MergeParams;

  void cut(const AttentionParams& params);
  void attend(const Decoder& decoder, const AttentionParams& whole, Range& range);
  static void merge(const MergeParams& m, const Execution& on);

  Range early_, late_;
};

}  // namespace invar::baseline
