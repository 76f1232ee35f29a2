#include "kernels/pack.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace invar {

namespace {

// In a panel a row of 16 outputs holds one 32-bit word of each: a pair of bf16 or one f32. So both
// types are packed by transposing words.
using Word = uint32_t;

// to[j * 16 + i] = from[i * stride + j], i and j below 8; stride in bytes.
void transpose8(const char* from, int64_t stride, Word* to) {
  const auto load = [&](int64_t i, int64_t half) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(from + i * stride) + half * 4);
  };
  // Words 4h .. 4h + 3 of row i below, of row i + 4 above.
  const auto load2 = [&](int64_t i, int64_t half) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(load(i, half)), load(i + 4, half), 1);
  };
  for (int64_t half = 0; half < 2; ++half) {
    const __m256 a = load2(0, half), b = load2(1, half), c = load2(2, half), d = load2(3, half);
    const __m256 ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
    const __m256 cd_low = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
    float* out = reinterpret_cast<float*>(to + half * 64);
    _mm256_storeu_ps(out, _mm256_shuffle_ps(ab_low, cd_low, 0x44));
    _mm256_storeu_ps(out + 16, _mm256_shuffle_ps(ab_low, cd_low, 0xee));
    _mm256_storeu_ps(out + 32, _mm256_shuffle_ps(ab_high, cd_high, 0x44));
    _mm256_storeu_ps(out + 48, _mm256_shuffle_ps(ab_high, cd_high, 0xee));
  }
}

// A whole panel's outputs at once; whole groups of 8 words, the caller does the rest. Returns how
// many words of each row were packed.
int64_t pack_panel(const char* rows, int64_t stride, int64_t words, Word* panel) {
  int64_t j = 0;
  for (; j + 8 <= words; j += 8)
    for (int64_t i = 0; i < 16; i += 8)
      transpose8(rows + i * stride + j * 4, stride, panel + j * 16 + i);
  return j;
}

// Words [begin, padded) of one output; `bytes` is the length of its row.
void pack_output(const char* row, int64_t bytes, int64_t begin, int64_t padded, Word* column) {
  for (int64_t j = begin; j < padded; ++j) {
    Word word = 0;
    const int64_t left = bytes - j * 4;
    if (left > 0) std::memcpy(&word, row + j * 4, std::min<int64_t>(left, 4));
    column[j * 16] = word;
  }
}

}  // namespace

void pack_rows(DType type, const void* rows, int64_t stride, int64_t first, int64_t count,
               int64_t k, PackPlace place, void* packed) {
  CHECK(type == DType::bf16 || type == DType::f32, "weights are packed as bf16 or f32");
  CHECK(place.step == 1 || place.output % kPanelWidth == 0, "a gated pair shares panels evenly");
  const int64_t bytes = k * size_of(type), row_bytes = stride * size_of(type);
  const int64_t padded = round_up(k, kLeafPad) * size_of(type) / 4;  // words of an output
  const int64_t base = place.step == 1 ? 0 : place.output / kPanelWidth;
  const int64_t offset = place.step == 1 ? place.output : 0;
  const char* from = static_cast<const char*>(rows);
  for (int64_t i = 0; i < count;) {
    const int64_t output = offset + first + i, lane = output % kPanelWidth;
    const int64_t lanes = std::min(kPanelWidth - lane, count - i);
    Word* panel = static_cast<Word*>(packed) +
                  (base + output / kPanelWidth * place.step) * padded * kPanelWidth;
    const char* row = from + i * row_bytes;
    const int64_t done = lanes == kPanelWidth ? pack_panel(row, row_bytes, bytes / 4, panel) : 0;
    for (int64_t l = 0; l < lanes; ++l)
      pack_output(row + l * row_bytes, bytes, done, padded, panel + lane + l);
    i += lanes;
  }
}

}  // namespace invar
