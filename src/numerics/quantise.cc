#include "numerics/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace invar {

namespace {

void put_f16(float x, uint8_t* out) {
  const uint16_t half = f32_to_f16(x);
  std::memcpy(out, &half, sizeof half);
}

float f16_of(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return f16_to_f32(half);
}

// Integers by the scale before it is rounded to f16, as ggml has it.
void put_q8_0(const float* x, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
  put_f16(d, block);
  for (int i = 0; i < 32; ++i)
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

// The element of the largest magnitude becomes -8.
void put_q4_0(const float* x, uint8_t* block) {
  float extreme = 0;
  for (int i = 0; i < 32; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  const float d = extreme / -8, inverse = d != 0 ? 1 / d : 0;
  put_f16(d, block);
  const auto integer = [&](float value) {
    return std::min(15, static_cast<int>(value * inverse + 8.5f));
  };
  for (int i = 0; i < 16; ++i)
    block[2 + i] = static_cast<uint8_t>(integer(x[i]) | integer(x[i + 16]) << 4);
}

// ---- q4_k: x is about scale * q - minimum, q from 0 to 15

struct Line {
  float scale = 0, minimum = 0;  // not below 0
};

// The largest elements count most, and all count something.
struct Weighted {
  explicit Weighted(const float* values) : x(values) {
    float squares = 0;
    for (int i = 0; i < 32; ++i) squares += x[i] * x[i];
    const float mean = std::sqrt(squares / 32);
    for (int i = 0; i < 32; ++i) weight[i] = mean + std::fabs(x[i]);
  }
  const float* x;
  float weight[32];
};

int nearest(float x) {
  return std::clamp(static_cast<int>(std::nearbyint(x)), 0, 15);
}

float error_of(const Weighted& data, const Line& line) {
  float sum = 0;
  for (int i = 0; i < 32; ++i) {
    const int q = line.scale > 0 ? nearest((data.x[i] + line.minimum) / line.scale) : 0;
    const float off = line.scale * static_cast<float>(q) - line.minimum - data.x[i];
    sum += data.weight[i] * off * off;
  }
  return sum;
}

// The best line for the integers that `inverse` (1 / scale) gives, by weighted least squares.
Line fitted(const Weighted& data, float lowest, float inverse) {
  float w = 0, wx = 0, wq = 0, wqq = 0, wqx = 0;
  for (int i = 0; i < 32; ++i) {
    const auto q = static_cast<float>(nearest((data.x[i] - lowest) * inverse));
    const float weight = data.weight[i];
    w += weight;
    wx += weight * data.x[i];
    wq += weight * q;
    wqq += weight * q * q;
    wqx += weight * q * data.x[i];
  }
  const float determinant = w * wqq - wq * wq;
  if (!(determinant > 0)) return {};
  Line line{(w * wqx - wx * wq) / determinant, -(wqq * wx - wq * wqx) / determinant};
  if (line.minimum < 0) line = {wqq > 0 ? wqx / wqq : 0, 0};
  return line.scale > 0 ? line : Line{};
}

Line best_line(const float* x) {
  const auto [smallest, largest] = std::minmax_element(x, x + 32);
  const float lowest = std::min(*smallest, 0.0f), range = *largest - lowest;
  if (!(range > 0)) return {0, -lowest};
  const Weighted data(x);
  Line best{range / 15, -lowest};
  float least = error_of(data, best);
  for (int step = 0; step <= 20; ++step) {
    const Line line = fitted(data, lowest, (14 + 0.1f * static_cast<float>(step)) / range);
    const float error = line.scale > 0 ? error_of(data, line) : least;
    if (error < least) best = line, least = error;
  }
  return best;
}

// Scale and minimum j of 8, 6 bits each (blocks.h: scale_6, minimum_6).
void put_6_bits(uint8_t* s, int j, int scale, int minimum) {
  if (j < 4) {
    s[j] = static_cast<uint8_t>(s[j] | scale);
    s[j + 4] = static_cast<uint8_t>(s[j + 4] | minimum);
  } else {
    s[j + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
    s[j - 4] = static_cast<uint8_t>(s[j - 4] | scale >> 4 << 6);
    s[j] = static_cast<uint8_t>(s[j] | minimum >> 4 << 6);
  }
}

void put_q4_k(const float* x, uint8_t* block) {
  std::memset(block, 0, 144);
  Line lines[8], largest;
  for (int j = 0; j < 8; ++j) {
    lines[j] = best_line(x + 32 * j);
    largest.scale = std::max(largest.scale, lines[j].scale);
    largest.minimum = std::max(largest.minimum, lines[j].minimum);
  }
  put_f16(largest.scale / 63, block);
  put_f16(largest.minimum / 63, block + 2);
  const auto six_bits = [](float value, float of) {
    return of > 0 ? std::clamp(static_cast<int>(std::nearbyint(63 * (value / of))), 0, 63) : 0;
  };
  for (int j = 0; j < 8; ++j) {
    const int scale = six_bits(lines[j].scale, largest.scale);
    const int minimum = six_bits(lines[j].minimum, largest.minimum);
    put_6_bits(block + 4, j, scale, minimum);
    const float d = f16_of(block) * static_cast<float>(scale);
    const float m = f16_of(block + 2) * static_cast<float>(minimum);
    uint8_t* out = block + 16 + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = d > 0 ? nearest((x[32 * j + i] + m) / d) : 0;
      out[i] = static_cast<uint8_t>(out[i] | q << j % 2 * 4);
    }
  }
}

}  // namespace

bool can_be_put_into_blocks(DType type) {
  return type == DType::q8_0 || type == DType::q4_0 || type == DType::q4_k;
}

void put_into_block(DType type, const float* x, uint8_t* block) {
  CHECK(can_be_put_into_blocks(type), "a type that nothing is put into");
  if (type == DType::q8_0) return put_q8_0(x, block);
  return type == DType::q4_0 ? put_q4_0(x, block) : put_q4_k(x, block);
}

}  // namespace invar
