// Every operation of the backward on every instruction set against the scalar reference, bit by
// bit.
#include "kernels/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "kernel_check.h"
#include "kernels/select.h"

namespace invar {
namespace {

class BackwardKernelTest : public KernelTest {
 protected:
  // Runs an operation of the reference and then, in shares, of the set.
  template <typename Params>
  void run_both(void (*TrainingKernels::*operation)(const Params&, const Execution&),
                const Params& reference, const Params& tested, int parts) {
    run_in_parts(1, [&](const Execution& on) { (expected_.*operation)(reference, on); });
    run_in_parts(parts, [&](const Execution& on) { (training_kernels().*operation)(tested, on); });
  }

  Random random_{7};
  const TrainingKernels expected_ = select_training_kernels(Order::portable, "scalar");
};

enum class Kind { plain, any };

// Ordinary values, or any finite bit pattern with infinities and NaN in some rows.
Guarded<float>& fill(Random& random, Guarded<float>& x, Kind kind) {
  if (kind == Kind::any) {
    for (int64_t i = 0; i < x.size(); i += 100)
      fill_row(random, x.span().subspan(i, std::min<int64_t>(100, x.size() - i)));
  } else {
    for (float& v : x.span()) v = random.uniform() * 2;
  }
  return x;
}
Guarded<bf16_t>& fill(Random& random, Guarded<bf16_t>& x, Kind kind) {
  if (kind == Kind::any) {
    for (int64_t i = 0; i < x.size(); i += 100)
      fill_row(random, x.span().subspan(i, std::min<int64_t>(100, x.size() - i)));
  } else {
    for (bf16_t& v : x.span()) v = f32_to_bf16(random.uniform() * 2);
  }
  return x;
}

template <typename T>
struct Outputs {
  explicit Outputs(int64_t size) : expected(size), found(size) {}
  // Both begin with the same values.
  void begin_with(Random& random, Kind kind) {
    fill(random, expected, kind);
    found.copy_from(expected);
  }
  ::testing::AssertionResult agree() const {
    if (!found.guards_are_intact()) return ::testing::AssertionFailure() << "wrote around";
    return same_bits(expected.span(), found.span());
  }
  Guarded<T> expected, found;
};

constexpr Kind kKinds[] = {Kind::plain, Kind::any};
constexpr int64_t kWidths[] = {1, 8, 10, 16, 31, 33, 48, 64, 65, 100, 160, 320};

TEST_P(BackwardKernelTest, Round) {
  for (const Kind kind : kKinds)
    for (const int64_t width : kWidths) {
      constexpr int64_t kRows = 5;
      const int64_t stride = activation_stride(width);
      Guarded<float> x(kRows * width);
      fill(random_, x, kind);
      Outputs<bf16_t> out(kRows * stride);
      RoundParams p{x.data(), width, nullptr,
                    kRows,    width, {out.expected.data(), DType::bf16, stride}};
      RoundParams q = p;
      q.out.data = out.found.data();
      run_both(&TrainingKernels::round, p, q, 3);
      EXPECT_TRUE(out.agree()) << width;
    }
}

TEST_P(BackwardKernelTest, TransposeAndPackColumns) {
  for (const int64_t rows : {32, 96, 192})
    for (const int64_t count : {int64_t{5}, int64_t{16}, int64_t{40}, int64_t{72}, int64_t{128}})
      for (const int pair : {-1, 0, 1}) {
        const int64_t first = pair < 0 ? 2 * (count % 7) : 0;
        const int64_t width = pair < 0 ? first + count + 3 : 2 * round_up(count, 16);
        Guarded<bf16_t> x(rows * activation_stride(width));
        fill(random_, x, Kind::any);
        const Columns columns{first, count, pair};
        const Activation in{x.data(), DType::bf16, activation_stride(width)};
        Outputs<bf16_t> out(count * activation_stride(rows));
        TransposeParams p{
            in, rows, columns, {out.expected.data(), DType::bf16, activation_stride(rows)}};
        TransposeParams q = p;
        q.out.data = out.found.data();
        run_both(&TrainingKernels::transpose, p, q, 3);
        EXPECT_TRUE(out.agree()) << rows << ' ' << count << ' ' << pair;

        // `count` rows of 50 columns to inner elements.
        const int64_t inner = round_up(pair < 0 ? first + count : 2 * round_up(count, 16), 32);
        Guarded<bf16_t> matrix(count * 50);
        fill(random_, matrix, Kind::any);
        Outputs<bf16_t> packed(64 * inner);
        PackColumnsParams a{matrix.data(), 50, count, 50, columns, inner, packed.expected.data()};
        PackColumnsParams b = a;
        b.out = packed.found.data();
        run_both(&TrainingKernels::pack_columns, a, b, 2);
        EXPECT_TRUE(packed.agree()) << count << ' ' << pair;
      }
}

TEST_P(BackwardKernelTest, SumsOverRows) {
  for (const Kind kind : kKinds)
    for (const int64_t count : kWidths)
      for (const int pair : {-1, 1}) {
        constexpr int64_t kRows = 64;
        const int64_t width = pair < 0 ? count + 6 : 2 * round_up(count, 16);
        Guarded<bf16_t> dy(kRows * activation_stride(width));
        fill(random_, dy, kind);
        Outputs<float> gradient(count);
        gradient.begin_with(random_, Kind::plain);
        BiasGradientParams p{{dy.data(), DType::bf16, activation_stride(width)},
                             kRows,
                             {pair < 0 ? 6 : 0, count, pair},
                             gradient.expected.data()};
        BiasGradientParams q = p;
        q.gradient = gradient.found.data();
        run_both(&TrainingKernels::bias_gradient, p, q, 3);
        EXPECT_TRUE(gradient.agree()) << count << ' ' << pair;

        const int64_t heads = pair < 0 ? 1 : 3;
        Guarded<float> d(kRows * heads * count), x(kRows * heads * count), rs(kRows * heads);
        fill(random_, d, kind), fill(random_, x, kind), fill(random_, rs, Kind::plain);
        Outputs<float> norm(count);
        norm.begin_with(random_, Kind::plain);
        NormGradientParams a{
            d.data(), heads * count, x.data(), heads * count, rs.data(),
            heads,    kRows,         heads,    count,         norm.expected.data()};
        NormGradientParams b = a;
        b.gradient = norm.found.data();
        run_both(&TrainingKernels::norm_gradient, a, b, 2);
        EXPECT_TRUE(norm.agree()) << count << ' ' << heads;
      }
}

TEST_P(BackwardKernelTest, NormBackward) {
  for (const Kind kind : kKinds)
    for (const int64_t width : kWidths) {
      constexpr int64_t kRows = 7;
      Guarded<float> dy(kRows * width), x(kRows * width), weight(width);
      fill(random_, dy, kind), fill(random_, x, kind), fill(random_, weight, Kind::plain);
      Outputs<float> dx(kRows * width), rs(kRows);
      dx.begin_with(random_, Kind::plain);
      NormBackwardParams p{dy.data(), x.data(), weight.data(),      1e-5f,
                           kRows,     width,    dx.expected.data(), rs.expected.data()};
      NormBackwardParams q = p;
      q.dx = dx.found.data(), q.rs = rs.found.data();
      run_both(&TrainingKernels::norm_backward, p, q, 3);
      EXPECT_TRUE(dx.agree()) << width;
      EXPECT_TRUE(rs.agree()) << width;
    }
}

TEST_P(BackwardKernelTest, GateBackward) {
  for (const Kind kind : kKinds)
    for (const int64_t width : kWidths) {
      constexpr int64_t kRows = 5;
      const int64_t pair = 2 * round_up(width, 16), stride = activation_stride(pair);
      Guarded<float> gate_up(kRows * pair), d(kRows * width), gate(width), up(width);
      for (Guarded<float>* x : {&gate_up, &d}) fill(random_, *x, kind);
      for (Guarded<float>* x : {&gate, &up}) fill(random_, *x, Kind::plain);
      Outputs<bf16_t> out(kRows * stride);
      GateBackwardParams p{gate_up.data(),
                           nullptr,
                           up.data(),
                           d.data(),
                           kRows,
                           width,
                           {out.expected.data(), DType::bf16, stride}};
      if (width % 2) p.gate_bias = gate.data(), p.up_bias = nullptr;
      if (width % 3) p.curve = Nonlinearity::gelu_tanh;
      GateBackwardParams q = p;
      q.out.data = out.found.data();
      run_both(&TrainingKernels::gate_backward, p, q, 2);
      EXPECT_TRUE(out.agree()) << width;
    }
}

TEST_P(BackwardKernelTest, QkvBackward) {
  for (const Kind kind : kKinds)
    for (const int32_t e : {8, 10, 32, 64, 80, 128})
      for (const bool norms : {false, true}) {
        constexpr int64_t kRows = 6;
        constexpr int32_t kHeads = 3, kKvHeads = 1;
        const int64_t width = (kHeads + 2 * kKvHeads) * e, stride = activation_stride(width);
        Outputs<float> d(kRows * width), rs(kRows * (kHeads + kKvHeads));
        Outputs<bf16_t> out(kRows * stride);
        d.begin_with(random_, kind);
        Guarded<float> qkv(kRows * width), cos(10 * e / 2), sin(10 * e / 2), q_norm(e), k_norm(e);
        fill(random_, qkv, kind);
        for (Guarded<float>* x : {&cos, &sin, &q_norm, &k_norm}) fill(random_, *x, Kind::plain);
        const int32_t positions[kRows] = {0, 1, 2, 0, 1, 9};
        QkvBackwardParams p{.d_qkv = d.expected.data(),
                            .d_qkv_stride = width,
                            .qkv = norms ? qkv.data() : nullptr,
                            .qkv_stride = width,
                            .rows = kRows,
                            .heads = kHeads,
                            .kv_heads = kKvHeads,
                            .head_dim = e,
                            .q_norm = norms ? q_norm.data() : nullptr,
                            .k_norm = norms ? k_norm.data() : nullptr,
                            .norm_eps = 1e-6f,
                            .positions = positions,
                            .cos = cos.data(),
                            .sin = sin.data(),
                            .rs = rs.expected.data(),
                            .out = {out.expected.data(), DType::bf16, stride}};
        QkvBackwardParams q = p;
        q.d_qkv = d.found.data(), q.rs = rs.found.data(), q.out.data = out.found.data();
        run_both(&TrainingKernels::qkv_backward, p, q, 3);
        EXPECT_TRUE(out.agree()) << e;
        EXPECT_TRUE(d.agree()) << e;
        EXPECT_TRUE(rs.agree()) << e;
      }
}

TEST_P(BackwardKernelTest, EmbedGradient) {
  for (const int64_t width : kWidths) {
    constexpr int64_t kRows = 40, kVocab = 9;
    int32_t tokens[kRows];
    for (int32_t& t : tokens) t = static_cast<int32_t>(random_.below(kVocab));
    Guarded<float> dx(kRows * width);
    fill(random_, dx, Kind::any);
    Outputs<float> gradient(kVocab * width);
    gradient.begin_with(random_, Kind::plain);
    EmbedGradientParams p{tokens, dx.data(), kRows, width, gradient.expected.data()};
    EmbedGradientParams q = p;
    q.gradient = gradient.found.data();
    run_both(&TrainingKernels::embed_gradient, p, q, 3);
    EXPECT_TRUE(gradient.agree()) << width;
  }
}

TEST_P(BackwardKernelTest, Loss) {
  for (const bool with_teacher : {false, true})
    for (const int64_t vocab : kWidths) {
      constexpr int64_t kRows = 6;
      const int64_t out_stride = activation_stride(vocab);
      Guarded<float> logits(kRows * vocab), teacher(kRows * vocab);
      fill(random_, logits, Kind::plain), fill(random_, teacher, Kind::plain);
      const float weights[kRows] = {1, 0, 0.25f, -2, 1e-30f, 3};
      const int32_t targets[kRows] = {
          0, -1, static_cast<int32_t>(vocab - 1), 0, static_cast<int32_t>(vocab / 2), 0};
      const float max[kRows] = {2, 2, 2, 2, 2, 2}, sums[kRows] = {1, 2, 3, 0.5f, 1, 2};
      Outputs<bf16_t> out(kRows * out_stride);
      LossParams p{.logits = logits.data(),
                   .rows = kRows,
                   .stride = vocab,
                   .vocab = vocab,
                   .max = max,
                   .log_sum = sums,
                   .targets = targets,
                   .weights = weights,
                   .teacher = with_teacher ? teacher.data() : nullptr,
                   .teacher_max = max,
                   .teacher_log_sum = sums,
                   .teacher_share = 0.7f,
                   .out = {out.expected.data(), DType::bf16, out_stride}};
      LossParams q = p;
      q.out.data = out.found.data();
      run_both(&TrainingKernels::loss, p, q, 2);
      EXPECT_TRUE(out.agree()) << vocab;
    }
}

TEST_P(BackwardKernelTest, SquaresAdamAndAdd) {
  for (const Kind kind : kKinds)
    for (const int64_t count : {1, 15, 16, 63, 64, 65, 130, 1000}) {
      Guarded<float> x(count), y(200);
      fill(random_, x, kind), fill(random_, y, kind);
      const float* tensors[] = {x.data(), y.data(), x.data()};
      const int64_t counts[] = {count, 200, count / 2};
      Outputs<float> sums(3);
      SquaresParams p{tensors, counts, 3, sums.expected.data()};
      SquaresParams q = p;
      q.sums = sums.found.data();
      run_both(&TrainingKernels::squares, p, q, 2);
      EXPECT_TRUE(sums.agree()) << count;

      Outputs<float> master(count), first(count), second(count);
      Outputs<bf16_t> weights(count);
      master.begin_with(random_, kind), first.begin_with(random_, kind);
      second.begin_with(random_, kind);
      AdamParams a{.gradient = x.data(),
                   .master = master.expected.data(),
                   .first = first.expected.data(),
                   .second = second.expected.data(),
                   .weights = weights.expected.data(),
                   .count = count,
                   .gradient_scale = 0.3f,
                   .rate = 1e-3f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .decay = 0.1f,
                   .first_scale = 3.7f,
                   .second_scale = 9.1f};
      AdamParams b = a;
      b.master = master.found.data(), b.first = first.found.data();
      b.second = second.found.data(), b.weights = weights.found.data();
      run_both(&TrainingKernels::adam, a, b, 3);
      EXPECT_TRUE(master.agree() && first.agree() && second.agree()) << count;
      EXPECT_TRUE(weights.agree()) << count;

      Outputs<float> sum(count);
      sum.begin_with(random_, kind);
      AddGradientParams c{x.data(), count, sum.expected.data()}, d = c;
      d.y = sum.found.data();
      run_both(&TrainingKernels::add_gradient, c, d, 3);
      EXPECT_TRUE(sum.agree()) << count;
    }
}

struct AttentionCase {
  std::vector<int> lengths;
  int heads, kv_heads, head_dim, window, block_size, parts;
};

// Random q, k, v, statistics as a forward could have left them; blocks in any order, stale beyond
// the sequences' ends.
TEST_P(BackwardKernelTest, Attention) {
  for (const AttentionCase& c : {AttentionCase{{1, 2, 29}, 2, 1, 8, 0, 32, 1},
                                 AttentionCase{{33, 5, 26}, 4, 2, 10, 7, 64, 3},
                                 AttentionCase{{100, 28}, 3, 3, 64, 40, 32, 2},
                                 AttentionCase{{140, 20}, 2, 1, 128, 0, 128, 2},
                                 AttentionCase{{430, 18}, 2, 1, 32, 0, 64, 2},
                                 AttentionCase{{300, 20}, 1, 1, 16, 130, 32, 1}}) {
    SCOPED_TRACE(fmt::format("{} heads of {}, window {}", c.heads, c.head_dim, c.window));
    int64_t rows = 0, blocks = 0;
    int longest = 0;
    for (const int length : c.lengths) {
      rows += length, longest = std::max(longest, length);
      blocks += (length + c.block_size - 1) / c.block_size;
    }
    KvLayer kv{.block_size = c.block_size, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
    Guarded<bf16_t> keys(blocks * c.kv_heads * kv.key_block());
    Guarded<bf16_t> values(blocks * c.kv_heads * kv.value_block());
    const int64_t padded = round_up(c.head_dim, 32), width = int64_t{c.heads} * c.head_dim;
    Guarded<bf16_t> q(rows * c.heads * padded), out(rows * activation_stride(width)),
        d_out(rows * activation_stride(width));
    for (Guarded<bf16_t>* x : {&keys, &values, &q, &out, &d_out}) fill(random_, *x, Kind::plain);
    for (int64_t i = 0; i < rows * c.heads; ++i)  // pads
      std::fill(&q[i * padded + c.head_dim], q.data() + (i + 1) * padded, bf16_t{0});
    kv.keys = keys.data(), kv.values = values.data();
    for (int64_t block = 0; block < blocks; ++block)
      for (int g = 0; g < c.kv_heads; ++g)
        for (int slot = 0; slot < c.block_size; ++slot)
          for (int64_t e = c.head_dim; e < padded; ++e)
            keys[kv.key_index(block, g, 0, 0) + packed_index_bf16(slot, e, c.head_dim)] = 0;

    std::vector<int32_t> positions, table_of, block_list(blocks);
    std::vector<const int32_t*> tables;
    for (int64_t i = 0; i < blocks; ++i) block_list[i] = static_cast<int32_t>(blocks - 1 - i);
    int64_t next = 0;
    for (const int length : c.lengths) {
      tables.push_back(&block_list[next]);
      next += (length + c.block_size - 1) / c.block_size;
      for (int i = 0; i < length; ++i) {
        positions.push_back(i);
        table_of.push_back(static_cast<int32_t>(tables.size()) - 1);
      }
    }
    Guarded<float> max(rows * c.heads), sum(rows * c.heads);
    for (float& x : max.span()) x = 8 + random_.uniform();
    for (float& x : sum.span()) x = 1.5f + random_.uniform();
    const int64_t d_width = (c.heads + 2 * c.kv_heads) * c.head_dim;
    Outputs<float> d(rows * d_width);
    d.begin_with(random_, Kind::any);
    const int64_t bytes = training_kernels().attention_scratch(longest, c.head_dim);
    Guarded<float> scratch(c.parts * bytes / 4);  // stale: NaN everywhere
    AttentionBackwardParams p{
        .forward = {.q = q.data(),
                    .rows = rows,
                    .heads = c.heads,
                    .positions = positions.data(),
                    .table_of = table_of.data(),
                    .tables = tables.data(),
                    .window = c.window,
                    .kv = kv,
                    .out = {out.data(), DType::bf16, activation_stride(width)}},
        .max = max.data(),
        .sum = sum.data(),
        .d_out = {d_out.data(), DType::bf16, activation_stride(width)},
        .max_positions = longest,
        .d_qkv = d.expected.data(),
        .d_qkv_stride = d_width,
        .scratch = reinterpret_cast<std::byte*>(scratch.data()),
        .scratch_stride = bytes};
    AttentionBackwardParams b = p;
    b.d_qkv = d.found.data();
    run_both(&TrainingKernels::attention_backward, p, b, c.parts);
    EXPECT_TRUE(d.agree());
    EXPECT_TRUE(scratch.guards_are_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, BackwardKernelTest, ::testing::ValuesIn(tested_sets()), set_name);

}  // namespace
}  // namespace invar
