// Products of experts, each with some of the rows, and the sum of a row's experts, of every
// instruction set against the scalar reference, bit by bit.
#include <algorithm>

#include "kernel_check.h"
#include "kernels/pack.h"
#include "kernels/select.h"

namespace invar {
namespace {

struct Case {
  int64_t rows;
  int32_t experts, chosen;
  int64_t d, f;  // widths of a row, of an expert
  int parts = 1;
  bool bias = false;
};

constexpr Case kCases[] = {{1, 8, 2, 64, 40},
                           {1, 128, 8, 96, 33, 3, true},
                           {5, 6, 6, 33, 96, 2},
                           {40, 12, 3, 64, 80, 5, true},
                           {130, 4, 1, 48, 100, 7},
                           {64, 3, 2, 320, 48, 16},
                           {300, 16, 4, 64, 64, 2, true}};

// A stack of an expert's matrices, single ones or gated pairs.
struct Stack {
  Matrix w;
  Guarded<bf16_t> values;

  Stack(Random& random, int64_t n, int64_t k, int64_t experts, int matrices)
      : w{.n = n, .k = k, .count = experts * matrices}, values(w.elements()) {
    std::ranges::fill(values.span(), bf16_t{0});
    w.data = values.data();
    std::vector<bf16_t> row(static_cast<size_t>(k));
    for (int64_t e = 0; e < experts; ++e) {
      const Matrix one = w.part(e * matrices, matrices);
      for (int64_t i = 0; i < n; ++i)
        for (int m = 0; m < matrices; ++m) {
          fill_row(random, std::span(row));
          pack_rows(one, row.data(), k, i, 1, {m * kPanelWidth, matrices},
                    const_cast<void*>(one.data));
        }
    }
  }
};

std::vector<float> numbers(Random& random, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = random.uniform() * 3;
  return x;
}

// Rows of d elements, each of which chooses experts.
struct Rows {
  std::vector<float> logits, weights;
  std::vector<int32_t> ids, begin, place, rows_of;
  Guarded<bf16_t> values, sorted;
  int64_t stride;

  Rows(Random& random, const Case& c, const Kernels& kernels)
      : logits(numbers(random, c.rows * c.experts)),
        weights(static_cast<size_t>(c.rows * c.chosen)),
        ids(weights.size()),
        begin(static_cast<size_t>(c.experts) + 1),
        place(weights.size()),
        rows_of(weights.size()),
        values(c.rows * activation_stride(c.d)),
        sorted(c.rows * c.chosen * activation_stride(c.d)),
        stride(activation_stride(c.d)) {
    for (int64_t t = 0; t < c.rows; ++t) {
      fill_row(random, values.span().subspan(t * stride, c.d));
      std::fill_n(&values[t * stride + c.d], round_up(c.d, kLeafPad) - c.d, bf16_t{0});
    }
    run_in_parts(c.parts, [&](const Execution& on) {
      kernels.route({.how = {.experts = c.experts, .chosen = c.chosen, .renormalised = true},
                     .logits = logits.data(),
                     .stride = c.experts,
                     .bias = nullptr,
                     .rows = c.rows,
                     .ids = ids.data(),
                     .weights = weights.data()},
                    on);
    });
    run_in_parts(c.parts, [&](const Execution& on) {
      kernels.sort_rows({.ids = ids.data(),
                         .rows = c.rows,
                         .chosen = c.chosen,
                         .experts = c.experts,
                         .begin = begin.data(),
                         .place = place.data(),
                         .rows_of = rows_of.data()},
                        on);
    });
    run_in_parts(c.parts, [&](const Execution& on) {
      kernels.gather_rows({.x = {values.data(), DType::bf16, stride},
                           .width = c.d,
                           .rows_of = rows_of.data(),
                           .begin = begin.data(),
                           .experts = c.experts,
                           .most_rows = c.rows * c.chosen,
                           .out = {sorted.data(), DType::bf16, stride}},
                          on);
    });
  }
};

class Experts : public KernelTest {};

TEST_P(Experts, ProductsHaveTheBitsOfTheReference) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.rows);
    Random random(static_cast<uint64_t>(c.rows));
    const Rows rows(random, c, scalar());
    const int64_t pairs = c.rows * c.chosen, gated_stride = activation_stride(c.f);
    const Stack gate_up(random, c.f, c.d, c.experts, 2), down(random, c.d, c.f, c.experts, 1);
    const std::vector<float> f_bias = numbers(random, c.experts * c.f),
                             d_bias = numbers(random, c.experts * c.d);
    const Guarded<bf16_t> expected(pairs * gated_stride), found(pairs * gated_stride);
    const Guarded<float> expected_y(pairs * c.d), found_y(pairs * c.d);
    const auto run = [&](const Kernels& k, const Guarded<bf16_t>& out, const Guarded<float>& y) {
      run_in_parts(c.parts, [&](const Execution& on) {
        k.expert_gated_matmul({.each = {.x = {rows.sorted.data(), DType::bf16, rows.stride},
                                        .gate_up = gate_up.w,
                                        .rows = pairs,
                                        .gate_bias = c.bias ? f_bias.data() : nullptr,
                                        .up_bias = c.bias ? f_bias.data() : nullptr,
                                        .out = {out.data(), DType::bf16, gated_stride}},
                               .begin = rows.begin.data(),
                               .matmul = k.gated_matmul},
                              on);
      });
      run_in_parts(c.parts, [&](const Execution& on) {
        k.expert_matmul({.each = {.x = {expected.data(), DType::bf16, gated_stride},
                                  .w = down.w,
                                  .rows = pairs,
                                  .split_k = 1,
                                  .bias = c.bias ? d_bias.data() : nullptr,
                                  .accumulate = false,
                                  .y = y.data(),
                                  .y_stride = c.d},
                         .begin = rows.begin.data(),
                         .matmul = k.matmul},
                        on);
      });
    };
    run(scalar(), expected, expected_y);
    run(kernels(), found, found_y);
    EXPECT_TRUE(same(expected, found));
    EXPECT_TRUE(same(expected_y, found_y));
  }
}

TEST_P(Experts, SumsHaveTheBitsOfTheReference) {
  for (const Case& c : kCases)
    for (const bool is_bf16 : {false, true}) {
      SCOPED_TRACE(c.rows);
      Random random(static_cast<uint64_t>(c.rows) + 7);
      const Rows rows(random, c, scalar());
      const int64_t pairs = c.rows * c.chosen, stride = round_up(c.d, kLeafPad);
      const Guarded<bf16_t> halves(pairs * stride);
      const Guarded<float> y(pairs * stride), shared(c.rows * stride);
      for (int64_t t = 0; t < pairs; ++t) {
        fill_row(random, halves.span().subspan(t * stride, c.d));
        fill_row(random, y.span().subspan(t * stride, c.d));
      }
      for (int64_t t = 0; t < c.rows; ++t) fill_row(random, shared.span().subspan(t * stride, c.d));
      const Guarded<float> expected(c.rows * c.d), found(c.rows * c.d);
      for (int64_t i = 0; i < c.rows * c.d; ++i) expected[i] = found[i] = random.uniform();
      const auto run = [&](const Kernels& k, const Guarded<float>& h) {
        run_in_parts(c.parts, [&](const Execution& on) {
          k.combine({.y = is_bf16 ? Activation{halves.data(), DType::bf16, stride}
                                  : Activation{y.data(), DType::f32, stride},
                     .rounds = c.bias && !is_bf16,
                     .place = rows.place.data(),
                     .weights = rows.weights.data(),
                     .chosen = c.chosen,
                     .shared = c.bias ? shared.data() : nullptr,
                     .shared_stride = stride,
                     .gate = c.bias ? rows.logits.data() : nullptr,
                     .gate_stride = c.experts,
                     .rows = c.rows,
                     .width = c.d,
                     .hidden = h.data(),
                     .scale = c.bias ? 0.22f : 1.0f},
                    on);
        });
      };
      run(scalar(), expected);
      run(kernels(), found);
      EXPECT_TRUE(same(expected, found));
    }
}

INSTANTIATE_TEST_SUITE_P(Sets, Experts, ::testing::ValuesIn(tested_sets()), set_name);

}  // namespace
}  // namespace invar
