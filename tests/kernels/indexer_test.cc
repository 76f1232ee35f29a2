// The indexer (numerics 4.6) of every instruction set against the scalar reference, bit by bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernel_check.h"
#include "kernels/indexer.h"
#include "kernels/select.h"

namespace invar {
namespace {

class IndexerTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Sets, IndexerTest, testing::ValuesIn(tested_sets()), set_name);

constexpr int kSequences = 2, kLongest = 2300;

// Two sequences in one layer's cache, whose blocks lie in no order.
struct Cache {
  Cache(int block_size, int head_dim, int index_dim, uint32_t seed = 1)
      : blocks(static_cast<size_t>((kLongest + block_size - 1) / block_size)),
        kv{.block_size = block_size, .kv_heads = 1, .head_dim = head_dim, .index_dim = index_dim},
        keys(kSequences * blocks * static_cast<size_t>(kv.key_block())),
        values(kSequences * blocks * static_cast<size_t>(kv.value_block())),
        index(kSequences * blocks * static_cast<size_t>(kv.index_block())) {
    kv.keys = keys.data(), kv.values = values.data(), kv.index_keys = index.data();
    Random random(seed);
    for (int block = 0; block < static_cast<int>(kSequences * blocks); ++block)
      for (int slot = 0; slot < block_size; ++slot) {
        for (int e = 0; e < head_dim; ++e) {
          kv.keys[kv.key_index(block, 0, slot, e)] = f32_to_bf16(random.uniform());
          kv.values[kv.value_index(block, 0, slot, e)] = f32_to_bf16(random.uniform());
        }
        for (int e = 0; e < index_dim; ++e)
          kv.index_keys[kv.index_at(block, slot, e)] =
              f32_to_cached_bf16(random.below(3000) ? random.uniform() : random.uniform() * 3e38f);
      }
    for (int s = 0; s < kSequences; ++s) {
      for (size_t i = 0; i < blocks; ++i)
        order.push_back(static_cast<int32_t>((i * 7 + static_cast<size_t>(s)) % blocks * 2 +
                                             static_cast<size_t>(s)));
    }
    for (int s = 0; s < kSequences; ++s)
      tables.push_back(order.data() + static_cast<size_t>(s) * blocks);
  }
  Cache(const Cache&) = delete;

  size_t blocks;  // of a sequence; 7 divides none of their numbers here
  KvLayer kv;
  std::vector<bf16_t> keys, values, index;
  std::vector<int32_t> order;
  std::vector<const int32_t*> tables;
};

struct Rows {
  std::vector<int32_t> positions, table_of;
  int64_t count() const { return std::ssize(positions); }
};
const Rows kRows{{5, 31, 32, 700, 1023, 1024, 2299, 64}, {0, 0, 0, 0, 1, 1, 1, 1}};

struct Queries {
  Queries(int heads, int size, int64_t rows)
      : width(int64_t{heads} * size), q(rows * width), weights(rows * heads) {
    Random random(9);
    for (int64_t i = 0; i < rows * heads; ++i)
      fill_row(random, q.span().subspan(static_cast<size_t>(i * size), static_cast<size_t>(size)));
    for (int64_t i = 0; i < rows * heads; ++i) weights[i] = random.uniform();
  }
  int64_t width;
  Guarded<bf16_t> q;
  Guarded<float> weights;
};

IndexScoresParams scores_of(const Cache& cache, const Queries& of, int heads, float* scores) {
  return {.q = of.q.data(),
          .q_stride = of.width,
          .weights = of.weights.data(),
          .weights_stride = heads,
          .rows = kRows.count(),
          .heads = heads,
          .positions = kRows.positions.data(),
          .table_of = kRows.table_of.data(),
          .tables = cache.tables.data(),
          .kv = cache.kv,
          .scores = scores,
          .scores_stride = round_up(kLongest, kSplitSlots)};
}

// Compares the slots that a row sees; those behind them in their leaf may hold anything.
void expect_same_scores(const Guarded<float>& expected, const Guarded<float>& found) {
  ASSERT_TRUE(expected.guards_are_intact() && found.guards_are_intact());
  const int64_t stride = round_up(kLongest, kSplitSlots);
  for (int64_t t = 0; t < kRows.count(); ++t) {
    const size_t first = static_cast<size_t>(t * stride),
                 count = static_cast<size_t>(kRows.positions[static_cast<size_t>(t)] + 1);
    ASSERT_TRUE(
        same_bits(expected.span().subspan(first, count), found.span().subspan(first, count)))
        << "row " << t;
  }
}

TEST_P(IndexerTest, ScoresAsTheReference) {
  for (const Order order : {Order::portable, Order::pair}) {
    if (order != Order::portable && !is_supported(GetParam())) continue;
    const Kernels fast = order == Order::portable ? kernels() : select_kernels(order, GetParam());
    const Kernels slow = select_kernels(order, "scalar");
    for (const int block_size : {32, 64, 128})
      for (const auto& [heads, size] : {std::pair{4, 32}, {20, 128}, {33, 64}}) {
        const Cache cache(block_size, 40, size);
        const Queries queries(heads, size, kRows.count());
        const int64_t all = kRows.count() * round_up(kLongest, kSplitSlots);
        Guarded<float> expected(all);
        slow.index_scores(scores_of(cache, queries, heads, expected.data()), Execution{});
        for (const int parts : {1, 3}) {
          Guarded<float> found(all);
          run_in_parts(parts, [&](const Execution& on) {
            fast.index_scores(scores_of(cache, queries, heads, found.data()), on);
          });
          expect_same_scores(expected, found);
        }
      }
  }
}

// Few values, so that many scores are equal; numbers of both signs of zero, infinities and NaN.
float a_score(Random& random, int kind) {
  constexpr float kOdd[] = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  if (kind == 0) return random.uniform();
  return kind == 1 ? static_cast<float>(random.below(5)) - 2.0f : kOdd[random.below(7)];
}

TEST_P(IndexerTest, ChoosesAsTheReference) {
  Random random(3);
  constexpr int64_t kStride = 2304;
  for (int kind = 0; kind < 4; ++kind)
    for (const int most : {1, 2, 31, 32, 500, 2048}) {
      Rows rows;
      for (const int more : {0, 1, 2, 40, 250}) rows.positions.push_back(most + more);
      Guarded<float> scores(rows.count() * kStride);
      for (int64_t i = 0; i < scores.size(); ++i)
        scores[i] = kind == 3 ? 1.0f : a_score(random, kind);
      Guarded<int32_t> expected(rows.count() * most), found(rows.count() * most);
      const auto choice = [&](int32_t* chosen) {
        return ChooseSlotsParams{.scores = scores.data(),
                                 .scores_stride = kStride,
                                 .rows = rows.count(),
                                 .positions = rows.positions.data(),
                                 .most = most,
                                 .chosen = chosen};
      };
      scalar().choose_slots(choice(expected.data()), Execution{});
      run_in_parts(2,
                   [&](const Execution& on) { kernels().choose_slots(choice(found.data()), on); });
      ASSERT_TRUE(same(expected, found)) << kind << " " << most;
      if (kind < 3) continue;  // all are equal: the first ones
      for (int64_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i % most);
    }
}

// Numerics 4.6 slot by slot: it counts the slots that are higher, or equal and before this one.
TEST_P(IndexerTest, ASlotIsChosenThatFewerThanSoManyPrecede) {
  Random random(4);
  constexpr int kCount = 300, kMost = 37;
  const int32_t position = kCount - 1;
  // A NaN is less than every number, and as much as another one.
  const auto is_higher = [](float x, float y) { return x > y || (x == x && y != y); };
  const auto is_equal = [](float x, float y) { return x == y || (x != x && y != y); };
  for (const int kind : {0, 1, 2}) {
    std::vector<float> scores;
    for (int i = 0; i < kCount; ++i) scores.push_back(a_score(random, kind));
    if (kind == 2)
      for (int i = 0; i < kCount - kMost / 2; ++i) scores[i] = i % 3 ? NAN : -INFINITY;
    std::vector<int32_t> chosen(kMost);
    kernels().choose_slots({.scores = scores.data(),
                            .scores_stride = kCount,
                            .rows = 1,
                            .positions = &position,
                            .most = kMost,
                            .chosen = chosen.data()},
                           Execution{});
    std::vector<int32_t> expected;
    for (int i = 0; i < kCount; ++i) {
      int before = 0;
      for (int j = 0; j < kCount; ++j)
        before += is_higher(scores[j], scores[i]) || (is_equal(scores[j], scores[i]) && j < i);
      if (before < kMost) expected.push_back(i);
    }
    EXPECT_EQ(chosen, expected) << kind;
  }
}

// Blocks for what rows gather.
struct Gathered {
  Gathered(const KvLayer& of, int64_t rows, int most)
      : blocks((most + 127) / 128),
        kv{.block_size = 128, .kv_heads = 1, .head_dim = of.head_dim},
        keys(rows * blocks * kv.key_block()),
        values(rows * blocks * kv.value_block()) {
    std::ranges::fill(keys.span(), bf16_t{0});
    std::ranges::fill(values.span(), bf16_t{0});
    kv.keys = keys.data(), kv.values = values.data();
  }
  int64_t blocks;
  KvLayer kv;
  Guarded<bf16_t> keys, values;
};

TEST_P(IndexerTest, GathersAsTheReference) {
  Random random(5);
  for (const int block_size : {32, 64})
    for (const int head_dim : {40, 96, 576})
      for (const int most : {1, 31, 32, 70, 200}) {
        const Cache cache(block_size, head_dim, 32);
        std::vector<int32_t> chosen;
        for (int64_t t = 0; t < kRows.count(); ++t)
          for (int i = 0; i < most; ++i)
            chosen.push_back(static_cast<int32_t>(i * 11 + static_cast<int>(random.below(11))));
        const auto gather = [&](const Gathered& to) {
          return GatherSlotsParams{.from = cache.kv,
                                   .to = to.kv,
                                   .rows = kRows.count(),
                                   .table_of = kRows.table_of.data(),
                                   .tables = cache.tables.data(),
                                   .chosen = chosen.data(),
                                   .most = most};
        };
        const Gathered expected(cache.kv, kRows.count(), most),
            found(cache.kv, kRows.count(), most);
        scalar().gather_slots(gather(expected), Execution{});
        run_in_parts(3, [&](const Execution& on) { kernels().gather_slots(gather(found), on); });
        ASSERT_TRUE(same(expected.keys, found.keys)) << head_dim << " " << most;
        ASSERT_TRUE(same(expected.values, found.values)) << head_dim << " " << most;
      }
}

// Where all slots are chosen attention has the bits of dense attention; with another slot it has
// not.
TEST_P(IndexerTest, AttentionToAllSlotsIsDense) {
  constexpr int kMost = 300, kHeads = 5, kSize = 80;
  const Cache cache(64, kSize, 32);
  const int32_t position = kMost - 1, table = 1;
  Guarded<bf16_t> q(kHeads * round_up(kSize, 32));
  std::ranges::fill(q.span(), bf16_t{0});
  Random random(6);
  for (int h = 0; h < kHeads; ++h)
    for (int e = 0; e < kSize; ++e) q[h * round_up(kSize, 32) + e] = f32_to_bf16(random.uniform());
  const auto attended = [&](const KvLayer& kv, const int32_t* const* tables, int32_t number) {
    std::vector<float> out(static_cast<size_t>(round_up(kHeads * kSize, 32)));
    kernels().attention({.q = q.data(),
                         .rows = 1,
                         .heads = kHeads,
                         .positions = &position,
                         .table_of = &number,
                         .tables = tables,
                         .window = 0,
                         .kv = kv,
                         .out = {out.data(), DType::f32, std::ssize(out)}},
                        Execution{});
    return out;
  };
  std::vector<int32_t> chosen(kMost), blocks{0, 1, 2};
  std::iota(chosen.begin(), chosen.end(), 0);
  const int32_t* gathered_table = blocks.data();
  const auto sparse = [&] {
    const Gathered to(cache.kv, 1, kMost);
    kernels().gather_slots({.from = cache.kv,
                            .to = to.kv,
                            .rows = 1,
                            .table_of = &table,
                            .tables = cache.tables.data(),
                            .chosen = chosen.data(),
                            .most = kMost},
                           Execution{});
    return attended(to.kv, &gathered_table, 0);
  };
  const std::vector<float> dense = attended(cache.kv, cache.tables.data(), table);
  EXPECT_EQ(sparse(), dense);
  chosen.back() = kMost;
  EXPECT_NE(sparse(), dense);
}

// Keys that are not finite are stored clamped and say so.
TEST_P(IndexerTest, KeysAreStoredFinite) {
  const Cache cache(32, 8, 32);
  Random random(7);
  std::vector<float> keys(3 * 32);
  for (float& x : keys) x = random.uniform();
  keys[32 + 5] = std::numeric_limits<float>::infinity();
  keys[64 + 7] = std::numeric_limits<float>::quiet_NaN();
  const int32_t begin[] = {0, 1, 3, 4}, block[] = {0, 1, 2, 3}, slot[] = {31, 0, 5, 17};
  bool non_finite[3] = {};
  kernels().store_index({.keys = keys.data(),
                         .stride = 32,
                         .rows = 3,
                         .write_begin = begin,
                         .write_block = block,
                         .write_slot = slot,
                         .kv = cache.kv,
                         .non_finite = non_finite},
                        Execution{});
  const auto stored = [&](int64_t b, int64_t s, int64_t e) {
    return cache.kv.index_keys[cache.kv.index_at(b, s, e)];
  };
  for (int e = 0; e < 32; ++e) {
    EXPECT_EQ(stored(0, 31, e), f32_to_bf16(keys[static_cast<size_t>(e)]));
    EXPECT_EQ(stored(1, 0, e), stored(2, 5, e));
  }
  EXPECT_EQ(stored(1, 0, 5), 0x7f7f);
  EXPECT_EQ(stored(3, 17, 7), 0);
  EXPECT_FALSE(non_finite[0]);
  EXPECT_TRUE(non_finite[1] && non_finite[2]);
}

}  // namespace
}  // namespace invar
