#include "train/rl/rounding.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "numerics/math.h"

namespace invar::rl {

namespace {

void round_group(bf16_t* begin, bf16_t* end) {
  float largest = 0;
  for (const bf16_t* x = begin; x < end; ++x)
    largest = std::max(largest, __builtin_fabsf(bf16_to_f32(*x)));
  const float scale = largest / 127.0f;
  if (scale == 0) return;
  for (bf16_t* x = begin; x < end; ++x) {
    const float steps = bf16_to_f32(*x) / scale;
    const float whole = (steps + math::constants::kRound) - math::constants::kRound;
    *x = f32_to_bf16(whole * scale);
  }
}

}  // namespace

std::vector<bf16_t> int8_rounded(const ParameterLayout& layout, const TensorSource& weights) {
  ScopedFlushToZero flush;
  std::vector<bf16_t> result(static_cast<size_t>(layout.size()));
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    bf16_t* first = &result[static_cast<size_t>(slot.offset)];
    weights.read(slot.tensor.name, 0, slot.count, DType::bf16, first);
    if (slot.tensor.shape.size() != 2) continue;
    const int64_t width = slot.tensor.shape[1];
    for (int64_t row = 0; row < slot.count; row += width)
      for (int64_t i = 0; i < width; i += kInt8Group)
        round_group(first + row + i, first + row + std::min(i + kInt8Group, width));
  }
  return result;
}

}  // namespace invar::rl
