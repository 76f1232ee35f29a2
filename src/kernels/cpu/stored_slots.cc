// Slots that are stored in 8 bits become panels of bf16: rows become bf16 and then words of panels.
// The same for every set, since memory bounds it.
#include "kernels/stored_slots.h"

#include <array>
#include <cstring>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/words.h"
#include "kernels/reference/reference.h"

namespace invar::cpu {

namespace {

constexpr int kMaxHeadDim = 512, kSlots = 16;

constexpr auto kOfE4m3 = [] {
  std::array<bf16_t, 256> all{};
  for (int i = 0; i < 256; ++i) all[i] = e4m3::to_bf16(static_cast<uint8_t>(i));
  return all;
}();

using Rows = bf16_t[kSlots][kMaxHeadDim];

// 16 rows as the bf16 that they stand for; elements past E are zeros.
void read_rows(const StoredKv& kv, StoredKv::Place at, Rows& rows) {
  const int e = kv.head_dim;
  for (int s = 0; s < kSlots; ++s, at.row += kv.row_bytes(), ++at.scale) {
    if (kv.type == CacheType::int8) {
      const float scale = *at.scale;
      for (int i = 0; i < e; ++i)
        rows[s][i] = f32_to_bf16(static_cast<float>(static_cast<int8_t>(at.row[i])) * scale);
    } else {
      for (int i = 0; i < e; ++i) rows[s][i] = kOfE4m3[at.row[i]];
    }
    std::fill(rows[s] + e, rows[s] + round_up(e, kLeafPad), bf16_t{0});
  }
}

// A panel of 16 keys: word j of each, side by side.
void write_keys(const Rows& rows, int64_t padded, bf16_t* panel) {
  for (int64_t j = 0; j < padded / 2; j += 8)
    for (int s = 0; s < kSlots; s += 8)
      transpose8(&rows[s][2 * j], sizeof rows[0], reinterpret_cast<uint32_t*>(panel) + j * 16 + s,
                 16);
}

// 16 values from slot `first` of a leaf on: pairs of slots, for every 16 elements.
void write_values(const Rows& rows, int64_t padded, int first, bf16_t* leaf) {
  for (int64_t e = 0; e < padded; e += 16)
    for (int s = 0; s < kSlots; s += 2)
      interleave16(&rows[s][e], &rows[s + 1][e], leaf + e * 32 + (first + s) * 16);
}

}  // namespace

void load_slots(const LoadSlotsParams& p, const Execution& on) {
  const KvLayer& kv = p.kv;
  if (kv.layout != CacheLayout::panels) return reference::load_slots(p, on);
  alignas(64) Rows rows;
  for_each_stored_leaf(p, on.share, [&](int64_t block, int64_t head, int64_t first) {
    bf16_t* values = kv.values + kv.value_index(block, head, first, 0);
    for (int s = 0; s < kLeafPad; s += kSlots) {
      read_rows(kv.stored, kv.stored.key(block, head, first + s), rows);
      write_keys(rows, round_up(kv.head_dim, 32),
                 kv.keys + kv.key_index(block, head, first + s, 0));
      read_rows(kv.stored, kv.stored.value(block, head, first + s), rows);
      write_values(rows, round_up(kv.head_dim, 16), s, values);
    }
  });
}

}  // namespace invar::cpu
