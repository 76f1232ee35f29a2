// Keys and values in 8 bits: the definition by its words, and what is loaded for attention against
// it, bit by bit.
#include <fmt/format.h>

#include <cmath>

#include "kernel_check.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/reference/reference.h"

namespace invar {
namespace {

TEST(StoredSlots, E4m3IsTheNearestOfItsNumbers) {
  for (int x = 0; x < 0x7f80; ++x) {  // every finite bf16 that is not negative
    const float value = x < 0x80 ? 0.0f : bf16_to_f32(static_cast<bf16_t>(x));
    int nearest = 0;
    for (int c = 1; c < 0x7f; ++c) {
      const float here = std::fabs(bf16_to_f32(e4m3::to_bf16(static_cast<uint8_t>(c))) - value);
      const float best =
          std::fabs(bf16_to_f32(e4m3::to_bf16(static_cast<uint8_t>(nearest))) - value);
      if (here < best || (here == best && c % 2 == 0)) nearest = c;
    }
    if (value > 448.0f) nearest = 0x7e;
    ASSERT_EQ(e4m3::from_bf16(static_cast<bf16_t>(x)), nearest) << value;
    ASSERT_EQ(e4m3::from_bf16(static_cast<bf16_t>(x | 0x8000)), nearest | 0x80) << value;
  }
  EXPECT_EQ(bf16_to_f32(e4m3::to_bf16(0x7e)), 448.0f);
  EXPECT_EQ(bf16_to_f32(e4m3::to_bf16(0x81)), -0x1p-9f);
}

struct Case {
  CacheType type;
  int block_size, kv_heads, head_dim, window;
};

constexpr Case kCases[] = {{CacheType::int8, 32, 2, 40, 0},
                           {CacheType::int8, 64, 3, 64, 50},
                           {CacheType::int8, 128, 1, 128, 0},
                           {CacheType::fp8_e4m3, 64, 2, 8, 0},
                           {CacheType::fp8_e4m3, 32, 1, 256, 40}};

// Two sequences that share their first block.
constexpr int32_t kFirst[] = {4, 0, 3, 1, 6}, kSecond[] = {4, 2, 5};
constexpr int kBlocks = 7;

struct Cache {
  explicit Cache(const Case& c)
      : kv{.block_size = c.block_size, .kv_heads = c.kv_heads, .head_dim = c.head_dim},
        keys(kBlocks * c.kv_heads * kv.key_block()),
        values(kBlocks * c.kv_heads * kv.value_block()),
        stored(kBlocks *
               StoredKv{nullptr, c.type, c.block_size, c.kv_heads, c.head_dim}.block_bytes()) {
    std::memset(keys.data(), 0, keys.size() * sizeof(bf16_t));
    std::memset(values.data(), 0, values.size() * sizeof(bf16_t));
    std::memset(stored.data(), 0, static_cast<size_t>(stored.size()));
    kv.keys = keys.data();
    kv.values = values.data();
    kv.stored = {stored.data(), c.type, c.block_size, c.kv_heads, c.head_dim};
  }
  KvLayer kv;
  Guarded<bf16_t> keys, values;
  Guarded<uint8_t> stored;
};

// Every slot of every block, as rows that write one each.
void fill(const Case& c, Cache& cache, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> begin, block, slot;
  for (int b = 0; b < kBlocks; ++b)
    for (int s = 0; s < c.block_size; ++s) {
      begin.push_back(static_cast<int32_t>(begin.size()));
      block.push_back(b);
      slot.push_back(s);
      const float scale = std::ldexp(1.0f, static_cast<int>(random.below(12)) - 6);
      for (int g = 0; g < c.kv_heads; ++g)
        for (int e = 0; e < c.head_dim; ++e) {
          cache.keys[cache.kv.key_index(b, g, s, e)] = f32_to_bf16(random.uniform() * scale);
          cache.values[cache.kv.value_index(b, g, s, e)] = f32_to_bf16(random.uniform() * scale);
        }
    }
  const auto rows = static_cast<int64_t>(begin.size());
  begin.push_back(static_cast<int32_t>(rows));
  const StoreSlotsParams p{cache.kv, rows, begin.data(), block.data(), slot.data()};
  run_in_parts(3, [&](const Execution& on) { reference::store_slots(p, on); });
}

TEST(StoredSlots, AreLoadedAsTheDefinition) {
  for (const Case& c : kCases) {
    Cache expected(c), found(c);
    fill(c, expected, 1);
    fill(c, found, 1);
    const int last = 4 * c.block_size + 5;
    const int32_t positions[] = {last - 1, last, 40}, table_of[] = {0, 0, 1};
    const int32_t* const tables[] = {kFirst, kSecond};
    LoadSlotsParams p{expected.kv, 3, c.window, positions, table_of, tables};
    run_in_parts(1, [&](const Execution& on) { reference::load_slots(p, on); });
    p.kv = found.kv;
    run_in_parts(3, [&](const Execution& on) { cpu::load_slots(p, on); });
    const std::string what = fmt::format("{} E {}", name_of(c.type), c.head_dim);
    EXPECT_TRUE(same(expected.keys, found.keys)) << what;
    EXPECT_TRUE(same(expected.values, found.values)) << what;
    // The control: what was stored is not what it was made from, and another byte is another key.
    Cache original(c);
    fill(c, original, 1);
    EXPECT_FALSE(same(original.keys, found.keys)) << what;
    *found.kv.stored.key(kFirst[4], 0, 5).row ^= 1;
    run_in_parts(2, [&](const Execution& on) { cpu::load_slots(p, on); });
    EXPECT_FALSE(same(expected.keys, found.keys)) << what;
  }
}

TEST(StoredSlots, AreCopied) {
  for (const Case& c : kCases) {
    Cache cache(c);
    fill(c, cache, 2);
    const SlotCopy copies[] = {{1, 5, 3, 9}, {0, 6, 0, 1}};
    run_in_parts(2, [&](const Execution& on) {
      reference::copy_stored({cache.kv, copies, 2}, on);
    });
    const StoredKv& kv = cache.kv.stored;
    const auto equal = [&](int from, int to, int slot) {
      const auto a = kv.value(from, c.kv_heads - 1, slot), b = kv.value(to, c.kv_heads - 1, slot);
      return std::memcmp(a.row, b.row, static_cast<size_t>(c.head_dim)) == 0 &&
             (c.type != CacheType::int8 || *a.scale == *b.scale);
    };
    EXPECT_TRUE(equal(1, 5, 3) && equal(1, 5, 8) && equal(0, 6, 0));
    EXPECT_FALSE(equal(1, 5, 2) || equal(1, 5, 9) || equal(0, 6, 1));
  }
}

}  // namespace
}  // namespace invar
