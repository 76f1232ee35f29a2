// Products of e4m3 numbers, in groups and by rows, on the vector sets against the definition
// (numerics 2.2, 2.5), bit by bit.
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "kernels/reference/reference.h"
#include "kernels/select.h"
#include "numerics/e4m3.h"
#include "numerics/fp8.h"
#include "random_fp8.h"
#include "random_int8.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
  bool bias = false, accumulate = false;
  int parts = 1;
  DType type = DType::e4m3;
};

std::string describe(const Case& c) {
  return fmt::format("{} rows {} n {} k {} runs {} bias {} accumulate {} parts {}", name_of(c.type),
                     c.rows, c.n, c.k, c.split_k, c.bias, c.accumulate, c.parts);
}

// Rows as the definition makes them numbers.
struct Rows {
  Rows(Random& random, const Case& c)
      : type(c.type),
        stride(int8_stride(c.k, WeightLayout::panels)),
        values(c.rows * stride),
        scales(c.rows * scales_of_row(c.type, c.k, c.split_k)) {
    const int64_t x_stride = activation_stride(c.k);
    Guarded<bf16_t> x(c.rows * x_stride);
    for (int64_t t = 0; t < c.rows; ++t) {
      fill_row(random, x.span().subspan(t * x_stride, c.k));
      if (t == 1) x[x_stride + c.k - 1] = 0x7f80;
    }
    std::memset(scales.data(), 0, static_cast<size_t>(scales.size()) * sizeof(RunScale));
    const QuantiseParams p{.x = {x.data(), DType::bf16, x_stride},
                           .rows = c.rows,
                           .width = c.k,
                           .split_k = c.split_k,
                           .out = view()};
    run_in_parts(1, [&](const Execution& on) { reference::quantise_fp8(p, on); });
  }
  Activation view() const { return {values.data(), type, stride, scales.data()}; }

  DType type;
  int64_t stride;
  Guarded<uint8_t> values;
  Guarded<RunScale> scales;
};

// `change`: a bit of the first output's last number, for the control.
::testing::AssertionResult matmul_agrees(const Kernels& table, const Case& c, bool change) {
  Random random(c.rows * 7919 + c.n * 104729 + c.k * 31 + c.split_k);
  const Rows x(random, c);
  const Fp8Weight w(random, c.n, c.k, 1, WeightLayout::panels, c.type);
  const std::vector<float> bias = random_vector(random, c.n);
  const int64_t stride = c.n + random.below(40);
  Guarded<float> expected(c.rows * stride), found(c.rows * stride);
  for (int64_t t = 0; t < c.rows; ++t)
    std::ranges::copy(random_vector(random, c.n), &expected[t * stride]);
  found.copy_from(expected);
  MatmulParams p{.x = x.view(),
                 .w = w.packed,
                 .rows = c.rows,
                 .split_k = c.split_k,
                 .bias = c.bias ? bias.data() : nullptr,
                 .accumulate = c.accumulate,
                 .y = expected.data(),
                 .y_stride = stride};
  run_in_parts(1, [&](const Execution& on) { reference::fp8_matmul(p, on); });
  p.y = found.data();
  if (change) w.bytes[(c.k - 128) * 16] ^= 0x40;
  run_in_parts(c.parts, [&](const Execution& on) { table.fp8_matmul(p, on); });
  return same(expected, found);
}

::testing::AssertionResult gated_agrees(const Kernels& table, const Case& c) {
  Random random(c.rows * 7919 + c.n * 104729 + c.k * 31);
  Case whole = c;
  whole.split_k = 1;
  const Rows x(random, whole);
  const Fp8Weight w(random, c.n, c.k, 2, WeightLayout::panels, c.type);
  const std::vector<float> gate = random_vector(random, c.n), up = random_vector(random, c.n);
  const int64_t stride = activation_stride(c.n);
  Guarded<bf16_t> expected(c.rows * stride), found(c.rows * stride);
  GatedMatmulParams p{.x = x.view(),
                      .gate_up = w.packed,
                      .rows = c.rows,
                      .gate_bias = c.bias ? gate.data() : nullptr,
                      .up_bias = c.bias ? up.data() : nullptr,
                      .out = {expected.data(), DType::bf16, stride},
                      .curve = c.k % 3 ? Nonlinearity::silu : Nonlinearity::gelu_tanh};
  run_in_parts(1, [&](const Execution& on) { reference::fp8_gated_matmul(p, on); });
  p.out.data = found.data();
  run_in_parts(c.parts, [&](const Execution& on) { table.fp8_gated_matmul(p, on); });
  return same(expected, found);
}

class Fp8Products : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!is_supported(GetParam())) GTEST_SKIP() << "NOT RUN: this machine has no such set";
    table_ = select_kernels(Order::portable, GetParam());
  }
  Kernels table_{};
};
INSTANTIATE_TEST_SUITE_P(Sets, Fp8Products, ::testing::Values("avx2", "avx512"),
                         [](const auto& info) { return info.param; });

TEST_P(Fp8Products, AreThoseOfTheDefinition) {
  Random random(1);
  for (const int64_t rows : {1, 2, 3, 15, 16, 17, 33})
    for (int i = 0; i < 3; ++i) {
      Case c{.rows = rows, .n = 1 + random.below(170), .k = 128 * (1 + random.below(4))};
      c.split_k = 1 << random.below(4);
      if (c.k % (32 * c.split_k)) c.split_k = 4;  // of 32, 64, 96 and 128 columns, and more
      c.bias = random.below(2);
      c.accumulate = random.below(2);
      c.parts = 1 + static_cast<int>(random.below(4));
      for (const DType type : {DType::e4m3, DType::e4m3_row}) {
        c.type = type;
        EXPECT_TRUE(matmul_agrees(table_, c, false)) << describe(c);
        EXPECT_TRUE(gated_agrees(table_, c)) << describe(c);
      }
    }
}

TEST_P(Fp8Products, SeeAChangedNumber) {
  EXPECT_FALSE(matmul_agrees(table_, {.rows = 20, .n = 40, .k = 128}, true));
  EXPECT_FALSE(matmul_agrees(table_, {.rows = 3, .n = 40, .k = 512, .split_k = 8}, true));
  EXPECT_FALSE(
      matmul_agrees(table_, {.rows = 20, .n = 40, .k = 512, .type = DType::e4m3_row}, true));
}

// Chains of many steps, which lose bits that those of a group keep.
TEST_P(Fp8Products, AreThoseOfTheDefinitionInLongRuns) {
  for (const int64_t rows : {1, 17})
    for (const int split_k : {1, 8}) {
      const Case c{.rows = rows, .n = 33, .k = 12288, .split_k = split_k, .type = DType::e4m3_row};
      EXPECT_TRUE(matmul_agrees(table_, c, false)) << describe(c);
    }
}

// The definition by its words.
TEST(Fp8, QuantisesByTheWords) {
  const ScopedFlushToZero flush;
  std::vector<bf16_t> x(160, 0);
  std::vector<uint8_t> q(160);
  std::vector<RunScale> scales(4);
  x[0] = f32_to_bf16(-896.0f), x[1] = f32_to_bf16(3.0f), x[130] = f32_to_bf16(7.0f);
  orders::quantise_fp8_run(x.data(), 0, 160, 0, q.data(), scales.data());
  EXPECT_EQ(scales[0].scale, 2.0f);           // 896 / 448
  EXPECT_EQ(scales[1].scale, 7.0f / 448.0f);  // its own group of 32 columns
  EXPECT_EQ(q[0], e4m3::from_f32(-448.0f));
  EXPECT_EQ(q[1], e4m3::from_f32(1.5f));
  EXPECT_EQ(q[130], e4m3::from_f32(448.0f));
  // The scale is a quotient, but no number is: 336 and a little, where a quotient were a tie.
  std::fill(x.begin(), x.end(), bf16_t{0});
  x[0] = f32_to_bf16(1.078125f), x[1] = f32_to_bf16(0.80859375f);
  orders::quantise_fp8_run(x.data(), 0, 160, 0, q.data(), scales.data());
  EXPECT_EQ(scales[0].scale, 0x1.3b6db6p-9f);
  EXPECT_EQ(q[1], e4m3::from_f32(352.0f));
  std::fill(x.begin(), x.end(), bf16_t{0});
  for (const bf16_t none : {0x7fc0, 0x7f80, 0xff80}) {  // NaN and infinities
    x[3] = none, x[4] = f32_to_bf16(2.0f);
    orders::quantise_fp8_run(x.data(), 0, 160, 0, q.data(), scales.data());
    EXPECT_TRUE(std::isnan(scales[0].scale));
    EXPECT_EQ(scales[1].scale, 1.0f);  // of zeros
    EXPECT_EQ(q[3], 0);
    EXPECT_EQ(q[4], 0);
  }
}
TEST(Fp8, QuantisesRowsByTheWords) {
  const ScopedFlushToZero flush;
  std::vector<bf16_t> x(160, 0);
  std::vector<uint8_t> q(160);
  x[0] = f32_to_bf16(-896.0f), x[1] = f32_to_bf16(3.0f), x[130] = f32_to_bf16(7.0f);
  EXPECT_EQ(orders::quantise_fp8_row(x.data(), 160, q.data()).scale, 2.0f);  // 896 / 448
  EXPECT_EQ(q[0], e4m3::from_f32(-448.0f));
  EXPECT_EQ(q[1], e4m3::from_f32(1.5f));
  EXPECT_EQ(q[130], e4m3::from_f32(3.5f));  // no group has a scale of its own
  x[131] = 0x7f80;
  EXPECT_TRUE(std::isnan(orders::quantise_fp8_row(x.data(), 160, q.data()).scale));
  EXPECT_EQ(q[130], 0);
}

}  // namespace
}  // namespace invar
