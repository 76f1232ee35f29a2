// Matrix products of every instruction set against the scalar reference, bit by bit.
#include <fmt/format.h>

#include <algorithm>

#include "kernel_check.h"
#include "kernels/select.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
  bool bias = false;
  bool accumulate = false;  // of a plain product
  int parts = 1;
  DType type = DType::bf16;
};

std::string describe(const Case& c) {
  return fmt::format("rows {} n {} k {} runs {} bias {} accumulate {} parts {} {}", c.rows, c.n,
                     c.k, c.split_k, c.bias, c.accumulate, c.parts, name_of(c.type));
}

// Activations of one type. Columns past the padded width and the memory after the last row stay
// stale or out of bounds.
template <typename T>
struct Rows {
  Rows(Random& random, int64_t rows, int64_t k)
      : stride(activation_stride(k)),
        values((rows - 1) * activation_stride(k) + round_up(k, kLeafPad)) {
    for (int64_t t = 0; t < rows; ++t) {
      fill_row(random, values.span().subspan(t * stride, k));
      std::fill_n(&values[t * stride + k], round_up(k, kLeafPad) - k, T{0});
    }
  }
  Activation view() const {
    return {values.data(), sizeof(T) == 2 ? DType::bf16 : DType::f32, stride};
  }
  int64_t stride;
  Guarded<T> values;
};

// `matrices` packed matrices with panels in turn.
template <typename T>
struct Weight {
  Weight(Random& random, int64_t n, int64_t k, int matrices)
      : packed{.type = sizeof(T) == 2 ? DType::bf16 : DType::f32,
               .n = n,
               .k = k,
               .count = matrices},
        values(packed.elements()) {
    packed.data = values.data();
    std::fill(values.span().begin(), values.span().end(), T{0});
    std::vector<T> row(k);
    for (int64_t output = 0; output < n; ++output)
      for (int m = 0; m < matrices; ++m) {
        fill_row(random, std::span<T>(row));
        const int64_t at = output / 16 * 16 * matrices + m * 16 + output % 16;
        for (int64_t i = 0; i < k; ++i)
          values[sizeof(T) == 2 ? packed_index_bf16(at, i, k) : packed_index_f32(at, i, k)] =
              row[i];
      }
  }
  Matrix packed;
  Guarded<T> values;
};

std::vector<float> random_vector(Random& random, int64_t size) {
  std::vector<float> v(size);
  for (float& x : v) x = random.uniform();
  return v;
}

// A copy that ends at a guard block.
struct Bias {
  Bias(Random& random, int64_t n) : values(n) {
    std::ranges::copy(random_vector(random, n), values.data());
  }
  Guarded<float> values;
};

using Matmul = void (*)(const MatmulParams&, const Execution&);
using GatedMatmul = void (*)(const GatedMatmulParams&, const Execution&);

// A gated product, and the same with its dots kept.
struct Gated {
  GatedMatmul plain;
  Operation<KeptGatedMatmulParams> kept = nullptr;

  void operator()(const GatedMatmulParams& p, float* dots, const Execution& on) const {
    dots ? kept({p, dots}, on) : plain(p, on);
  }
};

template <typename T>
::testing::AssertionResult check_matmul_of(Matmul expected, Matmul tested, const Case& c) {
  Random random(c.rows * 7919 + c.n * 104729 + c.k * 31 + c.split_k);
  const Rows<T> x(random, c.rows, c.k);
  const Weight<T> w(random, c.n, c.k, 1);
  const Bias bias(random, c.n);
  const int64_t stride = c.n % 16 ? c.n + random.below(40) : c.n + 16 * random.below(3);
  Guarded<float> y(c.rows * stride), reference(c.rows * stride);
  if (c.accumulate)
    for (int64_t t = 0; t < c.rows; ++t)
      std::ranges::copy(random_vector(random, c.n), &y[t * stride]);
  reference.copy_from(y);
  MatmulParams p{.x = x.view(),
                 .w = w.packed,
                 .rows = c.rows,
                 .split_k = c.split_k,
                 .bias = c.bias ? bias.values.data() : nullptr,
                 .accumulate = c.accumulate,
                 .y = reference.data(),
                 .y_stride = stride};
  run_in_parts(1, [&](const Execution& on) { expected(p, on); });
  p.y = y.data();
  run_in_parts(c.parts, [&](const Execution& on) { tested(p, on); });
  if (!y.guards_are_intact()) return ::testing::AssertionFailure() << "wrote around the output";
  return same_bits(reference.span(), y.span());
}

::testing::AssertionResult check_matmul(Matmul expected, Matmul tested, const Case& c) {
  return c.type == DType::bf16 ? check_matmul_of<bf16_t>(expected, tested, c)
                               : check_matmul_of<float>(expected, tested, c);
}

template <typename T>
::testing::AssertionResult check_gated_of(const Gated& expected, const Gated& tested,
                                          const Case& c) {
  Random random(c.rows * 7919 + c.n * 104729 + c.k * 31);
  const Rows<T> x(random, c.rows, c.k);
  const Weight<T> w(random, c.n, c.k, 2);
  const Bias gate(random, c.n), up(random, c.n);
  const int64_t stride = activation_stride(c.n);
  Guarded<T> y(c.rows * stride), reference(c.rows * stride);
  const int64_t columns = 2 * round_up(c.n, kPanelWidth);
  std::vector<float> dots(c.rows * columns), all_dots(dots);
  GatedMatmulParams p{.x = x.view(),
                      .gate_up = w.packed,
                      .rows = c.rows,
                      .gate_bias = c.bias ? gate.values.data() : nullptr,
                      .up_bias = c.bias ? up.values.data() : nullptr,
                      .out = {reference.data(), c.type, stride},
                      .curve = c.k % 3 == 0   ? Nonlinearity::gelu_tanh
                               : c.k % 3 == 1 ? Nonlinearity::clamped
                                              : Nonlinearity::silu};
  const bool keeps = c.accumulate;
  run_in_parts(1, [&](const Execution& on) { expected(p, keeps ? all_dots.data() : nullptr, on); });
  p.out.data = y.data();
  run_in_parts(c.parts, [&](const Execution& on) { tested(p, keeps ? dots.data() : nullptr, on); });
  if (!y.guards_are_intact()) return ::testing::AssertionFailure() << "wrote around the output";
  for (int64_t i = 0; i < std::ssize(dots); ++i)  // pad columns may hold anything
    if (i % columns / 32 * 16 + i % 16 >= c.n) dots[i] = all_dots[i];
  if (!same_bits(all_dots, dots)) return ::testing::AssertionFailure() << "other dots";
  return same_bits(reference.span(), y.span());
}

::testing::AssertionResult check_gated(const Gated& expected, const Gated& tested, const Case& c) {
  return c.type == DType::bf16 ? check_gated_of<bf16_t>(expected, tested, c)
                               : check_gated_of<float>(expected, tested, c);
}

// Row counts around every edge of a tile or block, outputs around panels and groups of them, inner
// sizes around leaves and stretches, in random company; the same cases for every set.
std::vector<Case> cases(DType type) {
  constexpr int64_t kRows[] = {1,  2,  3,   4,   5,   6,   7,   8,   9,   10,  11, 12,
                               13, 14, 15,  16,  17,  31,  32,  33,  48,  63,  64, 65,
                               96, 97, 127, 128, 129, 132, 133, 191, 255, 256, 257};
  constexpr int64_t kOutputs[] = {1, 15, 16, 17, 31, 32, 33, 47, 48, 65, 80, 127, 128, 129, 145};
  constexpr int64_t kInner[] = {1, 2, 31, 32, 33, 63, 64, 96, 100, 127, 129, 160, 256, 289, 417};
  Random random(1);
  std::vector<Case> all;
  for (const int64_t rows : kRows)
    for (int i = 0; i < (rows < 20 ? 8 : 2); ++i) {
      Case c{.rows = rows, .n = kOutputs[random.below(15)], .k = kInner[random.below(15)]};
      c.split_k = 1 << random.below(4);
      if (c.split_k > 1) c.k = 32 * c.split_k * (1 + random.below(rows < 100 ? 7 : 2));
      c.bias = random.below(2);
      c.accumulate = random.below(2);
      c.parts = 1 + static_cast<int>(random.below(9));
      c.type = type;
      all.push_back(c);
    }
  // An output too large for caches.
  all.push_back({.rows = 257, .n = 2048, .k = 32, .parts = 1, .type = type});
  // Sizes of a real layer, many blocks of rows, and long chains that leave few rows to a block.
  for (Case c :
       {Case{.rows = 1, .n = 200, .k = 3072, .split_k = 8, .accumulate = true, .parts = 2},
        Case{.rows = 2, .n = 96, .k = 1024, .bias = true, .parts = 2},
        Case{.rows = 40, .n = 20, .k = 3072, .split_k = 8, .accumulate = true, .parts = 2},
        Case{.rows = 512, .n = 33, .k = 96},
        Case{.rows = 513, .n = 16, .k = 128, .split_k = 4, .parts = 3},
        Case{.rows = 1025, .n = 33, .k = 64, .parts = 2}, Case{.rows = 201, .n = 5, .k = 8192},
        Case{.rows = 300, .n = 20, .k = 64, .bias = true, .parts = 16},
        Case{.rows = 540, .n = 600, .k = 64, .parts = 16},
        // Whole tiles: an odd panel, and chunks.
        Case{.rows = 304, .n = 432, .k = 801}, Case{.rows = 144, .n = 48, .k = 768},
        // So many that chains wait in memory: the same, and several groups.
        Case{.rows = 1040, .n = 400, .k = 801}, Case{.rows = 1024, .n = 48, .k = 768},
        // The same with trees.
        Case{.rows = 1040, .n = 80, .k = 256, .split_k = 4, .accumulate = true},
        Case{.rows = 1040, .n = 48, .k = 768, .split_k = 8, .bias = true, .parts = 2}}) {
    c.type = type;
    all.push_back(c);
  }
  return all;
}

class MatmulTest : public KernelTest {
 protected:
  Gated scalar_gated() const { return {scalar().gated_matmul, scalar_training().gated_matmul}; }
  Gated gated() const { return {kernels().gated_matmul, training_kernels().gated_matmul}; }
};

TEST_P(MatmulTest, Bf16) {
  for (const Case& c : cases(DType::bf16))
    EXPECT_TRUE(check_matmul(scalar().matmul, kernels().matmul, c)) << describe(c);
}

TEST_P(MatmulTest, F32) {
  for (const Case& c : cases(DType::f32))
    EXPECT_TRUE(check_matmul(scalar().matmul, kernels().matmul, c)) << describe(c);
}

TEST_P(MatmulTest, GatedBf16) {
  for (const Case& c : cases(DType::bf16))
    EXPECT_TRUE(check_gated(scalar_gated(), gated(), c)) << describe(c);
}

TEST_P(MatmulTest, GatedF32) {
  for (const Case& c : cases(DType::f32))
    EXPECT_TRUE(check_gated(scalar_gated(), gated(), c)) << describe(c);
}

// Chains that go on from what the output holds: one leaf at a time or all at once.
TEST_P(MatmulTest, ChainsGoOn) {
  for (const Case& c : cases(DType::bf16)) {
    Random random(c.rows * 7919 + c.n * 104729 + c.k * 31);
    const int64_t stride = c.n + random.below(40);
    const Rows<bf16_t> x(random, c.rows, c.k);
    const Weight<bf16_t> w(random, c.n, c.k, 1);
    Guarded<float> once(c.rows * stride), twice(c.rows * stride), reference(c.rows * stride);
    for (int64_t t = 0; t < c.rows; ++t)
      std::ranges::copy(random_vector(random, c.n), &once[t * stride]);
    twice.copy_from(once);
    reference.copy_from(once);
    MatmulParams p{.x = x.view(),
                   .w = w.packed,
                   .rows = c.rows,
                   .split_k = 1,
                   .y = reference.data(),
                   .y_stride = stride};
    run_in_parts(1, [&](const Execution& on) { scalar_training().extend_matmul(p, on); });
    p.y = once.data();
    run_in_parts(c.parts, [&](const Execution& on) { training_kernels().extend_matmul(p, on); });
    EXPECT_TRUE(once.guards_are_intact());
    EXPECT_TRUE(same_bits(reference.span(), once.span())) << describe(c);
    if (c.k % 64) continue;

    // The same columns in two halves; a panel's halves are put side by side.
    const int64_t half = c.k / 2;
    p.y = twice.data();
    for (const int64_t first : {int64_t{0}, half}) {
      Matrix part_of_w = w.packed;
      part_of_w.k = half;
      Guarded<bf16_t> panels(part_of_w.elements());
      for (int64_t i = 0; i < panels.size(); ++i) {
        const int64_t panel = i / (half * 16), in_panel = i % (half * 16);
        panels[i] = w.values[panel * c.k * 16 + first * 16 + in_panel];
      }
      part_of_w.data = panels.data();
      p.w = part_of_w;
      p.x.data = const_cast<bf16_t*>(x.values.data()) + first;
      run_in_parts(c.parts, [&](const Execution& on) { training_kernels().extend_matmul(p, on); });
    }
    EXPECT_TRUE(same_bits(reference.span(), twice.span())) << describe(c);
  }
}

TEST_P(MatmulTest, NoRows) {
  const ScopedFlushToZero flush;
  Random random(1);
  const Weight<bf16_t> w(random, 40, 64, 2);
  for (int i = 0; i < 3; ++i) {
    kernels().matmul({.x = {nullptr, DType::bf16, 96},
                      .w = w.packed,
                      .rows = 0,
                      .split_k = 1,
                      .bias = nullptr,
                      .accumulate = false,
                      .y = nullptr,
                      .y_stride = 40},
                     Execution{.share = {i, 3}});
    kernels().gated_matmul({.x = {nullptr, DType::bf16, 96},
                            .gate_up = w.packed,
                            .rows = 0,
                            .gate_bias = nullptr,
                            .up_bias = nullptr,
                            .out = {nullptr, DType::bf16, 96}},
                           Execution{.share = {i, 3}});
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, MatmulTest, ::testing::ValuesIn(tested_sets()), set_name);

// ---- The check itself: each of these wrong kernels must fail it.

const Kernels& right() {
  static const Kernels kernels = select_kernels(Order::portable, "scalar");
  return kernels;
}

constexpr Case kControl{.rows = 5, .n = 40, .k = 96, .parts = 2};

TEST(KernelCheck, AcceptsTheReference) {
  const Matmul same = [](const MatmulParams& p, const Execution& on) { right().matmul(p, on); };
  EXPECT_TRUE(check_matmul(right().matmul, same, kControl));
}

// The second and the third leaf exchanged: the same products, added in another order. (The first
// two would prove nothing: (0 + a) + b is (0 + b) + a.)
void exchange_leaves(const MatmulParams& p, const Execution& on) {
  std::vector<bf16_t> x(static_cast<bf16_t*>(p.x.data),
                        static_cast<bf16_t*>(p.x.data) + (p.rows - 1) * p.x.stride + 96);
  const bf16_t* from = static_cast<const bf16_t*>(p.w.data);
  std::vector<bf16_t> w(from, from + p.w.elements());
  for (int64_t t = 0; t < p.rows; ++t)
    std::swap_ranges(&x[t * p.x.stride + 32], &x[t * p.x.stride + 64], &x[t * p.x.stride + 64]);
  for (int64_t q = 0; q < p.w.panels(); ++q) {
    bf16_t* leaves = &w[q * p.w.panel_elements()];
    std::swap_ranges(leaves + 512, leaves + 1024, leaves + 1024);
  }
  MatmulParams exchanged = p;
  exchanged.x.data = x.data();
  exchanged.w.data = w.data();
  right().matmul(exchanged, on);
}

TEST(KernelCheck, SeesAnotherOrder) {
  EXPECT_FALSE(
      check_matmul(right().matmul, exchange_leaves, {.rows = 20, .n = 40, .k = 96, .parts = 2}));
}

TEST(KernelCheck, SeesAnotherCutIntoRuns) {
  const Matmul one_run = [](const MatmulParams& p, const Execution& on) {
    MatmulParams q = p;
    q.split_k = 1;
    right().matmul(q, on);
  };
  EXPECT_FALSE(
      check_matmul(right().matmul, one_run, {.rows = 20, .n = 40, .k = 256, .split_k = 4}));
}

TEST(KernelCheck, SeesAMissingRow) {
  const Matmul missing = [](const MatmulParams& p, const Execution& on) {
    MatmulParams q = p;
    --q.rows;
    right().matmul(q, on);
  };
  EXPECT_FALSE(check_matmul(right().matmul, missing, kControl));
}

TEST(KernelCheck, SeesAWriteBesideARow) {
  const Matmul beside = [](const MatmulParams& p, const Execution& on) {
    right().matmul(p, on);
    p.y[-1] = 1.0f;
  };
  EXPECT_FALSE(check_matmul(right().matmul, beside, kControl));
  const GatedMatmul past = [](const GatedMatmulParams& p, const Execution& on) {
    right().gated_matmul(p, on);
    if (on.share.index == 0) static_cast<bf16_t*>(p.out.data)[round_up(p.gate_up.n, 32)] = 0;
  };
  EXPECT_FALSE(check_gated({right().gated_matmul}, {past}, kControl));
}

TEST(KernelCheck, SeesPadColumnsLeftStale) {
  const GatedMatmul stale = [](const GatedMatmulParams& p, const Execution& on) {
    right().gated_matmul(p, on);
    static_cast<bf16_t*>(p.out.data)[p.gate_up.n] = 0xffff;
  };
  EXPECT_FALSE(check_gated({right().gated_matmul}, {stale}, kControl));
}

// A test whose answers are all NaN or zero would prove little.
TEST(KernelCheck, AnswersAreMostlyNumbers) {
  Random random(3);
  const Rows<bf16_t> x(random, 64, 96);
  const Weight<bf16_t> w(random, 64, 96, 1);
  std::vector<float> y(64 * 64);
  run_in_parts(1, [&](const Execution& on) {
    right().matmul({.x = x.view(),
                    .w = w.packed,
                    .rows = 64,
                    .split_k = 1,
                    .bias = nullptr,
                    .accumulate = false,
                    .y = y.data(),
                    .y_stride = 64},
                   on);
  });
  const auto numbers = std::ranges::count_if(y, [](float v) { return v != 0 && v - v == 0; });
  EXPECT_GT(numbers, std::ssize(y) / 3);
}

}  // namespace
}  // namespace invar
