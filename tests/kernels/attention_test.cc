// Attention of every instruction set against the scalar reference, bit by bit.
#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernel_check.h"
#include "kernels/select.h"
#include "numerics/math.h"

namespace invar {
namespace {

// What queries and valid keys and values look like. Scores of `wide` single out one slot; those of
// `any` overflow now and then, so that rows of NaN are among the answers.
enum class Data { plain, wide, tiny, zeros, any };
constexpr Data kAllData[] = {Data::plain, Data::wide, Data::tiny, Data::zeros, Data::any};

bf16_t draw(Random& random, Data data) {
  const auto with_exponent = [&](int exponent) {
    return static_cast<bf16_t>((random.next() & 0x807f) | static_cast<uint32_t>(exponent + 127)
                                                              << 7);
  };
  switch (data) {
    case Data::plain:
      return f32_to_bf16(2.0f * random.uniform());
    case Data::wide:
      return with_exponent(static_cast<int>(random.below(24)) - 16);
    case Data::tiny:  // products around the smallest normal number; exponent -127 is subnormal
      return with_exponent(random.below(8) ? -62 - static_cast<int>(random.below(5)) : -127);
    case Data::zeros:
      return static_cast<bf16_t>(random.next() & 0x8000);
    case Data::any:
      return with_exponent(random.below(2000) ? static_cast<int>(random.below(30)) - 27
                                              : static_cast<int>(random.below(255)) - 127);
  }
  return 0;
}

struct Sequence {
  std::vector<int> positions;  // of its rows
};

struct Case {
  std::vector<Sequence> sequences;
  int heads = 4, groups = 2, head_dim = 64, block_size = 64, window = 0;
  Data data = Data::plain;
  DType out = DType::bf16;
  std::vector<int> parts = {1, 3};
  double score_scale = 0;
  float score_cap = 0;
  bool has_sinks = false;
  DType cache = DType::bf16;                                 // of queries, keys and values
  int words() const { return cache == DType::f32 ? 2 : 1; }  // of 16 bits, to an element
};

std::vector<int> slots(int begin, int end) {
  std::vector<int> all(end - begin);
  std::iota(all.begin(), all.end(), begin);
  return all;
}

// The inputs of a case. Whatever no query may see holds finite garbage, mostly huge. Entries of a
// block table that no query needs are poison.
class Inputs {
 public:
  explicit Inputs(const Case& c, uint32_t seed = 0)
      : case_(c),
        random_(seed + c.head_dim * 1000 + c.block_size + c.window),
        block_order_(count_blocks(c)),
        q_(count_rows(c) * c.heads * round_up(c.head_dim, 32) * c.words()) {
    kv_ = {nullptr, nullptr, c.block_size, c.groups, c.head_dim, CacheLayout::panels, c.cache};
    keys_.resize(block_order_.size() * c.groups * kv_.key_block() * c.words());
    values_.resize(block_order_.size() * c.groups * kv_.value_block() * c.words());
    kv_.keys = keys_.data(), kv_.values = values_.data();
    fill_cache();
    fill_tables();
    fill_queries();
  }

  AttentionParams params(void* out) const {
    return {.q = q_.data(),
            .rows = static_cast<int64_t>(positions_.size()),
            .heads = case_.heads,
            .positions = positions_.data(),
            .table_of = table_of_.data(),
            .tables = tables_.data(),
            .window = case_.window,
            .kv = kv_,
            .out = {out, case_.out, stride()},
            .score_scale = case_.score_scale,
            .score_cap = case_.score_cap,
            .sinks = case_.has_sinks ? sinks_.data() : nullptr};
  }
  PartialAttentionParams params(void* out, float* max, float* sum) const {
    return {.of = params(out), .max = max, .sum = sum};
  }
  int64_t stride() const { return activation_stride(case_.heads * case_.head_dim); }
  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }

 private:
  static int64_t count_rows(const Case& c) {
    int64_t rows = 0;
    for (const Sequence& s : c.sequences) rows += static_cast<int64_t>(s.positions.size());
    return rows;
  }
  static int blocks_of(const Case& c, const Sequence& s) {
    return *std::ranges::max_element(s.positions) / c.block_size + 1;
  }
  static int count_blocks(const Case& c) {
    int blocks = 3;  // that belong to nobody
    for (const Sequence& s : c.sequences) blocks += blocks_of(c, s);
    return blocks;
  }

  // An f32 has bits that a bf16 has not.
  void put(bf16_t* of, int64_t at, bf16_t x) {
    if (case_.cache == DType::f32)
      reinterpret_cast<float*>(of)[at] =
          std::bit_cast<float>(uint32_t{x} << 16 | (random_.next() & 0xffff));
    else
      of[at] = x;
  }

  void fill_cache() {
    const auto garbage = [&] {
      return static_cast<bf16_t>((random_.next() & 0x807f) |
                                 (random_.below(4) ? 254 : random_.below(255)) << 7);
    };
    const int blocks = static_cast<int>(block_order_.size());
    for (int block = 0; block < blocks; ++block)
      for (int g = 0; g < case_.groups; ++g)
        for (int slot = 0; slot < case_.block_size; ++slot)
          for (int e = 0; e < case_.head_dim; ++e) {
            put(kv_.keys, kv_.key_index(block, g, slot, e), garbage());
            put(kv_.values, kv_.value_index(block, g, slot, e), garbage());
          }
    std::iota(block_order_.begin(), block_order_.end(), 0);
    for (int i = blocks - 1; i > 0; --i)
      std::swap(block_order_[i], block_order_[random_.below(static_cast<uint32_t>(i + 1))]);
  }

  void fill_tables() {
    size_t next_block = 0;
    for (const Sequence& s : case_.sequences) {
      const int blocks = blocks_of(case_, s);
      const int last = *std::ranges::max_element(s.positions);
      const int lowest = *std::ranges::min_element(s.positions);
      const int first = case_.window > 0 ? std::max(0, lowest - case_.window + 1) : 0;
      std::vector<int32_t> table(blocks, INT32_MIN);
      for (int i = first / case_.block_size; i < blocks; ++i) table[i] = block_order_[next_block++];
      for (int slot = first; slot <= last; ++slot) {
        const int block = table[slot / case_.block_size], at = slot % case_.block_size;
        for (int g = 0; g < case_.groups; ++g)
          for (int e = 0; e < case_.head_dim; ++e) {
            put(kv_.keys, kv_.key_index(block, g, at, e), draw(random_, case_.data));
            put(kv_.values, kv_.value_index(block, g, at, e), draw(random_, case_.data));
          }
      }
      for (const int position : s.positions) {
        positions_.push_back(position);
        table_of_.push_back(static_cast<int32_t>(table_memory_.size()));
      }
      table_memory_.push_back(std::move(table));
    }
    for (const auto& table : table_memory_) tables_.push_back(table.data());
  }

  void fill_queries() {
    const int64_t padded = round_up(case_.head_dim, 32);
    std::ranges::fill(q_.span(), bf16_t{0});
    for (int64_t i = 0; i < q_.size() / case_.words(); ++i)
      if (i % padded < case_.head_dim) put(q_.data(), i, draw(random_, case_.data));
  }

  const Case case_;
  Random random_;
  std::vector<int32_t> block_order_;
  std::vector<bf16_t> keys_, values_;
  KvLayer kv_;
  std::vector<std::vector<int32_t>> table_memory_;
  std::vector<const int32_t*> tables_;
  std::vector<int32_t> positions_, table_of_;
  Guarded<bf16_t> q_;
  const std::vector<float> sinks_ = {0.5f,  100.0f, -2.0f, -100.0f, 0.0f,  3.0f,
                                     1e-3f, -0.25f, 7.0f,  1.0f,    -1.0f, 12.0f};  // of heads
};

template <typename T, typename Attention>
testing::AssertionResult agree(const Kernels& reference, const Case& c, const Inputs& inputs,
                               Attention attention) {
  const int64_t size = inputs.rows() * inputs.stride(), queries = inputs.rows() * c.heads;
  const Guarded<T> expected(size);
  const Guarded<float> expected_max(queries), expected_sum(queries);
  run_in_parts(1, [&](const Execution& on) {
    reference.partial_attention(
        inputs.params(expected.data(), expected_max.data(), expected_sum.data()), on);
  });
  for (const int parts : c.parts) {
    const Guarded<T> found(size);
    const Guarded<float> max(queries), sum(queries);
    run_in_parts(parts, [&](const Execution& on) {
      attention(inputs.params(found.data(), max.data(), sum.data()), on);
    });
    for (const auto& result :
         {same(expected, found), same(expected_max, max), same(expected_sum, sum)})
      if (!result) return testing::AssertionFailure() << parts << " parts: " << result.message();
  }
  return testing::AssertionSuccess();
}

template <typename Attention>
testing::AssertionResult agrees(const Kernels& reference, const Case& c, Attention attention) {
  const Inputs inputs(c);
  return c.out == DType::bf16 ? agree<bf16_t>(reference, c, inputs, attention)
                              : agree<float>(reference, c, inputs, attention);
}

class AttentionTest : public KernelTest {
 protected:
  testing::AssertionResult check(const Case& c) {
    return agrees(scalar(), c, kernels().partial_attention);
  }
};
INSTANTIATE_TEST_SUITE_P(Sets, AttentionTest, testing::ValuesIn(tested_sets()), set_name);

TEST_P(AttentionTest, HeadSizes) {
  for (const int head_dim :
       {2, 8, 16, 18, 30, 32, 34, 40, 64, 80, 96, 128, 160, 192, 256, 258, 576})
    for (const DType out : {DType::bf16, DType::f32})
      EXPECT_TRUE(check({.sequences = {{slots(125, 130)}, {{40}}},
                         .heads = 2,
                         .groups = 1,
                         .head_dim = head_dim,
                         .block_size = 32,
                         .out = out}))
          << "head size " << head_dim;
}

TEST_P(AttentionTest, Values) {
  for (const Data data : kAllData)
    for (const int head_dim : {32, 40, 128})
      EXPECT_TRUE(check({.sequences = {{slots(126, 130)}, {{259, 260, 17}}},
                         .head_dim = head_dim,
                         .data = data,
                         .out = DType::f32}))
          << "data " << static_cast<int>(data) << " head size " << head_dim;
}

TEST_P(AttentionTest, HeadsPerGroup) {
  for (const int groups : {1, 2})
    for (const int per_group : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 40})
      EXPECT_TRUE(check({.sequences = {{slots(126, 131)}, {{31}}},
                         .heads = groups * per_group,
                         .groups = groups,
                         .head_dim = 16,
                         .block_size = 32}))
          << per_group << " heads in " << groups << " groups";
}

// Queries, keys, values and weights of f32.
TEST_P(AttentionTest, Exact) {
  for (const int head_dim : {2, 18, 32, 40, 96, 128, 256})
    for (const Data data : kAllData)
      EXPECT_TRUE(check({.sequences = {{slots(120, 150)}, {{31}}, {{259, 260, 17}}},
                         .heads = 6,
                         .groups = 2,
                         .head_dim = head_dim,
                         .block_size = 32 << head_dim % 3,
                         .window = head_dim == 96 ? 70 : 0,
                         .data = data,
                         .out = DType::f32,
                         .score_cap = head_dim == 40 ? 5.0f : 0.0f,
                         .cache = DType::f32}))
          << "data " << static_cast<int>(data) << " head size " << head_dim;
}

// The entry that inference uses.
TEST_P(AttentionTest, WithoutTheSums) {
  const Case c = {.sequences = {{slots(126, 131)}, {{31}}}, .head_dim = 40, .out = DType::f32};
  const Operation<AttentionParams> plain = kernels().attention;
  EXPECT_TRUE(agrees(scalar(), c, [&](const PartialAttentionParams& p, const Execution& on) {
    plain(p.of, on);
    const Guarded<float> out(p.of.rows * p.of.out.stride);
    PartialAttentionParams with_sums = p;
    with_sums.of.out.data = out.data();
    kernels().partial_attention(with_sums, on);
  }));
}

// Every position around the edges of leaves, blocks, and splits.
TEST_P(AttentionTest, Positions) {
  for (const int block_size : {32, 64, 128})
    for (const int edge : {0, 16, 32, 64, 128, 256, 512}) {
      Case c = {.head_dim = 32, .block_size = block_size};
      for (int position = std::max(0, edge - 2); position < edge + 3; ++position)
        c.sequences.push_back({{position}});
      EXPECT_TRUE(check(c)) << "blocks of " << block_size << " at " << edge;
    }
}

// Block tables of more than 2^8 entries, and of more than 2^8 blocks of a window.
TEST_P(AttentionTest, LongContexts) {
  for (const int window : {0, 9000})
    EXPECT_TRUE(check({.sequences = {{{16383, 16384, 16385}}, {{32 * 517}}},
                       .heads = 2,
                       .groups = 1,
                       .head_dim = 8,
                       .block_size = 32,
                       .window = window}))
        << "window " << window;
}

TEST_P(AttentionTest, RowsAndParts) {
  for (const int rows :
       {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130}) {
    EXPECT_TRUE(check({.sequences = {{slots(0, rows)}},
                       .heads = 2,
                       .groups = 1,
                       .head_dim = 16,
                       .parts = {1, 2, 3, 8, 64}}))
        << rows << " rows from 0";
    EXPECT_TRUE(check({.sequences = {{slots(100, 100 + rows)}, {{9}}},
                       .heads = 3,
                       .groups = 1,
                       .head_dim = 8,
                       .parts = {1, 2, 5}}))
        << rows << " rows from 100";
  }
}

TEST_P(AttentionTest, NoRows) {
  EXPECT_TRUE(check({.sequences = {}}));
}

TEST_P(AttentionTest, Windows) {
  for (const int window : {1, 2, 15, 16, 31, 33, 64, 100, 127, 128, 129, 200, 300})
    for (const Data data : {Data::plain, Data::wide})
      EXPECT_TRUE(check({.sequences = {{slots(252, 260)}, {{5}}, {{127, 128, 129}}, {{400}}},
                         .heads = 2,
                         .groups = 1,
                         .head_dim = 16,
                         .block_size = 32 << window % 3,
                         .window = window,
                         .data = data}))
          << "window " << window;
}

// gpt-oss's: sinks that are all of a row's weight, none of it, and some.
TEST_P(AttentionTest, Sinks) {
  for (const int heads : {4, 12})
    for (const int window : {0, 30})
      for (const Data data : kAllData)
        EXPECT_TRUE(check({.sequences = {{slots(120, 140)}, {{5}}, {{260}}},
                           .heads = heads,
                           .window = window,
                           .data = data,
                           .has_sinks = true}))
            << heads << " heads, window " << window << " data " << static_cast<int>(data);
}

// Gemma 2's scores, and another factor of them.
TEST_P(AttentionTest, CappedScores) {
  for (const float cap : {0.0f, 0.5f, 50.0f})
    for (const double scale : {0.0, 0.02, 1.5})
      for (const Data data : kAllData)
        EXPECT_TRUE(check({.sequences = {{slots(120, 140)}, {{5}}, {{260}}},
                           .head_dim = 40,
                           .window = cap > 1 ? 30 : 0,
                           .data = data,
                           .score_scale = scale,
                           .score_cap = cap}))
            << "cap " << cap << " scale " << scale << " data " << static_cast<int>(data);
}

// Rows of one sequence far from each other, so that a split may be seen by some rows of a tile
// alone.
TEST_P(AttentionTest, ScatteredRows) {
  for (const int window : {0, 40, 200})
    for (const Data data : kAllData)
      EXPECT_TRUE(check({.sequences = {{{700, 3, 129, 128, 500, 127, 260, 0, 699}}, {{64, 640}}},
                         .heads = 3,
                         .groups = 1,
                         .head_dim = 16,
                         .block_size = 32,
                         .window = window,
                         .data = data}))
          << "window " << window << " data " << static_cast<int>(data);
}

TEST_P(AttentionTest, ManySequences) {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    Case c = {.heads = 4,
              .groups = 1 << random.below(3),
              .head_dim = static_cast<int>(8 * (1 + random.below(5))),
              .block_size = 32 << random.below(3),
              .window = random.below(3) ? 0 : static_cast<int>(1 + random.below(150)),
              .data = kAllData[random.below(5)],
              .parts = {1, 2, 5}};
    for (uint32_t left = 1 + random.below(12); left > 0; --left) {
      const int begin = static_cast<int>(random.below(300));
      const int rows = random.below(3) ? 1 : 1 + static_cast<int>(random.below(30));
      c.sequences.push_back({slots(begin, begin + rows)});
    }
    EXPECT_TRUE(check(c)) << "round " << round;
  }
}

// Numerics 4 once more, straight from the text, with two constants that are not the text's when
// `anchor` is not 0 or `ascending` is false.
void attention_by_the_text(const PartialAttentionParams& partial, int anchor, bool ascending) {
  const AttentionParams& p = partial.of;
  const int e = p.kv.head_dim;
  const float c = static_cast<float>(0x1.71547652b82fep+0 / std::sqrt(static_cast<double>(e)));
  for (int64_t t = 0; t < p.rows; ++t)
    for (int h = 0; h < p.heads; ++h) {
      const int g = h / (p.heads / p.kv.kv_heads), last = p.positions[t];
      const int first = p.window > 0 ? std::max(0, last - p.window + 1) : 0;
      const auto block = [&](int slot) { return p.tables[p.table_of[t]][slot / p.kv.block_size]; };
      std::vector<int> bases;
      for (int base = anchor - 128; base <= last; base += 128)
        if (base + 127 >= first) bases.push_back(base);
      if (!ascending) std::ranges::reverse(bases);
      float max = -std::numeric_limits<float>::infinity(), sum = 0.0f;
      std::vector<float> out(e, 0.0f);
      for (const int base : bases) {
        float d[128], weight[128] = {}, top = -std::numeric_limits<float>::infinity();
        bf16_t rounded[128], column[256];
        const auto is_valid = [&](int i) { return base + i >= first && base + i <= last; };
        for (int i = 0; i < 128; ++i) {
          if (!is_valid(i)) continue;
          const int at = (base + i) % p.kv.block_size;
          for (int k = 0; k < e; ++k)
            column[k] = p.kv.keys[p.kv.key_index(block(base + i), g, at, k)];
          d[i] = orders::dot(Order::portable, p.q + (t * p.heads + h) * round_up(e, 32), column, e);
          top = std::max(top, d[i]);
        }
        const float m = top * c;
        for (int i = 0; i < 128; ++i) {
          if (is_valid(i)) weight[i] = math::exp2(std::fma(d[i], c, -m));
          rounded[i] = f32_to_bf16(weight[i]);
        }
        const float merged = std::max(max, m);
        const float a = math::exp2(max - merged), b = math::exp2(m - merged);
        max = merged;
        sum = std::fma(sum, a, orders::sum64(weight) * b);
        for (int k = 0; k < e; ++k) {
          for (int i = 0; i < 128; ++i)
            column[i] = is_valid(i) ? p.kv.values[p.kv.value_index(block(base + i), g,
                                                                   (base + i) % p.kv.block_size, k)]
                                    : bf16_t{0};
          out[k] = std::fma(out[k], a, orders::dot(Order::portable, rounded, column, 128) * b);
        }
      }
      for (int k = 0; k < e; ++k)
        static_cast<float*>(p.out.data)[t * p.out.stride + h * e + k] = out[k] / sum;
      partial.max[t * p.heads + h] = max;
      partial.sum[t * p.heads + h] = sum;
    }
  for (int64_t t = 0; t < p.rows; ++t)
    for (int64_t i = p.heads * e; i < round_up(p.heads * e, 32); ++i)
      static_cast<float*>(p.out.data)[t * p.out.stride + i] = 0.0f;
}

TEST(AttentionControl, AnotherAnchorOrMergingOrderIsSeen) {
  const Kernels reference = select_kernels(Order::portable, "scalar");
  const Case c = {.sequences = {{slots(300, 310)}, {{140}}}, .head_dim = 32, .out = DType::f32};
  const auto with = [&](int anchor, bool ascending) {
    return agrees(reference, c, [=](const PartialAttentionParams& p, const Execution&) {
      attention_by_the_text(p, anchor, ascending);
    });
  };
  EXPECT_TRUE(with(0, true));
  EXPECT_FALSE(with(64, true));
  EXPECT_FALSE(with(32, true));
  EXPECT_FALSE(with(0, false));
}

TEST(AttentionControl, AnswersAreMostlyNumbers) {
  const Kernels reference = select_kernels(Order::portable, "scalar");
  for (const Data data : kAllData) {
    const Case c = {.sequences = {{slots(120, 135)}}, .data = data, .out = DType::f32};
    const Inputs inputs(c);
    const Guarded<float> out(inputs.rows() * inputs.stride());
    run_in_parts(1,
                 [&](const Execution& on) { reference.attention(inputs.params(out.data()), on); });
    int64_t numbers = 0, zeros = 0;
    for (int64_t t = 0; t < inputs.rows(); ++t)
      for (int i = 0; i < c.heads * c.head_dim; ++i) {
        numbers += !std::isnan(out[t * inputs.stride() + i]);
        zeros += out[t * inputs.stride() + i] == 0.0f;
      }
    const int64_t all = inputs.rows() * c.heads * c.head_dim;
    EXPECT_GT(numbers, data == Data::any ? all / 100 : all - 1) << static_cast<int>(data);
    if (data != Data::zeros) {
      EXPECT_LT(zeros, all / 2) << static_cast<int>(data);
    }
  }
}

}  // namespace
}  // namespace invar
