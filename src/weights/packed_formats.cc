// The elements of a matrix: integers or f8 numbers with their scales and zero points.
#include "weights/packed_formats.h"

#include <algorithm>
#include <array>

#include "weights/packed_parts.h"

namespace invar {

using packed::ceil_div, packed::Kind, packed::number, packed::word;

namespace {

constexpr int64_t kInHand = 256;  // elements of a row

// 4 bits of exponent, bias 7, and 3 of significand; 0x7f and 0xff are NaN, nothing is infinite.
float e4m3(uint8_t byte) {
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80) << 24;
  const uint32_t exponent = byte >> 3 & 15, significand = byte & 7;
  if ((byte & 0x7f) == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 120) << 23 | significand << 20);
  const float value = static_cast<float>(significand) * 0x1p-9f;
  return sign ? -value : value;
}

float of_e4m3(std::byte byte) {
  static const std::array<float, 256> numbers = [] {
    std::array<float, 256> all;
    for (int i = 0; i < 256; ++i) all[static_cast<size_t>(i)] = e4m3(static_cast<uint8_t>(i));
    return all;
  }();
  return numbers[static_cast<size_t>(byte)];
}

// Which output a nibble of an AWQ word belongs to, and back.
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

int PackedMatrix::element(int64_t row, int64_t column) const {
  const int in_word = 32 / format_.bits;
  const uint32_t mask = (1u << format_.bits) - 1;
  switch (format_.kind) {
    case Kind::packed: {
      const uint32_t w = word(elements_, row * ceil_div(columns_, in_word) + column / in_word);
      return static_cast<int>(w >> column % in_word * format_.bits & mask);
    }
    case Kind::gptq: {
      const uint32_t w = word(elements_, column / in_word * rows_ + row);
      return static_cast<int>(w >> column % in_word * format_.bits & mask);
    }
    case Kind::awq: {
      const uint32_t w = word(elements_, column * (rows_ / 8) + row / 8);
      return static_cast<int>(w >> 4 * kAwqPlace[row % 8] & mask);
    }
    case Kind::integer:
      return static_cast<int8_t>(elements_.bytes[static_cast<size_t>(row * columns_ + column)]);
    case Kind::fp8:
    case Kind::nf4:
      break;
  }
  return 0;
}

void PackedMatrix::elements(int64_t row, int64_t column, int64_t count, int* out) const {
  const bool turned = format_.kind == Kind::gptq;
  const int in_word = 32 / format_.bits;
  int64_t i = 0;
  if (turned || format_.kind == Kind::packed) {
    const uint32_t mask = (1u << format_.bits) - 1;
    for (; i < count && (column + i) % in_word; ++i) out[i] = element(row, column + i);
    const int64_t place = (column + i) / in_word, step = turned ? rows_ : 1;
    int64_t at = turned ? place * rows_ + row : row * ceil_div(columns_, in_word) + place;
    for (; i + in_word <= count; i += in_word, at += step) {
      uint32_t w = word(elements_, at);
      for (int j = 0; j < in_word; ++j, w >>= format_.bits) out[i + j] = static_cast<int>(w & mask);
    }
  }
  for (; i < count; ++i) out[i] = element(row, column + i);
}

int PackedMatrix::stored_zero(int64_t row, int64_t group) const {
  const int in_word = 32 / format_.bits;
  const uint32_t mask = (1u << format_.bits) - 1;
  if (format_.kind == Kind::awq)
    return static_cast<int>(word(zeros_, group * (rows_ / 8) + row / 8) >> 4 * kAwqPlace[row % 8] &
                            mask);
  if (format_.kind == Kind::gptq)
    return static_cast<int>(word(zeros_, group * ceil_div(rows_, in_word) + row / in_word) >>
                                row % in_word * format_.bits &
                            mask);
  return static_cast<int>(
      word(zeros_, row / in_word * groups_ + group) >> row % in_word * format_.bits & mask);
}

// The zero of the integers as they stand in the words.
int PackedMatrix::zero(int64_t row, int64_t group) const {
  const int middle = 1 << (format_.bits - 1);
  switch (format_.kind) {
    case Kind::fp8:
    case Kind::nf4:
      return 0;
    case Kind::integer:
      return has_zeros_
                 ? static_cast<int8_t>(zeros_.bytes[static_cast<size_t>(row * groups_ + group)])
                 : 0;
    case Kind::packed:  // zero points stand in words as elements do, with the middle added to both
      return has_zeros_ ? stored_zero(row, group) : middle;
    case Kind::gptq:
      // Where it is symmetric files of the older form have middle - 1, but some have middle.
      return format_.is_symmetric ? middle
                                  : stored_zero(row, group) + (format_.is_zero_exact ? 0 : 1);
    case Kind::awq:
      break;
  }
  return stored_zero(row, group);
}

int64_t PackedMatrix::group_of(int64_t column) const {
  if (has_order_ && groups_ > 1) return word(order_, column);
  return format_.group ? column / format_.group : 0;
}

float PackedMatrix::scale(int64_t row, int64_t group) const {
  const bool turned = format_.kind == Kind::gptq || format_.kind == Kind::awq;
  if (turned) return number(scales_, group * rows_ + row);
  const int64_t scale_row = format_.block_rows ? row / format_.block_rows : row;
  const bool is_one = std::ssize(scales_.bytes) == (scales_.dtype == "F32" ? 4 : 2);
  return number(scales_, is_one ? 0 : scale_row * groups_ + group);
}

int64_t PackedMatrix::columns_together(int64_t column, int64_t most) const {
  if (!has_order_ || groups_ == 1)
    return format_.group ? std::min(format_.group - column % format_.group, most) : most;
  int64_t count = 1;
  while (count < most && group_of(column + count) == group_of(column)) ++count;
  return count;
}

void PackedMatrix::row(int64_t row, int64_t first, int64_t count, float* out) const {
  if (format_.kind == Kind::nf4) return nf4_row(row, first, count, out);
  int q[kInHand];
  for (int64_t i = 0; i < count;) {
    const int64_t column = first + i, group = group_of(column);
    const int64_t n = columns_together(column, std::min(count - i, kInHand));
    const float factor = scale(row, group);
    if (format_.kind == Kind::fp8) {
      const std::byte* bytes = elements_.bytes.data() + row * columns_ + column;
      for (int64_t k = 0; k < n; ++k) out[i + k] = of_e4m3(bytes[k]) * factor;
    } else {
      const int less = zero(row, group);
      elements(row, column, n, q);
      for (int64_t k = 0; k < n; ++k) out[i + k] = static_cast<float>(q[k] - less) * factor;
    }
    i += n;
  }
}

}  // namespace invar
