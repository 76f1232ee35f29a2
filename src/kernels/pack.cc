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

// Packs 16 rows of a part of a block each, `bytes` long: words side by side, the rows in turn.
template <typename Element>
uint8_t* interleave(const uint8_t* rows, int64_t row_bytes, int bytes, uint8_t* out) {
  for (int at = 0; at < bytes; at += static_cast<int>(sizeof(Element)))
    for (int64_t lane = 0; lane < kPanelWidth; ++lane, out += sizeof(Element))
      std::memcpy(out, rows + lane * row_bytes + at, sizeof(Element));
  return out;
}

// The same of words of 8 bytes, of which the even ones come first; two words at a time.
uint8_t* interleave_evens_first(const uint8_t* rows, int64_t row_bytes, int bytes, uint8_t* out) {
  const __m128i evens_first = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const auto words = [&](const uint8_t* from) {
    return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), evens_first);
  };
  constexpr int64_t kWords = 8 * kPanelWidth;  // bytes of a word of all rows
  for (int at = 0; at < bytes; at += 16, out += 2 * kWords)
    for (int64_t lane = 0; lane < kPanelWidth; lane += 2) {
      const uint8_t* row = rows + lane * row_bytes + at;
      const __m128i a = words(row), b = words(row + row_bytes);
      __m128i* to = reinterpret_cast<__m128i*>(out + lane * 8);
      _mm_storeu_si128(to, _mm_unpacklo_epi64(a, b));
      _mm_storeu_si128(to + kWords / 16, _mm_unpackhi_epi64(a, b));
    }
  return out;
}

// The 16 outputs of a panel, of which BlockPlaces says where every byte goes.
void pack_panel_of_blocks(const Matrix& w, const uint8_t* rows, int64_t row_bytes, uint8_t* panel) {
  const StorageType& storage = storage_of(w.type);
  CHECK(storage.together == 8 && storage.lead % 4 == 0 &&
            (storage.value_bytes - storage.lead) % 16 == 0,
        "how values of a panel's blocks lie");
  uint8_t *values = panel, *scales = panel + w.scales_at();
  for (int64_t b = w.k / storage.block; b > 0; --b, rows += storage.bytes()) {
    scales = storage.scales_together() == 4
                 ? interleave<uint32_t>(rows, row_bytes, storage.scale_bytes, scales)
                 : interleave<uint16_t>(rows, row_bytes, storage.scale_bytes, scales);
    const uint8_t* from = rows + storage.scale_bytes;
    values = interleave<uint32_t>(from, row_bytes, storage.lead, values);
    values = interleave_evens_first(from + storage.lead, row_bytes,
                                    storage.value_bytes - storage.lead, values);
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
