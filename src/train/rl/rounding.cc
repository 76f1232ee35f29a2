#include "train/rl/rounding.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/check.h"
#include "base/thread_pool.h"
#include "numerics/math.h"

namespace invar::rl {

namespace {

float to_whole(float x) {
  return (x + math::constants::kRound) - math::constants::kRound;
}

// To 3 bits of mantissa; below 2^-6 to multiples of 2^-9.
float to_e4m3(float x) {
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 255) - 127;
  const int of_step = std::max(exponent, -6) - 3;
  const float step = std::bit_cast<float>(static_cast<uint32_t>(of_step + 127) << 23);
  return to_whole(x / step) * step;
}

struct Format {
  std::string_view name;
  float largest;
  float (*round)(float);
};

constexpr Format kFormats[] = {{"int8", 127.0f, to_whole},
                               {"int4", 7.0f, to_whole},
                               {"int3", 3.0f, to_whole},
                               {"int2", 1.0f, to_whole},
                               {"fp8", 448.0f, to_e4m3}};

const Format& format_of(const std::string& name) {
  const auto* found = std::ranges::find(kFormats, name, &Format::name);
  CHECK(found != std::end(kFormats), "a format of rounding_formats()");
  return *found;
}

void round_group(bf16_t* begin, bf16_t* end, const Format& format) {
  float largest = 0;
  for (const bf16_t* x = begin; x < end; ++x)
    largest = std::max(largest, __builtin_fabsf(bf16_to_f32(*x)));
  const float scale = largest / format.largest;
  if (scale == 0) return;
  for (bf16_t* x = begin; x < end; ++x)
    *x = f32_to_bf16(format.round(bf16_to_f32(*x) / scale) * scale);
}

}  // namespace

const std::vector<std::string>& rounding_formats() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Format& format : kFormats) all.emplace_back(format.name);
    return all;
  }();
  return names;
}

std::vector<bf16_t> rounded_weights(const ParameterLayout& layout, const TensorSource& weights,
                                    const std::string& format) {
  ScopedFlushToZero flush;
  const Format& to = format_of(format);
  std::vector<bf16_t> result(static_cast<size_t>(layout.size()));
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    bf16_t* first = &result[static_cast<size_t>(slot.offset)];
    weights.read(slot.tensor.name, 0, slot.count, DType::bf16, first);
    if (slot.tensor.shape.size() != 2) continue;
    const int64_t width = slot.tensor.shape[1];
    for (int64_t row = 0; row < slot.count; row += width)
      for (int64_t i = 0; i < width; i += kRoundingGroup)
        round_group(first + row + i, first + row + std::min(i + kRoundingGroup, width), to);
  }
  return result;
}

}  // namespace invar::rl
