// Slots of keys and values from one block to another: what a tree of drafts copies for each side
// branch, the block that the sequence has begun above all. Whole panels are one stretch of memory,
// and so are, for a pair of elements, neighbouring slots.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/elementwise.h"

namespace invar::cpu {

namespace {

constexpr int64_t kKeySlots = 16, kValueSlots = 32;  // of a panel
constexpr int64_t kLine = 32;                        // elements of a pair's row in a panel

void copy(bf16_t* to, const bf16_t* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(bf16_t));
}

// Slots [begin, end) of one panel of 16: [pair of elements][slot][2].
void copy_key_panel(bf16_t* to, const bf16_t* from, int64_t elements, int64_t begin, int64_t end) {
  if (begin == 0 && end == kKeySlots) return copy(to, from, elements * kKeySlots);
  for (int64_t pair = 0; pair < elements / 2; ++pair)
    copy(to + pair * kLine + begin * 2, from + pair * kLine + begin * 2, (end - begin) * 2);
}

// Slots [begin, end) of one panel of 32 slots by 16 elements: [pair of slots][element][2].
void copy_value_panel(bf16_t* to, const bf16_t* from, int64_t begin, int64_t end) {
  const auto copy_half = [&](int64_t slot) {
    for (int64_t e = 0; e < 16; ++e) {
      const int64_t at = slot / 2 * kLine + e * 2 + slot % 2;
      to[at] = from[at];
    }
  };
  if (begin % 2 == 1) copy_half(begin++);
  if (end % 2 == 1 && end > begin) copy_half(--end);
  if (end > begin)
    copy(to + begin / 2 * kLine, from + begin / 2 * kLine, (end - begin) / 2 * kLine);
}

void copy_panels(const KvLayer& kv, int64_t head, const SlotCopy& c) {
  const int64_t elements = round_up(kv.head_dim, 32), width = round_up(kv.head_dim, 16);
  for (int64_t first = c.begin / kKeySlots * kKeySlots; first < c.end; first += kKeySlots)
    copy_key_panel(kv.keys + kv.key_index(c.to, head, first, 0),
                   kv.keys + kv.key_index(c.from, head, first, 0), elements,
                   std::max<int64_t>(c.begin - first, 0),
                   std::min<int64_t>(c.end - first, kKeySlots));
  for (int64_t first = c.begin / kValueSlots * kValueSlots; first < c.end; first += kValueSlots)
    for (int64_t e = 0; e < width; e += 16)
      copy_value_panel(kv.values + kv.value_index(c.to, head, first, e),
                       kv.values + kv.value_index(c.from, head, first, e),
                       std::max<int64_t>(c.begin - first, 0),
                       std::min<int64_t>(c.end - first, kValueSlots));
}

void copy_index_keys(const KvLayer& kv, const SlotCopy& c) {
  for (int64_t first = c.begin / kKeySlots * kKeySlots; first < c.end; first += kKeySlots)
    copy_key_panel(kv.index_keys + kv.index_at(c.to, first, 0),
                   kv.index_keys + kv.index_at(c.from, first, 0), kv.index_dim,
                   std::max<int64_t>(c.begin - first, 0),
                   std::min<int64_t>(c.end - first, kKeySlots));
}

// Copies f32: an element of a panel's slot has a line of its own.
void copy_f32(const KvLayer& kv, int64_t head, const SlotCopy& c) {
  for (int64_t slot = c.begin; slot < c.end; ++slot)
    for (int64_t e = 0; e < kv.head_dim; ++e) {
      kv.f32_keys()[kv.key_index(c.to, head, slot, e)] =
          kv.f32_keys()[kv.key_index(c.from, head, slot, e)];
      kv.f32_values()[kv.value_index(c.to, head, slot, e)] =
          kv.f32_values()[kv.value_index(c.from, head, slot, e)];
    }
}

}  // namespace

void copy_slots(const CopySlotsParams& p, const Execution& on) {
  const KvLayer& kv = p.kv;
  if (kv.index_keys && on.share.index == 0)
    for (int64_t i = 0; i < p.count; ++i)
      if (p.copies[i].end > p.copies[i].begin) copy_index_keys(kv, p.copies[i]);
  const auto [first, last] = on.share.of(kv.kv_heads);
  for (int64_t head = first; head < last; ++head)
    for (int64_t i = 0; i < p.count; ++i) {
      const SlotCopy& c = p.copies[i];
      if (c.end <= c.begin) continue;
      if (kv.is_f32()) {
        copy_f32(kv, head, c);
        continue;
      }
      if (kv.layout == CacheLayout::panels) {
        copy_panels(kv, head, c);
        continue;
      }
      const int64_t count = (c.end - c.begin) * kv.row_elements();
      const int64_t to = kv.row_index(c.to, head, c.begin, 0);
      const int64_t from = kv.row_index(c.from, head, c.begin, 0);
      copy(kv.keys + to, kv.keys + from, count);
      copy(kv.values + to, kv.values + from, count);
    }
}

}  // namespace invar::cpu
