// What stands around recurrences: short convolutions, decays, gated norms; every set against the
// definition, and convolutions in every cut.
#include <fmt/format.h>

#include <numeric>

#include "kernels/select.h"
#include "recurrent_layer.h"

namespace invar {
namespace {

struct ConvCase {
  int64_t channels;
  int taps;
  bool bias, silu, gated;
  DType type, out;
};
constexpr ConvCase kConvCases[] = {{96, 4, false, true, false, DType::bf16, DType::f32},
                                   {33, 4, true, true, false, DType::bf16, DType::f32},
                                   {64, 3, false, false, true, DType::bf16, DType::bf16},
                                   {80, 7, true, false, false, DType::f32, DType::f32},
                                   {7, 2, false, false, true, DType::f32, DType::f32}};

// The inputs of a convolution at positions 0 .. rows - 1, and its memory: as a sequence has it, the
// last chunk of a piece is its own, those before it are scratch.
struct Conv {
  static constexpr int kCells = 4;

  Conv(const ConvCase& c, Random& random, int64_t rows, bool whole_range)
      : of(c),
        stride(c.channels + 5),
        x(rows * stride),
        factor(rows * stride),
        gate(rows * stride),
        weight(c.taps * c.channels),
        bias(c.channels),
        inputs(kCells * kChunkSlots * bytes()),
        before((c.taps - 1) * bytes()) {
    for (std::vector<float>* v : {&x, &factor, &gate, &weight, &bias})
      for (float& y : *v) y = random.uniform();
    for (int64_t t = 0; t < rows && whole_range; t += 1 + random.below(5))
      fill_results(random, std::span(x).subspan(t * stride, stride));
    std::ranges::fill(inputs.span(), char{0});
    std::ranges::fill(before.span(), char{0});
  }
  int64_t bytes() const { return round_up(of.channels * size_of(of.type), 64); }

  // Rows [begin, end), whose outputs go to `out`, rows of the padded width.
  void run(const Kernels& kernels, int64_t begin, int64_t end, void* out, bool* non_finite,
           int parts) {
    const int64_t rows = end - begin, first = begin / kChunkSlots, last = (end - 1) / kChunkSlots;
    std::vector<int32_t> positions(rows), table_of(rows, 0), writes(rows), write_begin(rows + 1);
    std::vector<int32_t> before_of(rows, -1), next_state(rows, -1);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
    std::iota(write_begin.begin(), write_begin.end(), 0);
    std::vector<int32_t> table(last + 1, 0);
    for (int64_t chunk = first; chunk < last; ++chunk)
      table[chunk] = static_cast<int32_t>(chunk - first + 1);
    const CellCopy copy{0, 1};
    const Cells cells{inputs.data(), inputs.size() / kCells};
    run_in_parts(parts, [&](const Execution& on) {
      kernels.copy_cells({cells, &copy, first < last ? 1 : 0}, on);
    });
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t chunk = positions[t] / kChunkSlots;
      writes[t] = table[chunk];
      if (chunk == first && chunk > 0) before_of[t] = 0;
      if (positions[t] % kChunkSlots == kChunkSlots - 1) next_state[t] = 0;
    }
    const int32_t* tables[] = {table.data()};
    const int64_t padded = round_up(of.channels, kLeafPad);
    const ShortConvParams p{
        .x = x.data() + begin * stride,
        .x_stride = stride,
        .factor = of.gated ? factor.data() + begin * stride : nullptr,
        .factor_stride = stride,
        .places = {rows, positions.data(), table_of.data(), tables, write_begin.data(),
                   writes.data()},
        .channels = of.channels,
        .taps = of.taps,
        .weight = weight.data(),
        .bias = of.bias ? bias.data() : nullptr,
        .silu = of.silu,
        .gate = of.gated ? gate.data() + begin * stride : nullptr,
        .gate_stride = stride,
        .inputs = cells,
        .before = {before.data(), before.size()},
        .type = of.type,
        .before_of = before_of.data(),
        .next_state = next_state.data(),
        .out = {static_cast<char*>(out) + begin * padded * size_of(of.out), of.out, padded},
        .non_finite = non_finite};
    run_in_parts(parts, [&](const Execution& on) { kernels.short_conv(p, on); });
  }

  ConvCase of;
  int64_t stride;
  std::vector<float> x, factor, gate, weight, bias;
  Guarded<char> inputs, before;
};

int64_t out_bytes(const ConvCase& c, int64_t rows) {
  return rows * round_up(c.channels, kLeafPad) * size_of(c.out);
}

TEST(ShortConvolution, EveryCutOfASequenceHasTheSameBits) {
  constexpr int64_t kRows = 220;
  const Kernels kernels = select_kernels(Order::portable, "auto");
  for (const ConvCase& c : kConvCases)
    for (const int64_t most : {5, 64, 128}) {
      Random random(3);
      Conv whole(c, random, kRows, false);
      Random again(3);
      Conv cut(c, again, kRows, false);
      Guarded<char> expected(out_bytes(c, kRows)), found(out_bytes(c, kRows));
      bool non_finite[kRows] = {};
      whole.run(kernels, 0, kRows, expected.data(), non_finite, 3);
      for (int64_t begin = 0, end; begin < kRows; begin = end) {
        end = std::min<int64_t>(kRows, begin + (random.below(3) ? 1 + random.below(most) : most));
        cut.run(kernels, begin, end, found.data(), non_finite, 1);
      }
      EXPECT_TRUE(same(expected, found));
      EXPECT_TRUE(same(whole.before, cut.before));
      EXPECT_EQ(std::ranges::find(non_finite, true), std::end(non_finite));
      // Without what came before the last chunk its first row has another output.
      std::ranges::fill(cut.before.span(), char{0});
      cut.run(kernels, kRows / kChunkSlots * kChunkSlots, kRows, found.data(), non_finite, 1);
      EXPECT_FALSE(same(expected, found));
    }
}

TEST(Cells, AreCopiedWhole) {
  constexpr int64_t kBytes = 192, kCells = 5;
  Guarded<char> memory(kCells * kBytes);
  for (int64_t i = 0; i < memory.size(); ++i)
    memory[i] = static_cast<char>(i / kBytes * 16 + i % 7);
  const std::vector<char> before(memory.span().begin(), memory.span().end());
  const CellCopy copies[] = {{0, 3}, {4, 1}};
  const CopyCellsParams p{{memory.data(), kBytes}, copies, 2};
  run_in_parts(
      2, [&](const Execution& on) { select_kernels(Order::portable, "auto").copy_cells(p, on); });
  EXPECT_TRUE(memory.guards_are_intact());
  const int64_t sources[] = {0, 4, 2, 0, 4};  // what each cell is now
  for (int64_t cell = 0; cell < kCells; ++cell)
    EXPECT_TRUE(std::equal(before.begin() + sources[cell] * kBytes,
                           before.begin() + (sources[cell] + 1) * kBytes,
                           memory.data() + cell * kBytes))
        << cell;
}

using RecurrentRows = KernelTest;

TEST_P(RecurrentRows, ShortConvolutionsAreTheDefinition) {
  for (const ConvCase& c : kConvCases)
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const int64_t rows = 70 + seed;
      Random random(seed);
      Conv expected(c, random, rows, true);
      Random again(seed);
      Conv found(c, again, rows, true);
      Guarded<char> expected_out(out_bytes(c, rows)), found_out(out_bytes(c, rows));
      std::array<bool, 128> non_finite{}, found_non_finite{};
      expected.run(scalar(), 0, rows, expected_out.data(), non_finite.data(), 1);
      found.run(kernels(), 0, rows, found_out.data(), found_non_finite.data(), 1 + 3 * seed);
      EXPECT_TRUE(expected_out.guards_are_intact() && found_out.guards_are_intact());
      EXPECT_TRUE(same(expected.inputs, found.inputs));
      EXPECT_TRUE(same(expected.before, found.before));
      EXPECT_EQ(non_finite, found_non_finite);
      if (c.out == DType::f32)
        EXPECT_TRUE(same_bits(
            std::span(reinterpret_cast<float*>(expected_out.data()), expected_out.size() / 4),
            std::span(reinterpret_cast<float*>(found_out.data()), found_out.size() / 4)));
      else
        EXPECT_TRUE(same(expected_out, found_out));
    }
}

TEST_P(RecurrentRows, DecaysAndFactorsAreTheDefinition) {
  for (const Recurrence kind :
       {Recurrence::delta, Recurrence::channel_delta, Recurrence::state_space})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Random random(seed);
      const int64_t rows = 1 + random.below(7), heads = 1 + random.below(40);
      const int64_t channels = kind == Recurrence::channel_delta ? 1 + random.below(70) : 1;
      std::vector<float> a(rows * heads * channels), z(rows * heads), log_rate(heads),
          bias(heads * channels);
      for (float& x : a) x = 30 * random.uniform();
      for (float& x : z) x = 30 * random.uniform();
      for (float& x : log_rate) x = 3 * random.uniform();
      for (float& x : bias) x = random.uniform();
      if (seed % 2) fill_results(random, std::span(a)), fill_results(random, std::span(z));
      Guarded<float> decays(a.size()), factors(z.size()), found_decays(a.size()),
          found_factors(z.size());
      RecurrentGatesParams p{.kind = kind,
                             .a = a.data(),
                             .a_stride = heads * channels,
                             .z = z.data(),
                             .z_stride = heads,
                             .log_rate = log_rate.data(),
                             .bias = bias.data(),
                             .rows = rows,
                             .heads = heads,
                             .channels = channels,
                             .doubles = seed % 4 < 2,
                             .least = 0.01f,
                             .most = seed % 3 ? 10.0f : std::numeric_limits<float>::infinity(),
                             .decays = decays.data(),
                             .factors = factors.data()};
      run_in_parts(1, [&](const Execution& on) { scalar().recurrent_gates(p, on); });
      p.decays = found_decays.data(), p.factors = found_factors.data();
      run_in_parts(3, [&](const Execution& on) { kernels().recurrent_gates(p, on); });
      EXPECT_TRUE(same(decays, found_decays));
      EXPECT_TRUE(same(factors, found_factors));
    }
}

TEST_P(RecurrentRows, GatedNormsAreTheDefinition) {
  for (uint64_t seed = 0; seed < 128; ++seed) {
    Random random(seed);
    const int64_t rows = 1 + random.below(5), groups = 1 + random.below(6);
    const int64_t width = 1 + random.below(200), all = groups * width;
    const bool has_norm = seed & 1 || seed & 16, has_gate = !(seed & 1) || seed & 32;
    const DType type = seed & 64 ? DType::f32 : DType::bf16;
    std::vector<float> x(rows * all), gate(rows * all), weight(all);
    for (float& y : weight) y = 1 + random.uniform();
    for (int64_t t = 0; t < rows; ++t) {
      fill_results(random, std::span(x).subspan(t * all, all));
      fill_results(random, std::span(gate).subspan(t * all, all));
    }
    const int64_t stride = round_up(all, kLeafPad) + 32;
    Guarded<float> expected(rows * stride), found(rows * stride);
    GatedNormParams p{.x = x.data(),
                      .x_stride = all,
                      .gate = has_gate ? gate.data() : nullptr,
                      .gate_stride = all,
                      .weight = has_norm ? weight.data() : nullptr,
                      .own_weights = (seed & 2) != 0,
                      .is_sigmoid = (seed & 4) != 0,
                      .gate_first = (seed & 8) != 0,
                      .eps = 1e-6f,
                      .rows = rows,
                      .groups = groups,
                      .width = width,
                      .out = {expected.data(), type, stride}};
    run_in_parts(1, [&](const Execution& on) { scalar().gated_norm(p, on); });
    p.out.data = found.data();
    run_in_parts(3, [&](const Execution& on) { kernels().gated_norm(p, on); });
    EXPECT_TRUE(expected.guards_are_intact() && found.guards_are_intact());
    if (type == DType::f32)
      EXPECT_TRUE(same(expected, found)) << seed;
    else
      EXPECT_TRUE(same_bits(std::span(reinterpret_cast<bf16_t*>(expected.data()), rows * stride),
                            std::span(reinterpret_cast<bf16_t*>(found.data()), rows * stride)))
          << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, RecurrentRows, ::testing::ValuesIn(tested_sets()), set_name);

}  // namespace
}  // namespace invar
