#include "kernels/pack.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/block_places.h"
#include "kernels/cpu/words.h"

namespace invar {

namespace {

// In a panel a row of 16 outputs holds one 32-bit word of each: a pair of bf16 or one f32. So a
// type of any size that divides a word is packed by transposing words.
using Word = uint32_t;

// A whole panel's outputs at once; whole groups of 8 words, the caller does the rest. Returns how
// many words of each row were packed.
int64_t pack_panel(const char* rows, int64_t stride, int64_t words, Word* panel) {
  int64_t j = 0;
  for (; j + 8 <= words; j += 8)
    for (int64_t i = 0; i < 16; i += 8)
      cpu::transpose8(rows + i * stride + j * 4, stride, panel + j * 16 + i, 16);
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

namespace {

// `panel_words`: from panel to panel.
void pack_words(DType type, const void* rows, int64_t stride, int64_t first, int64_t count,
                int64_t k, int64_t panel_words, PackPlace place, void* packed) {
  CHECK(place.step == 1 || place.output % kPanelWidth == 0, "a gated pair shares panels evenly");
  const int64_t bytes = k * size_of(type), row_bytes = stride * size_of(type);
  const int64_t padded = round_up(k, kLeafPad) * size_of(type) / 4;  // words of an output
  const int64_t base = place.step == 1 ? 0 : place.output / kPanelWidth;
  const int64_t offset = place.step == 1 ? place.output : 0;
  const char* from = static_cast<const char*>(rows);
  for (int64_t i = 0; i < count;) {
    const int64_t output = offset + first + i, lane = output % kPanelWidth;
    const int64_t lanes = std::min(kPanelWidth - lane, count - i);
    Word* panel =
        static_cast<Word*>(packed) + (base + output / kPanelWidth * place.step) * panel_words;
    const char* row = from + i * row_bytes;
    const int64_t done = lanes == kPanelWidth ? pack_panel(row, row_bytes, bytes / 4, panel) : 0;
    for (int64_t l = 0; l < lanes; ++l)
      pack_output(row + l * row_bytes, bytes, done, padded, panel + lane + l);
    i += lanes;
  }
}

}  // namespace

void pack_rows(DType type, const void* rows, int64_t stride, int64_t first, int64_t count,
               int64_t k, PackPlace place, void* packed) {
  CHECK(type != DType::f16, "f16 is held as f32");
  const int64_t words = round_up(k, kLeafPad) * size_of(type) / 4;
  pack_words(type, rows, stride, first, count, k, words * kPanelWidth, place, packed);
}

namespace {

// Integers into panels, as value + 128.
void pack_integers(const Matrix& w, const void* rows, int64_t stride, int64_t first, int64_t count,
                   PackPlace place, void* packed) {
  const auto* from = static_cast<const uint8_t*>(rows);
  std::vector<uint8_t> above(static_cast<size_t>(w.k * count));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < w.k; ++j) above[i * w.k + j] = from[i * stride + j] ^ 0x80;
  pack_words(DType::i8, above.data(), w.k, first, count, w.k, w.unit_bytes() / 4, place, packed);
}

// The first row of the rows that a source's rows become.
int64_t first_row(const Matrix& w, PackPlace place) {
  return place.step == 1 ? place.output : place.output / kPanelWidth * w.all_rows();
}

// Row i of the source as an output counted through the units.
int64_t output_of(const Matrix& w, PackPlace place, int64_t i) {
  if (w.layout == WeightLayout::rows) return first_row(w, place) + i;
  if (place.step == 1) return place.output + i;
  return place.output + i / kPanelWidth * place.step * kPanelWidth + i % kPanelWidth;
}

// Of 16 rows a part of a block each, `bytes` long: words side by side, the rows in turn.
template <typename Element>
void interleave(const uint8_t* rows, int64_t row_bytes, int bytes, uint8_t* out) {
  for (int at = 0; at < bytes; at += static_cast<int>(sizeof(Element)))
    for (int64_t lane = 0; lane < kPanelWidth; ++lane, out += sizeof(Element))
      std::memcpy(out, rows + lane * row_bytes + at, sizeof(Element));
}

// The same of 8 words of two bytes each.
void interleave_8(const uint8_t* rows, int64_t row_bytes, uint8_t* out) {
  __m256i a[8], b[8];  // a lane for rows below 8, one for those above
  for (int64_t i = 0; i < 8; ++i)
    a[i] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(rows + (i + 8) * row_bytes),
                               reinterpret_cast<const __m128i*>(rows + i * row_bytes));
  const auto pairs = [](const __m256i* from, __m256i* to, auto low, auto high) {
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = low(from[i], from[i + 4]);
      to[2 * i + 1] = high(from[i], from[i + 4]);
    }
  };
  const auto low = [](__m256i x, __m256i y) { return _mm256_unpacklo_epi16(x, y); };
  const auto high = [](__m256i x, __m256i y) { return _mm256_unpackhi_epi16(x, y); };
  pairs(a, b, low, high);  // each time the words of 4 rows further apart come together
  pairs(b, a, low, high);
  pairs(a, b, low, high);
  for (int i = 0; i < 8; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + i, b[i]);
}

// Values, whose words have two bytes.
void interleave_values(const uint8_t* rows, int64_t row_bytes, int bytes, uint8_t* out) {
  int at = 0;
  for (; at + 16 <= bytes; at += 16, out += 16 * kPanelWidth)
    interleave_8(rows + at, row_bytes, out);
  interleave<uint16_t>(rows + at, row_bytes, bytes - at, out);
}

// The 16 outputs of a panel, of which BlockPlaces says where every byte goes.
void pack_panel_of_blocks(const Matrix& w, const uint8_t* rows, int64_t row_bytes, uint8_t* panel) {
  const StorageType& storage = storage_of(w.type);
  CHECK(storage.together == 2, "values of a panel's blocks lie in words of two bytes");
  uint8_t *values = panel, *scales = panel + w.scales_at();
  for (int64_t b = w.k / storage.block; b > 0; --b, rows += storage.bytes()) {
    if (storage.scales_together() == 4)
      interleave<uint32_t>(rows, row_bytes, storage.scale_bytes, scales);
    else
      interleave<uint16_t>(rows, row_bytes, storage.scale_bytes, scales);
    interleave_values(rows + storage.scale_bytes, row_bytes, storage.value_bytes, values);
    scales += kPanelWidth * storage.scale_bytes;
    values += kPanelWidth * storage.value_bytes;
  }
}

// Few bytes, for which a call would take longer than the copy.
uint8_t* copy_short(const uint8_t* from, int bytes, uint8_t* to) {
  int at = 0;
  for (; at + 16 <= bytes; at += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  for (; at < bytes; ++at) to[at] = from[at];
  return to + bytes;
}

// An output that has a unit for itself.
void pack_row_of_blocks(const Matrix& w, const uint8_t* row, uint8_t* unit) {
  const StorageType& storage = storage_of(w.type);
  uint8_t *values = unit, *scales = unit + w.scales_at();
  for (int64_t b = w.k / storage.block; b > 0; --b, row += storage.bytes()) {
    scales = copy_short(row, storage.scale_bytes, scales);
    values = copy_short(row + storage.scale_bytes, storage.value_bytes, values);
  }
}

void pack_blocks(const Matrix& w, const void* rows, int64_t stride, int64_t first, int64_t count,
                 PackPlace place, void* packed) {
  const BlockPlaces places(w);
  const auto* row = static_cast<const uint8_t*>(rows);
  const int64_t blocks = w.k / places.block(), bytes = storage_of(w.type).bytes();
  const int64_t row_bytes = bytes_of(w.type, stride);
  for (int64_t i = 0; i < count;) {
    const int64_t output = output_of(w, place, first + i);
    const bool is_panel =
        w.unit_outputs() == kPanelWidth && output % kPanelWidth == 0 && i + kPanelWidth <= count;
    if (is_panel)
      pack_panel_of_blocks(w, row, row_bytes,
                           static_cast<uint8_t*>(packed) + output / kPanelWidth * w.unit_bytes());
    else if (w.unit_outputs() == 1)
      pack_row_of_blocks(w, row, static_cast<uint8_t*>(packed) + output * w.unit_bytes());
    else
      for (int64_t b = 0; b < blocks; ++b) places.write(packed, output, b, row + b * bytes);
    i += is_panel ? kPanelWidth : 1;
    row += (is_panel ? kPanelWidth : 1) * row_bytes;
  }
}

}  // namespace

void pack_rows(const Matrix& w, const void* rows, int64_t stride, int64_t first, int64_t count,
               PackPlace place, void* packed) {
  if (storage_of(w.type).has_blocks())
    return pack_blocks(w, rows, stride, first, count, place, packed);
  if (w.layout == WeightLayout::panels && w.type == DType::i8)
    return pack_integers(w, rows, stride, first, count, place, packed);
  if (w.layout == WeightLayout::panels)
    return pack_rows(w.type, rows, stride, first, count, w.k, place, packed);
  const int64_t bytes = w.k * size_of(w.type), padded = w.unit_bytes();
  char* row = static_cast<char*>(packed) + (first_row(w, place) + first) * padded;
  for (int64_t i = 0; i < count; ++i, row += padded) {
    std::memcpy(row, static_cast<const char*>(rows) + i * stride * size_of(w.type), bytes);
    std::memset(row + bytes, 0, padded - bytes);
  }
}

void pack_scales(const Matrix& w, const float* scales, int64_t first, int64_t count,
                 PackPlace place, void* packed) {
  const int64_t outputs = w.unit_outputs();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t output = output_of(w, place, first + i);
    char* unit = static_cast<char*>(packed) + output / outputs * w.unit_bytes() + w.scales_at();
    std::memcpy(unit + output % outputs * sizeof(float), scales + i, sizeof(float));
  }
}

}  // namespace invar
