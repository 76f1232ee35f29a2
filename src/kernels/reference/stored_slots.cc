// Keys and values in 8 bits: numerics 4.2, a slot at a time.
#include "kernels/stored_slots.h"

#include <cstring>

#include "kernels/reference/reference.h"
#include "numerics/int8.h"

namespace invar::reference {

namespace {

constexpr int kMaxHeadDim = 512;

// One key or value of bf16 as it is stored.
void store(const StoredKv& to, const StoredKv::Place& place, const bf16_t* x) {
  if (to.type == CacheType::int8)
    *place.scale = orders::quantise_run(x, to.head_dim, reinterpret_cast<int8_t*>(place.row)).scale;
  else
    for (int e = 0; e < to.head_dim; ++e) place.row[e] = e4m3::from_bf16(x[e]);
}

// The value that this stands for.
bf16_t element(const StoredKv& from, const StoredKv::Place& place, int e) {
  if (from.type == CacheType::fp8_e4m3) return e4m3::to_bf16(place.row[e]);
  return f32_to_bf16(static_cast<float>(static_cast<int8_t>(place.row[e])) * *place.scale);
}

}  // namespace

void store_slots(const StoreSlotsParams& p, const Execution& on) {
  const KvLayer& kv = p.kv;
  const auto [begin, end] = on.share.of(p.rows);
  bf16_t key[kMaxHeadDim], value[kMaxHeadDim];
  for (int64_t t = begin; t < end; ++t)
    for (int32_t i = p.write_begin[t]; i < p.write_begin[t + 1]; ++i)
      for (int g = 0; g < kv.kv_heads; ++g) {
        const int64_t block = p.write_block[i], slot = p.write_slot[i];
        for (int e = 0; e < kv.head_dim; ++e) {
          key[e] = kv.keys[kv.key_index(block, g, slot, e)];
          value[e] = kv.values[kv.value_index(block, g, slot, e)];
        }
        store(kv.stored, kv.stored.key(block, g, slot), key);
        store(kv.stored, kv.stored.value(block, g, slot), value);
      }
}

void load_slots(const LoadSlotsParams& p, const Execution& on) {
  const KvLayer& kv = p.kv;
  for_each_stored_leaf(p, on.share, [&](int64_t block, int64_t g, int64_t first) {
    for (int64_t slot = first; slot < first + kLeafPad; ++slot) {
      const StoredKv::Place key = kv.stored.key(block, g, slot);
      const StoredKv::Place value = kv.stored.value(block, g, slot);
      for (int e = 0; e < kv.head_dim; ++e) {
        kv.keys[kv.key_index(block, g, slot, e)] = element(kv.stored, key, e);
        kv.values[kv.value_index(block, g, slot, e)] = element(kv.stored, value, e);
      }
    }
  });
}

void copy_stored(const CopySlotsParams& p, const Execution& on) {
  const StoredKv& kv = p.kv.stored;
  const bool has_scales = kv.type == CacheType::int8;
  const auto copy = [&](const StoredKv::Place& to, const StoredKv::Place& from) {
    std::memcpy(to.row, from.row, static_cast<size_t>(kv.row_bytes()));
    if (has_scales) *to.scale = *from.scale;
  };
  const auto [begin, end] = on.share.of(kv.kv_heads);
  for (int64_t i = 0; i < p.count; ++i)
    for (int64_t g = begin; g < end; ++g)
      for (int64_t slot = p.copies[i].begin; slot < p.copies[i].end; ++slot) {
        copy(kv.key(p.copies[i].to, g, slot), kv.key(p.copies[i].from, g, slot));
        copy(kv.value(p.copies[i].to, g, slot), kv.value(p.copies[i].from, g, slot));
      }
}

}  // namespace invar::reference
