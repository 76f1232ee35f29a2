// Products of blocks as integers, of every instruction set, against the definition (numerics 2.3),
// bit by bit; and what the definition is made of.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/cpu/block_product.h"
#include "kernels/cpu/features.h"
#include "kernels/select.h"
#include "numerics/block_dot.h"
#include "random_blocks.h"

namespace invar {

namespace cpu {
void block_product_amx_emulated(const PanelProduct& p);
}  // namespace cpu

namespace {

struct Set {
  const char* name;
  bool (*is_supported)();
  cpu::RunProduct product;
};

void PrintTo(const Set& set, std::ostream* out) {
  *out << set.name;
}

constexpr Set kSets[] = {
    {"avx2", cpu::has_avx2, cpu::block_product_avx2},
    {"avx512vnni", cpu::has_avx512_vnni, cpu::block_product_avx512},
    {"amx", cpu::has_amx_int8, cpu::block_product_amx},
    {"amx_emulated", cpu::has_avx512_vnni, cpu::block_product_amx_emulated},
};

struct Case {
  int64_t rows, n, k;  // k as blocks of 32; those of 256 have eight times as many columns
  int split_k = 1, parts = 1;
  bool bias = false, accumulate = false;
};

constexpr Case kCases[] = {
    {1, 16, 32},
    {1, 100, 96, 1, 3, true},
    {2, 33, 256, 8, 2, false, true},
    {3, 48, 160, 1, 1, true, true},
    {5, 40, 128, 4},
    {16, 17, 64, 2, 4},
    {17, 50, 96},
    {33, 20, 64},
    {97, 33, 32},
    {300, 20, 64, 2, 3},
};

Case with_blocks_of(DType type, Case c) {
  c.k *= storage_of(type).block / 32;
  return c;
}

std::string describe(DType type, const Case& c) {
  return fmt::format("{}: rows {} n {} k {} runs {} parts {}", name_of(type), c.rows, c.n, c.k,
                     c.split_k, c.parts);
}

// Rows of every kind: some whose integers are the largest throughout, some not finite.
struct Rows {
  Rows(Random& random, const Case& c) : stride(activation_stride(c.k)), values(c.rows * stride) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const std::span<bf16_t> row{&values[t * stride], static_cast<size_t>(c.k)};
      if (t % 3 == 1)
        for (bf16_t& x : row) x = f32_to_bf16(t == 1 || random.below(4) ? 3.0f : -3.0f);
      else if (t % 3 == 2)
        fill_row(random, row);
      else
        for (bf16_t& x : row) x = f32_to_bf16(random.uniform());
    }
  }
  Activation view() const { return {values.data(), DType::bf16, stride}; }

  int64_t stride;
  Guarded<bf16_t> values;
};

std::vector<float> random_vector(Random& random, int64_t count) {
  std::vector<float> all(static_cast<size_t>(count));
  for (float& x : all) x = random.uniform();
  return all;
}

const Kernels& definition() {
  static const Kernels kernels = select_block_kernels("scalar");
  return kernels;
}

// `change`: a bit of the last integers, for the control.
testing::AssertionResult matmul_agrees(cpu::RunProduct product, DType type, const Case& c,
                                       bool change = false) {
  Random random(static_cast<uint64_t>(c.rows * 7919 + c.n * 104729 + c.k * 31 + c.split_k));
  const Rows x(random, c);
  const TwoFormsOfAMatrix w(random, type, c.n, c.k, 1);
  const std::vector<float> bias = random_vector(random, c.n);
  const int64_t stride = c.n + random.below(40);
  Guarded<float> expected(c.rows * stride), found(c.rows * stride);
  for (int64_t t = 0; t < c.rows; ++t)
    std::ranges::copy(random_vector(random, c.n), &expected[t * stride]);
  found.copy_from(expected);
  MatmulParams p{.x = x.view(),
                 .w = w.stored,
                 .rows = c.rows,
                 .split_k = c.split_k,
                 .bias = c.bias ? bias.data() : nullptr,
                 .accumulate = c.accumulate,
                 .y = expected.data(),
                 .y_stride = stride};
  run_in_parts(1, [&](const Execution& on) { definition().matmul(p, on); });
  p.y = found.data();
  if (change)
    for (int64_t i = 1; i <= 64; ++i) w.stored_bytes[w.stored.scales_at() - i] ^= 1;
  run_in_parts(c.parts, [&](const Execution& on) { cpu::matmul(product, p, false, on); });
  return same(expected, found);
}

testing::AssertionResult gated_agrees(cpu::RunProduct product, DType type, const Case& c) {
  Random random(static_cast<uint64_t>(c.rows * 7919 + c.n * 104729 + c.k * 31));
  const Rows x(random, c);
  const TwoFormsOfAMatrix w(random, type, c.n, c.k, 2);
  const std::vector<float> gate = random_vector(random, c.n), up = random_vector(random, c.n);
  const int64_t stride = activation_stride(c.n);
  Guarded<bf16_t> expected(c.rows * stride), found(c.rows * stride);
  GatedMatmulParams p{.x = x.view(),
                      .gate_up = w.stored,
                      .rows = c.rows,
                      .gate_bias = c.bias ? gate.data() : nullptr,
                      .up_bias = c.bias ? up.data() : nullptr,
                      .out = {expected.data(), DType::bf16, stride},
                      .curve = c.n % 3 ? Nonlinearity::silu : Nonlinearity::gelu_tanh};
  run_in_parts(1, [&](const Execution& on) { definition().gated_matmul(p, on); });
  p.out.data = found.data();
  run_in_parts(c.parts, [&](const Execution& on) { cpu::gated_matmul(product, p, nullptr, on); });
  return same(expected, found);
}

class BlockProducts : public ::testing::TestWithParam<Set> {
 protected:
  void SetUp() override {
    if (!GetParam().is_supported()) GTEST_SKIP() << "NOT RUN: no " << GetParam().name;
  }
};

TEST_P(BlockProducts, AreThoseOfTheDefinition) {
  for (const DType type : block_types())
    for (const Case& of_32 : kCases) {
      const Case c = with_blocks_of(type, of_32);
      EXPECT_TRUE(matmul_agrees(GetParam().product, type, c)) << describe(type, c);
      EXPECT_TRUE(gated_agrees(GetParam().product, type, c)) << describe(type, c);
    }
}

TEST_P(BlockProducts, NoticeABit) {
  for (const DType type : block_types())
    EXPECT_FALSE(matmul_agrees(GetParam().product, type, with_blocks_of(type, {4, 16, 64}), true))
        << name_of(type);
}

INSTANTIATE_TEST_SUITE_P(Sets, BlockProducts, ::testing::ValuesIn(kSets),
                         [](const auto& info) { return std::string(info.param.name); });

class BlockKernels : public KernelTest {};

// What the table of a set has is that product, and bf16 weights are multiplied as without it.
TEST_P(BlockKernels, HaveBlocksAndOtherWeights) {
  if (!is_supported(GetParam())) GTEST_SKIP() << "an emulated set has no table";
  const Kernels found = select_block_kernels(GetParam());
  const Case c{7, 48, 512};
  Random random(3);
  const Rows x(random, c);
  const TwoFormsOfAMatrix w(random, DType::q4_k, c.n, c.k, 1);
  const auto product = [&](const Kernels& kernels, const Matrix& matrix) {
    Guarded<float> y(c.rows * c.n);
    const MatmulParams p{.x = x.view(),
                         .w = matrix,
                         .rows = c.rows,
                         .split_k = 1,
                         .bias = nullptr,
                         .accumulate = false,
                         .y = y.data(),
                         .y_stride = c.n};
    run_in_parts(1, [&](const Execution& on) { kernels.matmul(p, on); });
    return std::vector<float>(y.span().begin(), y.span().end());
  };
  const auto are_same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return same_bits(a, b);
  };
  EXPECT_TRUE(are_same(product(definition(), w.stored), product(found, w.stored)));
  EXPECT_TRUE(are_same(product(kernels(), w.twin), product(found, w.twin)));
  EXPECT_FALSE(are_same(product(definition(), w.stored), product(found, w.twin)));
  EXPECT_EQ(found.qkv_product, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Sets, BlockKernels, ::testing::ValuesIn(tested_sets()), set_name);

// An element is its integer times the factor of its part, and what is added (numerics 2.3).
TEST(BlockParts, AreWhatElementsAreMadeOf) {
  const ScopedFlushToZero flush;
  Random random(5);
  for (const DType type : block_types()) {
    const StorageType& storage = storage_of(type);
    for (int tries = 0; tries < 200; ++tries) {
      uint8_t block[kMaxBlockBytes];
      bf16_t elements[kMaxBlock];
      random_block(random, storage, block, elements);
      const uint8_t* values = block + storage.scale_bytes;
      for (int i = 0; i < storage.block; ++i) {
        const BlockPart part = block_part(type, block, i / part_size(type));
        if (type == DType::mxfp4 && part.factor == 0) continue;  // it would be subnormal
        const float scaled = part.factor * static_cast<float>(block_integer(type, values, i));
        const float found = adds_something(type) ? scaled + part.plus : scaled;
        ASSERT_EQ(found, block_element(type, values, block, i)) << name_of(type) << i;
        ASSERT_LE(std::abs(block_integer(type, values, i)), 128) << name_of(type);
      }
    }
  }
}

// The example of numerics 2.3.
TEST(BlockDot, OfTheExample) {
  const ScopedFlushToZero flush;
  bf16_t x[32] = {f32_to_bf16(254), f32_to_bf16(3)};
  int8_t q[32], w[32] = {3};
  RunScale scale;
  orders::quantise_columns(x, 32, q, &scale);
  EXPECT_EQ(scale.scale, 2.0f);
  EXPECT_EQ(scale.sum, 129);
  const BlockPart part{0.5f, -2.0f};
  EXPECT_EQ(orders::block_dot(q, &scale, {32, true, w, &part}, 32, 1), -135.0f);
  EXPECT_EQ(orders::block_dot(q, &scale, {32, false, w, &part}, 32, 1), 381.0f);
}

// A chain goes on from part to part, a tree adds runs: with terms that f32 cannot hold together the
// two differ.
TEST(BlockDot, HasChainsAndTrees) {
  const ScopedFlushToZero flush;
  constexpr float kLarge = 0x1p24f;
  std::vector<int8_t> x(128), w(128);
  std::vector<RunScale> scales(4, RunScale{1, 0});
  for (int64_t b = 0; b < 4; ++b) x[b * 32] = w[b * 32] = 1;
  const BlockPart parts[4] = {{kLarge}, {1}, {1}, {-kLarge}};
  const orders::PartsOfARow row{32, false, w.data(), parts};
  EXPECT_EQ(orders::block_dot(x.data(), scales.data(), row, 128, 1), 0.0f);
  EXPECT_EQ(orders::block_dot(x.data(), scales.data(), row, 128, 2), 1.0f);
}

// Behind a row there may be nothing.
TEST(BlockDot, ReadsNothingBehindARow) {
  const ScopedFlushToZero flush;
  constexpr int64_t kColumns = 512;
  const Guarded<int8_t> x(kColumns), w(kColumns);
  const Guarded<RunScale> scales(kColumns / 32);
  const Guarded<BlockPart> parts(kColumns / 32);
  std::ranges::fill(x.span(), int8_t{1});
  std::ranges::fill(w.span(), int8_t{2});
  std::ranges::fill(scales.span(), RunScale{1, 32});
  std::ranges::fill(parts.span(), BlockPart{1, -1});
  for (const int runs : {1, 2, 4, 8})
    EXPECT_EQ(orders::block_dot(x.data(), scales.data(), {32, true, w.data(), parts.data()},
                                kColumns, runs),
              static_cast<float>(kColumns))
        << runs;
}

}  // namespace
}  // namespace invar
