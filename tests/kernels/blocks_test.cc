// What is stored in blocks against the bf16 tensor that it stands for: every operation that reads
// weights, every storage type with blocks, every instruction set, both orders.
#include <fmt/format.h>

#include <cmath>

#include "kernels/block_places.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/panel_product.h"
#include "kernels/select.h"
#include "random_blocks.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int split_k = 1, parts = 1;
};

// k is whole leaves; blocks may be larger.
constexpr Case kCases[] = {
    {1, 16, 256},          {1, 100, 512, 1, 3},    {2, 33, 1024, 8, 2}, {3, 48, 256},
    {5, 40, 768, 8},       {7, 16, 512, 2, 2},     {13, 50, 256},       {20, 64, 2048, 4, 2},
    {40, 80, 256, 1, 2},   {97, 33, 512},          {140, 24, 2304, 1},  {300, 20, 1536, 8},
    {1040, 48, 256, 1, 2}, {1040, 32, 1024, 2, 3}, {16, 48, 256},       {17, 33, 768, 4},
    {32, 40, 512, 2, 2},   {33, 16, 768, 4},
};

std::string describe(DType type, const Case& c) {
  return fmt::format("{}: rows {} n {} k {} runs {}", name_of(type), c.rows, c.n, c.k, c.split_k);
}

struct Rows {
  Rows(Random& random, const Case& c) : stride(activation_stride(c.k)), values(c.rows * stride) {
    std::memset(values.data(), 0, values.size() * sizeof(bf16_t));
    for (int64_t t = 0; t < c.rows; ++t)
      for (int64_t i = 0; i < c.k; ++i) values[t * stride + i] = f32_to_bf16(random.uniform());
  }
  Activation view() const { return {values.data(), DType::bf16, stride}; }

  int64_t stride;
  Guarded<bf16_t> values;
};

// y of both forms.
testing::AssertionResult matmul_agrees(const Kernels& kernels, const Case& c, const Rows& x,
                                       const Matrix& stored, const Matrix& twin) {
  Guarded<float> expected(c.rows * c.n), found(c.rows * c.n);
  MatmulParams p{.x = x.view(),
                 .w = twin,
                 .rows = c.rows,
                 .split_k = c.split_k,
                 .bias = nullptr,
                 .accumulate = false,
                 .y = expected.data(),
                 .y_stride = c.n};
  run_in_parts(c.parts, [&](const Execution& on) { kernels.matmul(p, on); });
  p.w = stored;
  p.y = found.data();
  run_in_parts(c.parts, [&](const Execution& on) { kernels.matmul(p, on); });
  return same(expected, found);
}

testing::AssertionResult gated_agrees(const Kernels& kernels, const Case& c, const Rows& x,
                                      const TwoFormsOfAMatrix& w) {
  const int64_t stride = activation_stride(c.n);
  Guarded<bf16_t> expected(c.rows * stride), found(c.rows * stride);
  GatedMatmulParams p{.x = x.view(),
                      .gate_up = w.twin,
                      .rows = c.rows,
                      .gate_bias = nullptr,
                      .up_bias = nullptr,
                      .out = {expected.data(), DType::bf16, stride}};
  run_in_parts(c.parts, [&](const Execution& on) { kernels.gated_matmul(p, on); });
  p.gate_up = w.stored;
  p.out.data = found.data();
  run_in_parts(c.parts, [&](const Execution& on) { kernels.gated_matmul(p, on); });
  return same(expected, found);
}

void check_products(const Kernels& kernels, const Case& c, DType type) {
  Random random(c.rows * 7919 + c.n * 31 + c.k);
  const Rows x(random, c);
  const TwoFormsOfAMatrix w(random, type, c.n, c.k, 1);
  EXPECT_TRUE(matmul_agrees(kernels, c, x, w.stored, w.twin)) << describe(type, c);
  const TwoFormsOfAMatrix pair(random, type, c.n, c.k, 2);
  EXPECT_TRUE(gated_agrees(kernels, c, x, pair)) << describe(type, c);

  // The control: a bit of the last values of a panel's outputs.
  for (int64_t i = 1; i <= 64; ++i) w.stored_bytes[w.stored.scales_at() - i] ^= 0x40;
  EXPECT_FALSE(matmul_agrees(kernels, c, x, w.stored, w.twin)) << describe(type, c);
}

class BlocksTest : public KernelTest {};

// Cases that the types take turns in, but for one of each size of block, which see all.
bool is_turn_of(DType type, const Case& c) {
  if (type == DType::q8_0 || type == DType::q4_k) return true;
  return (&c - kCases + static_cast<int>(type)) % 3 == 0;
}

TEST_P(BlocksTest, ProductsOfOrderPortable) {
  for (const DType type : block_types())
    for (const Case& c : kCases)
      if (is_turn_of(type, c)) check_products(kernels(), c, type);
}

TEST_P(BlocksTest, ProductsOfOrderHopper) {
  if (!is_supported(GetParam())) GTEST_SKIP() << "an emulated set has no order hopper";
  const Kernels hopper = select_kernels(Order::hopper, GetParam());
  for (const DType type : block_types())
    for (const Case& c : kCases)
      if (c.rows < 30 && is_turn_of(type, c)) check_products(hopper, c, type);
}

TEST_P(BlocksTest, Embed) {
  const std::vector<int32_t> tokens = {0, 49, 7, 7, 33};
  for (const DType type : block_types())
    for (const WeightLayout layout : {WeightLayout::rows, WeightLayout::panels}) {
      Random random(1);
      const TwoFormsOfAMatrix w(random, type, 50, 768, 1, layout);
      const Guarded<float> expected(5 * 768), found(5 * 768);
      EmbedParams p{tokens.data(), w.twin, 5, expected.data()};
      run_in_parts(2, [&](const Execution& on) { kernels().embed(p, on); });
      p.table = w.stored;
      p.out = found.data();
      run_in_parts(2, [&](const Execution& on) { kernels().embed(p, on); });
      EXPECT_TRUE(same(expected, found)) << name_of(type);
    }
}

TEST(Blocks, ProductsOfTheReference) {
  for (const Order order : {Order::portable, Order::hopper})
    for (const DType type : block_types())
      for (const Case& c : kCases)
        if (c.rows < 6) check_products(select_kernels(order, "scalar"), c, type);
}

INSTANTIATE_TEST_SUITE_P(Sets, BlocksTest, ::testing::ValuesIn(tested_sets()), set_name);

// What a set unpacks in registers: a set may have several forms, of which one machine uses one.
struct BlockForm {
  const char* name;
  bool is_supported;
  cpu::BlockFunctions (*functions)(DType);
};

// One leaf after the other of `rows` rows by the twin of a panel (numerics 1).
std::vector<float> chains_of(const std::vector<float>& x, int64_t rows, const Matrix& twin) {
  const auto* w = static_cast<const bf16_t*>(twin.data);
  std::vector<float> chains(rows * 16);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < 16; ++n)
      for (int64_t leaf = 0; leaf < twin.k / 32; ++leaf) {
        float sums[2] = {};
        for (int64_t j = 0; j < 16; ++j)
          for (int64_t odd = 0; odd < 2; ++odd)
            sums[odd] = std::fma(
                x[r * twin.k + leaf * 32 + 2 * j + odd],
                bf16_to_f32(w[packed_index_bf16(n, leaf * 32 + 2 * j + odd, twin.k)]), sums[odd]);
        chains[r * 16 + n] += sums[0] + sums[1];
      }
  return chains;
}

TEST(Blocks, AreUnpackedByEveryFormOfASet) {
  const BlockForm forms[] = {{"avx2", cpu::has_avx2(), cpu::blocks_avx2},
                             {"avx512", cpu::has_avx512(), cpu::blocks_avx512},
                             {"avx512bf16", cpu::has_avx512_bf16(), cpu::blocks_avx512bf16}};
  const ScopedFlushToZero flush;
  Random random(11);
  constexpr int64_t kWidth = 768, kLeaves = kWidth / 32;
  std::vector<float> x(8 * kWidth);
  for (float& value : x) value = bf16_to_f32(f32_to_bf16(random.uniform()));
  for (const DType type : block_types()) {
    const TwoFormsOfAMatrix w(random, type, 16, kWidth, 1);
    const char* values = static_cast<const char*>(w.stored.data);
    const auto* twin = static_cast<const bf16_t*>(w.twin.data);
    for (const BlockForm& form : forms) {
      if (!form.is_supported) continue;
      const cpu::BlockFunctions functions = form.functions(type);
      Guarded<bf16_t> panel(kWidth * 16);
      functions.expand(values, values + w.stored.scales_at(), 0, kLeaves,
                       reinterpret_cast<char*>(panel.data()));
      for (int64_t i = 0; i < kWidth * 16; ++i)  // zeros may have another sign
        ASSERT_EQ(bf16_to_f32(panel[i]), bf16_to_f32(twin[i])) << form.name << name_of(type) << i;
      for (int64_t rows = 1; rows <= functions.rows; rows *= 2) {
        std::vector<float> chains(rows * 16);
        functions.multiply({x.data(),
                            kWidth,
                            rows,
                            values,
                            values + w.stored.scales_at(),
                            0,
                            kLeaves,
                            true,
                            chains.data(),
                            {}});
        EXPECT_EQ(chains, chains_of(x, rows, w.twin)) << form.name << name_of(type) << rows;
      }
    }
  }
}

// The definition by its words: an f16 scale and then 32 integers.
TEST(Blocks, Q8_0) {
  uint8_t block[34] = {0x00, 0xb8};  // -0.5
  for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<uint8_t>(i * 8 - 128);
  float elements[32];
  expand_block(storage_of(DType::q8_0), block + 2, block, elements);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(elements[i], -0.5f * static_cast<float>(i * 8 - 128));
}

// Every scale and code by the words of the page, and as every set unpacks them.
TEST(Blocks, Mxfp4) {
  constexpr double kSteps[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const ScopedFlushToZero flush;
  for (int s = 0; s < 256; ++s) {
    uint8_t block[18] = {static_cast<uint8_t>(s), 0x77};
    for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(i | (15 - i) << 4);
    float elements[32];
    expand_block(storage_of(DType::mxfp4), block + 2, block, elements);
    for (int i = 0; i < 32 && s < 255; ++i) {
      const int code = i < 16 ? i : 31 - i;
      const double value = std::ldexp(kSteps[code % 8], s - 127);
      const double kept = value < 0x1p-126 ? 0.0 : value >= 0x1p128 ? INFINITY : value;
      EXPECT_EQ(elements[i], code < 8 ? kept : -kept) << s << " " << code;
      EXPECT_EQ(std::signbit(elements[i]), code >= 8) << s << " " << code;
    }
    EXPECT_EQ(std::isnan(elements[0]), s == 255);
    if (s > 252) continue;
    Matrix w{.type = DType::mxfp4, .n = 16, .k = 32};
    std::vector<uint8_t> packed(w.bytes());
    for (int n = 0; n < 16; ++n) pack_rows(w, block, 32, n, 1, {}, packed.data());
    using Functions = cpu::BlockFunctions (*)(DType);
    for (const auto& [is_supported, functions] :
         {std::pair<bool, Functions>{cpu::has_avx2(), cpu::blocks_avx2},
          {cpu::has_avx512(), cpu::blocks_avx512},
          {cpu::has_avx512_bf16(), cpu::blocks_avx512bf16}}) {
      if (!is_supported) continue;
      alignas(64) bf16_t panel[32 * 16];
      const auto* values = reinterpret_cast<const char*>(packed.data());
      functions(DType::mxfp4)
          .expand(values, values + w.scales_at(), 0, 1, reinterpret_cast<char*>(panel));
      for (int i = 0; i < 32 * 16; ++i)
        ASSERT_EQ(panel[i], f32_to_bf16(elements[i / 32 * 2 + i % 2])) << s << " " << i;
    }
  }
}

// What says that a block is finite by its scales, against its elements.
TEST(Blocks, AreFiniteWhereTheirScalesAre) {
  Random random(3);
  int infinite = 0;
  for (const DType type : block_types()) {
    const StorageType& storage = storage_of(type);
    for (int n = 0; n < 2000; ++n) {
      uint8_t block[kMaxBlockBytes];
      for (int i = 0; i < storage.bytes(); ++i) block[i] = static_cast<uint8_t>(random.next());
      if (n % 4 == 0)  // largest exponents
        for (int i = 0; i < storage.halves; ++i) block[storage.halves_at + 2 * i + 1] |= 0x78;
      float elements[kMaxBlock];
      expand_block(storage, block + storage.scale_bytes, block, elements);
      const bool is_finite = std::all_of(elements, elements + storage.block, [](float x) {
        return (f32_to_bf16(x) & 0x7f80) != 0x7f80;
      });
      if (storage.halves == 0) {  // the other way round nothing is said
        EXPECT_TRUE(is_finite || !is_finite_block(type, block)) << name_of(type);
        continue;
      }
      // A factor of zero hides nothing: 0 * infinity is no number.
      EXPECT_EQ(is_finite_block(type, block), is_finite) << name_of(type);
      infinite += !is_finite;
    }
  }
  EXPECT_GT(infinite, 100);
}

}  // namespace
}  // namespace invar
