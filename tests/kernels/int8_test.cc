// Products of integers of every instruction set against the definition (numerics 2.1), bit by bit.
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "kernels/cpu/features.h"
#include "kernels/cpu/int8.h"
#include "kernels/reference/reference.h"
#include "kernels/select.h"
#include "numerics/int8.h"
#include "random_int8.h"

namespace invar {

namespace cpu {
void int8_product_amx_emulated(const PanelProduct& p);
void int8_product_avxvnni_emulated(const PanelProduct& p);  // by the instruction of AVX-512
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
    {"avx2", cpu::has_avx2, cpu::int8_product_avx2},
    {"avxvnni", cpu::has_avxvnni, cpu::int8_product_avxvnni},
    {"avxvnni_emulated", cpu::has_avx512_vnni, cpu::int8_product_avxvnni_emulated},
    {"avx512vnni", cpu::has_avx512_vnni, cpu::int8_product_avx512},
    {"amx", cpu::has_amx_int8, cpu::int8_product_amx},
    {"amx_emulated", cpu::has_avx512, cpu::int8_product_amx_emulated},
};

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
  bool bias = false, accumulate = false;
  int parts = 1;
};

std::string describe(const Case& c) {
  return fmt::format("rows {} n {} k {} runs {} bias {} accumulate {} parts {}", c.rows, c.n, c.k,
                     c.split_k, c.bias, c.accumulate, c.parts);
}

// `change`: a bit of the last integers, for the control.
::testing::AssertionResult matmul_agrees(cpu::RunProduct product, const Case& c, bool change) {
  Random random(c.rows * 7919 + c.n * 104729 + c.k * 31 + c.split_k);
  const Int8Rows x(random, c.rows, c.k, c.split_k);
  const Int8Weight w(random, c.n, c.k, 1);
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
  run_in_parts(1, [&](const Execution& on) { reference::int8_matmul(p, on); });
  p.y = found.data();
  if (change) w.bytes[(c.k - 1) / 4 * 64 + (c.k - 1) % 4] ^= 1;
  run_in_parts(c.parts, [&](const Execution& on) { cpu::matmul(product, p, false, on); });
  return same(expected, found);
}

::testing::AssertionResult gated_agrees(cpu::RunProduct product, const Case& c) {
  Random random(c.rows * 7919 + c.n * 104729 + c.k * 31);
  const Int8Rows x(random, c.rows, c.k, 1);
  const Int8Weight w(random, c.n, c.k, 2);
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
  run_in_parts(1, [&](const Execution& on) { reference::int8_gated_matmul(p, on); });
  p.out.data = found.data();
  run_in_parts(c.parts, [&](const Execution& on) { cpu::gated_matmul(product, p, nullptr, on); });
  return same(expected, found);
}

std::vector<Case> cases() {
  constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 15, 16, 17, 31, 32, 33, 48, 65, 97};
  constexpr int64_t kOutputs[] = {1, 15, 16, 17, 31, 32, 33, 48, 65, 80, 127, 128};
  constexpr int64_t kInner[] = {1, 2, 31, 32, 33, 63, 64, 96, 127, 160, 289, 896};
  Random random(1);
  std::vector<Case> all;
  for (const int64_t rows : kRows)
    for (int i = 0; i < 6; ++i) {
      Case c{.rows = rows, .n = kOutputs[random.below(12)], .k = kInner[random.below(12)]};
      c.split_k = 1 << random.below(4);
      if (c.split_k > 1) c.k = 32 * c.split_k * (1 + random.below(5));
      c.bias = random.below(2);
      c.accumulate = random.below(2);
      c.parts = 1 + static_cast<int>(random.below(5));
      all.push_back(c);
    }
  all.push_back({.rows = 300, .n = 40, .k = 256, .split_k = 8, .accumulate = true, .parts = 3});
  all.push_back({.rows = 2, .n = 20, .k = 60000, .parts = 2});
  return all;
}

class Int8Test : public ::testing::TestWithParam<Set> {
 protected:
  void SetUp() override {
    if (!GetParam().is_supported()) GTEST_SKIP() << "NOT RUN: this machine has no such set";
  }
};

TEST_P(Int8Test, Products) {
  for (const Case& c : cases()) {
    EXPECT_TRUE(matmul_agrees(GetParam().product, c, false)) << describe(c);
    EXPECT_TRUE(gated_agrees(GetParam().product, c)) << describe(c);
  }
}

TEST_P(Int8Test, SeesAChangedInteger) {
  EXPECT_FALSE(matmul_agrees(GetParam().product, {.rows = 20, .n = 40, .k = 96}, true));
  EXPECT_FALSE(
      matmul_agrees(GetParam().product, {.rows = 3, .n = 40, .k = 512, .split_k = 8}, true));
}

INSTANTIATE_TEST_SUITE_P(Sets, Int8Test, ::testing::ValuesIn(kSets),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- Quantising

struct Quantised {
  Quantised(int64_t rows, int64_t k, int split_k)
      : stride(int8_stride(k, WeightLayout::panels)),
        values(rows * stride),
        scales(rows * split_k) {}
  Activation view() const { return {values.data(), DType::i8, stride, scales.data()}; }

  int64_t stride;
  Guarded<int8_t> values;
  Guarded<RunScale> scales;
};

bool same_scales(const Guarded<RunScale>& a, const Guarded<RunScale>& b) {
  for (int64_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i].scale) && std::isnan(b[i].scale);
    if (a[i].sum != b[i].sum) return false;
    if (!both_nan && std::bit_cast<uint32_t>(a[i].scale) != std::bit_cast<uint32_t>(b[i].scale))
      return false;
  }
  return a.guards_are_intact() && b.guards_are_intact();
}

TEST(Int8, QuantisesAsTheDefinition) {
  Random random(3);
  for (const int64_t k : {1, 31, 32, 33, 96, 320, 895, 1024})
    for (const int split_k : {1, 2, 4, 8}) {
      if (split_k > 1 && k % (32 * split_k)) continue;
      const int64_t rows = 40, stride = activation_stride(k);
      Guarded<bf16_t> x(rows * stride);
      for (int64_t t = 0; t < rows; ++t) {
        fill_row(random, x.span().subspan(t * stride, k));
        std::fill_n(&x[t * stride + k], stride - k, bf16_t{0});
      }
      Quantised expected(rows, k, split_k), found(rows, k, split_k);
      QuantiseParams p{.x = {x.data(), DType::bf16, stride},
                       .rows = rows,
                       .width = k,
                       .split_k = split_k,
                       .out = expected.view()};
      run_in_parts(1, [&](const Execution& on) { reference::quantise(p, on); });
      p.out = found.view();
      run_in_parts(3, [&](const Execution& on) { cpu::quantise(p, on); });
      EXPECT_TRUE(same(expected.values, found.values)) << k << " in " << split_k;
      EXPECT_TRUE(same_scales(expected.scales, found.scales)) << k << " in " << split_k;
      std::fill_n(x.data(), k, f32_to_bf16(3.0f));  // the control: another row
      run_in_parts(1, [&](const Execution& on) { cpu::quantise(p, on); });
      EXPECT_FALSE(same_scales(expected.scales, found.scales)) << k << " in " << split_k;
    }
}

// The definition by its words.
TEST(Int8, QuantisesByTheWords) {
  const ScopedFlushToZero flush;
  const auto bf16 = [](float x) { return f32_to_bf16(x); };
  int8_t q[3];
  const bf16_t x[] = {bf16(-254.0f), bf16(3.0f), bf16(5.0f)};
  RunScale s = orders::quantise_run(x, 3, q);
  EXPECT_EQ(s.scale, 2.0f);
  EXPECT_EQ(q[0], -127);
  EXPECT_EQ(q[1], 2);  // 1.5, to even
  EXPECT_EQ(q[2], 2);  // 2.5, to even
  EXPECT_EQ(s.sum, -123);
  const bf16_t zeros[] = {0, 0x8000, 1};  // a subnormal counts as zero
  s = orders::quantise_run(zeros, 3, q);
  EXPECT_EQ(s.scale, 1.0f);
  EXPECT_EQ(q[2], 0);
  const bf16_t infinite[] = {bf16(1.0f), 0x7f80, 0};
  s = orders::quantise_run(infinite, 3, q);
  EXPECT_TRUE(std::isnan(s.scale));
  EXPECT_EQ(q[0], 0);
}

TEST(Int8, DotByTheWords) {
  const ScopedFlushToZero flush;
  int8_t x[64], w[64];
  for (int i = 0; i < 64; ++i) x[i] = i < 32 ? 127 : -1, w[i] = i < 32 ? -128 : 3;
  const RunScale scales[] = {{0.5f, 32 * 127}, {0.25f, -32}};
  const float first = -32.0f * 127 * 128 * (0.5f * 2.0f), second = -96.0f * (0.25f * 2.0f);
  EXPECT_EQ(orders::int8_dot(x, scales, w, 2.0f, 64, 2), first + second);
}

}  // namespace
}  // namespace invar
