// Recurrences by chunk (numerics 4.4): whatever the pieces that rows come in, the bits are the same
// and near to the plain recurrence in f64; and every instruction set computes the definition.
#include "kernels/recurrent.h"

#include <fmt/format.h>

#include <memory>

#include "kernels/select.h"
#include "recurrent_layer.h"

namespace invar {
namespace {

constexpr RecurrentShape kDelta{Recurrence::delta, 1, 2, 48, 40};
constexpr RecurrentShape kChannels{Recurrence::channel_delta, 2, 2, 40, 48};
constexpr RecurrentShape kStateSpace{Recurrence::state_space, 1, 3, 64, 24};

RecurrentShape exact(RecurrentShape shape) {
  shape.type = DType::f32;
  return shape;
}

struct Kind {
  RecurrentShape shape;
  Order order;
};
const std::vector<Kind> kKinds = {
    {kDelta, Order::portable},      {kDelta, Order::hopper},
    {kDelta, Order::pair},          {exact(kDelta), Order::portable},
    {kChannels, Order::portable},   {kChannels, Order::hopper},
    {kChannels, Order::pair},       {exact(kChannels), Order::portable},
    {kStateSpace, Order::portable}, {kStateSpace, Order::hopper},
    {kStateSpace, Order::pair},     {exact(kStateSpace), Order::portable}};

constexpr float kSkips[] = {0.5f, -1.25f, 2.0f, 0.75f};  // of all heads that a shape has
const float* skips_of(const RecurrentShape& s) {
  return s.kind == Recurrence::state_space ? kSkips : nullptr;
}

// What a sequence leaves and gives when it comes in pieces of the given sizes.
struct Result {
  Result(const RecurrentShape& shape, int64_t rows)
      : memory(std::make_unique<RecurrentMemory>(shape, static_cast<int>(rows / kChunkSlots) + 1,
                                                 static_cast<int>(rows / kChunkSlots) + 2)),
        out(static_cast<size_t>(rows * shape.heads * shape.value_size)) {}
  std::unique_ptr<RecurrentMemory> memory;
  std::vector<float> out;
};

Result run_in_pieces(const Kind& kind, const RecurrentInputs& inputs, int64_t rows,
                     const std::function<int64_t(int64_t)>& piece_at, const char* set = "auto") {
  const Kernels kernels = select_kernels(kind.order, set);
  Result run(kind.shape, rows);
  for (int64_t begin = 0, end; begin < rows; begin = end) {
    end = std::min(rows, begin + piece_at(begin));
    RecurrentStep step(kind.shape, {plain_table(static_cast<int32_t>(rows / kChunkSlots) + 1)});
    for (int64_t t = begin; t < end; ++t) step.add(plain_row(t));
    step.end_sequence();
    EXPECT_TRUE(step.run(kernels, run.memory->layer, inputs, skips_of(kind.shape), run.out, 2));
  }
  return run;
}

// The recurrence row by row, as engines decode: S moves at every row. In f64, or as a foil in f32.
template <typename T>
std::vector<T> plain_recurrence(const RecurrentShape& s, const RecurrentInputs& in, int64_t rows) {
  const int64_t r = s.key_size, n = s.value_size, per_key = s.heads / s.key_heads;
  const int64_t channels = s.kind == Recurrence::channel_delta ? r : 1;
  std::vector<T> out(static_cast<size_t>(rows * s.heads * n));
  for (int64_t h = 0; h < s.heads; ++h) {
    std::vector<T> state(static_cast<size_t>(r * n)), q(r), k(r);
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t at = (t * s.key_heads + h / per_key) * r;
      T sums[2] = {};
      for (int64_t d = 0; d < r; ++d) {
        q[d] = in.queries[at + d], k[d] = in.keys[at + d];
        sums[0] += q[d] * q[d], sums[1] += k[d] * k[d];
      }
      for (int64_t d = 0; d < r && s.kind != Recurrence::state_space; ++d) {
        q[d] /= std::sqrt(sums[0] + T(1e-6)) * std::sqrt(T(r));
        k[d] /= std::sqrt(sums[1] + T(1e-6));
      }
      if (s.type == DType::bf16)  // q and k are what they are in both
        for (std::vector<T>* x : {&q, &k})
          for (T& y : *x) y = bf16_to_f32(f32_to_bf16(static_cast<float>(y)));
      for (int64_t i = 0; i < r * n; ++i)
        state[i] *=
            std::exp(T(in.decays[(t * s.heads + h) * channels + (channels > 1 ? i / n : 0)]));
      for (int64_t e = 0; e < n; ++e) {
        T u = in.values[(t * s.heads + h) * n + e], y = 0;
        for (int64_t d = 0; d < r && s.kind != Recurrence::state_space; ++d)
          u -= state[d * n + e] * k[d];
        u *= in.factors[t * s.heads + h];
        for (int64_t d = 0; d < r; ++d) {
          state[d * n + e] += k[d] * u;
          y += state[d * n + e] * q[d];
        }
        if (const float* skips = skips_of(s)) y += skips[h] * in.values[(t * s.heads + h) * n + e];
        out[(t * s.heads + h) * n + e] = y;
      }
    }
  }
  return out;
}

TEST(Recurrent, EveryCutOfASequenceHasTheSameBits) {
  constexpr int64_t kRows = 150;
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(fmt::format("kind {}, order {}, type {}", static_cast<int>(kind.shape.kind),
                             name_of(kind.order), name_of(kind.shape.type)));
    Random random(5);
    const RecurrentInputs inputs(random, kind.shape, kRows);
    const Result whole = run_in_pieces(kind, inputs, kRows, [](int64_t) { return kRows; });
    const Result single = run_in_pieces(kind, inputs, kRows, [](int64_t) { return 1; });
    const Result scalar = run_in_pieces(
        kind, inputs, kRows, [](int64_t) { return 70; }, "scalar");
    const Result random_cuts =
        run_in_pieces(kind, inputs, kRows, [&](int64_t) { return 1 + random.below(40); });
    for (const Result* other : {&single, &scalar, &random_cuts}) {
      EXPECT_TRUE(same_bits(whole.out, other->out));
      EXPECT_TRUE(whole.memory->is_same(*other->memory));
    }
    // A prompt's rows so and decoded rows by the plain recurrence would differ.
    EXPECT_FALSE(same_bits(whole.out, plain_recurrence<float>(kind.shape, inputs, kRows)));
  }
}

// Rows are the layout of a GPU.
TEST(Recurrent, LayoutsHaveTheSameBits) {
  constexpr int64_t kRows = 80;
  for (Kind kind : kKinds) {
    Random random(23);
    const RecurrentInputs inputs(random, kind.shape, kRows);
    const auto whole = [](int64_t) { return kRows; };
    const Result panels = run_in_pieces(kind, inputs, kRows, whole, "scalar");
    kind.shape.layout = CacheLayout::rows;
    const Result rows = run_in_pieces(kind, inputs, kRows, whole, "scalar");
    EXPECT_TRUE(same_bits(panels.out, rows.out));
    EXPECT_FALSE(panels.memory->is_same(*rows.memory));
  }
}

double relative_error(const std::vector<float>& found, const std::vector<double>& exact) {
  double error = 0, all = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += (found[i] - exact[i]) * (found[i] - exact[i]);
    all += exact[i] * exact[i];
  }
  return std::sqrt(error / all);
}

TEST(Recurrent, IsNearTheRecurrenceInF64) {
  constexpr int64_t kRows = 700;
  for (const Kind& kind : kKinds) {
    Random random(11);
    const RecurrentInputs inputs(random, kind.shape, kRows);
    const Result run = run_in_pieces(kind, inputs, kRows, [](int64_t) { return kRows; });
    const double error =
        relative_error(run.out, plain_recurrence<double>(kind.shape, inputs, kRows));
    fmt::print("kind {}, {}, {}: {:.2e}\n", static_cast<int>(kind.shape.kind), name_of(kind.order),
               name_of(kind.shape.type), error);
    EXPECT_LE(error, kind.shape.type == DType::f32 ? 1e-6 : 3e-3);
    EXPECT_GT(error, kind.shape.type == DType::f32 ? 1e-9 : 1e-5);  // that something is compared
  }
}

// Two paths that part after two rows and cross a boundary: positions 61 .. 65 of both.
TEST(Recurrent, RowsOfADraftTreeHaveTheBitsOfTheirPath) {
  constexpr int64_t kBefore = 61, kShared = 2, kPath = 5;
  for (const Kind& kind : kKinds) {
    Random random(17);
    const int64_t rows = kBefore + 2 * kPath;  // the second path's own inputs stand behind
    const RecurrentInputs inputs(random, kind.shape, rows);
    const auto input_of = [&](int path, int64_t i) {
      return kBefore + (path && i >= kShared ? kPath + i : i);
    };
    // Cells of chunks: 0 and 1 of path 0, 2 and 3 of path 1, which begins as a copy of path 0's.
    // States: 1 behind path 0's first chunk, 2 behind path 1's.
    const auto begun = [&](RecurrentMemory& memory, std::vector<float>& out) {
      RecurrentStep step(kind.shape, {{0, 1}, {2, 3}});
      for (int64_t t = 0; t < kBefore; ++t) {
        RecurrentRow row = plain_row(t);
        row.write_cells = {0, 2};
        step.add(row);
      }
      step.end_sequence();
      step.run(select_kernels(kind.order, "auto"), memory.layer, inputs, skips_of(kind.shape), out);
    };
    const auto row_of = [&](int path, int64_t i) -> RecurrentRow {
      const int32_t position = static_cast<int32_t>(kBefore + i), chunk = position / kChunkSlots;
      const std::vector<int32_t> cells =
          i < kShared ? std::vector{chunk, chunk + 2} : std::vector{2 * path + chunk};
      return {input_of(path, i), position, path, cells, chunk ? 1 + path : -1, 1 + path};
    };
    const size_t outputs = static_cast<size_t>(rows * kind.shape.heads * kind.shape.value_size);
    RecurrentMemory tree(kind.shape, 4, 3), apart(kind.shape, 4, 3);
    std::vector<float> tree_out(outputs), apart_out(outputs);
    begun(tree, tree_out);
    begun(apart, apart_out);
    RecurrentStep both(kind.shape, {{0, 1}, {2, 3}});
    for (int64_t i = 0; i < kPath; ++i)
      for (int path = 0; path < (i < kShared ? 1 : 2); ++path) both.add(row_of(path, i));
    both.end_sequence();
    both.run(select_kernels(kind.order, "auto"), tree.layer, inputs, skips_of(kind.shape), tree_out,
             2);
    for (int path = 0; path < 2; ++path)
      for (int64_t i = path ? kShared : 0; i < kPath; ++i) {
        RecurrentStep one(kind.shape, {{0, 1}, {2, 3}});
        one.add(row_of(path, i));
        one.end_sequence();
        one.run(select_kernels(kind.order, "scalar"), apart.layer, inputs, skips_of(kind.shape),
                apart_out);
      }
    EXPECT_TRUE(same_bits(apart_out, tree_out));
    EXPECT_TRUE(apart.is_same(tree));
    // The paths' last rows differ.
    const int64_t width = kind.shape.heads * kind.shape.value_size;
    EXPECT_FALSE(same_bits(std::span(tree_out).subspan(input_of(0, kPath - 1) * width, width),
                           std::span(tree_out).subspan(input_of(1, kPath - 1) * width, width)));
  }
}

// ---- Every set against the definition

using RecurrentKernels = KernelTest;

constexpr RecurrentShape kShapes[] = {
    {Recurrence::delta, 2, 4, 128, 128},       {Recurrence::delta, 1, 1, 96, 192},
    {Recurrence::delta, 1, 2, 33, 17},         {Recurrence::channel_delta, 2, 2, 128, 128},
    {Recurrence::channel_delta, 1, 1, 40, 20}, {Recurrence::state_space, 1, 4, 128, 64},
    {Recurrence::state_space, 2, 4, 16, 80}};

// Two sequences in pieces, each in its own cells; with odd seeds values of the whole range.
void compare_with_scalar(const Kernels& fast, const Kernels& scalar, const RecurrentShape& shape,
                         uint64_t seed) {
  Random random(seed);
  const int64_t rows = 20 + random.below(150);
  RecurrentInputs inputs(random, shape, rows);
  const auto spoil = [&](std::vector<float>& x, int64_t width) {
    for (size_t i = 0; i + width <= x.size(); i += width)
      if (random.below(6) == 0) fill_results(random, std::span(x).subspan(i, width));
  };
  if (seed % 2) {
    spoil(inputs.queries, shape.key_size);
    spoil(inputs.keys, shape.key_size);
    spoil(inputs.values, shape.value_size);
    spoil(inputs.factors, 1);
    spoil(inputs.decays, shape.kind == Recurrence::channel_delta ? shape.key_size : 1);
  }
  RecurrentMemory expected(shape, 8, 8), found(shape, 8, 8);
  const size_t outputs = static_cast<size_t>(rows * shape.heads * shape.value_size);
  std::vector<float> expected_out(outputs), found_out(outputs);
  for (int64_t begin = 0, end; begin < rows; begin = end) {
    end = std::min<int64_t>(rows, begin + 1 + random.below(90));
    RecurrentStep step(shape, {plain_table(4), plain_table(4, 4)});
    for (int64_t t = begin; t < end; ++t) step.add(plain_row(t));
    step.end_sequence();
    for (int64_t t = begin; t < end; ++t) step.add(plain_row(t, 4, 1));
    step.end_sequence();
    const bool all_finite = step.run(scalar, expected.layer, inputs, skips_of(shape), expected_out);
    const bool fast_finite = step.run(fast, found.layer, inputs, skips_of(shape), found_out,
                                      1 + static_cast<int>(random.below(5)));
    EXPECT_EQ(all_finite, fast_finite);
    EXPECT_TRUE(same_bits(expected_out, found_out));
    EXPECT_TRUE(expected.is_same(found));
  }
}

TEST_P(RecurrentKernels, RecurrencesAreTheDefinition) {
  for (RecurrentShape shape : kShapes)
    for (const DType type : {DType::bf16, DType::f32}) {
      shape.type = type;
      SCOPED_TRACE(fmt::format("kind {}, {} x {}, {}", static_cast<int>(shape.kind), shape.key_size,
                               shape.value_size, name_of(type)));
      for (uint64_t seed = 0; seed < 4; ++seed)
        compare_with_scalar(kernels(), scalar(), shape, seed);
    }
}

TEST_P(RecurrentKernels, RecurrencesOfTheOtherOrdersAreTheDefinition) {
  if (GetParam() == "amx_emulated") GTEST_SKIP() << "AMX computes the order portable alone";
  for (const Order order : {Order::hopper, Order::pair})
    for (const RecurrentShape& shape : kShapes)
      for (uint64_t seed = 0; seed < 2; ++seed)
        compare_with_scalar(select_kernels(order, GetParam()), select_kernels(order, "scalar"),
                            shape, seed);
}

INSTANTIATE_TEST_SUITE_P(Sets, RecurrentKernels, ::testing::ValuesIn(tested_sets()), set_name);

}  // namespace
}  // namespace invar
