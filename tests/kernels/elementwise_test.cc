// Embedding, RMSNorm, the step after the q, k, v product and the passes over logits, bit by bit
// against the reference.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernel_check.h"
#include "kernels/select.h"
#include "numerics/curves.h"

namespace invar {
namespace {

class ElementwiseTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Sets, ElementwiseTest, testing::ValuesIn(tested_sets()), set_name);

template <typename Params>
void run(void (*kernel)(const Params&, const Execution&), const Params& p, int parts = 1) {
  run_in_parts(parts, [&](const Execution& on) { kernel(p, on); });
}

enum class Kind { plain, wide, tiny, special };
constexpr Kind kKinds[] = {Kind::plain, Kind::wide, Kind::tiny, Kind::special};

// An exponent in [low, high); -127 gives subnormals.
float with_exponent(Random& random, int low, int high) {
  const uint32_t exponent = random.below(static_cast<uint32_t>(high - low)) + low + 127;
  return std::bit_cast<float>((random.next() & 0x807fffff) | exponent << 23);
}

float value_of(Kind kind, Random& random) {
  switch (kind) {
    case Kind::plain:
      return random.uniform();
    case Kind::wide:
      return with_exponent(random, -60, 60);
    case Kind::tiny:
      return with_exponent(random, -127, -120);  // subnormals and what they come from
    case Kind::special:
      break;
  }
  constexpr float kSpecial[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 0x1.fffffep127f, 0x1p-149f};
  return random.below(50) ? with_exponent(random, -127, 128) : kSpecial[random.below(7)];
}

void fill(float* x, int64_t count, Kind kind, Random& random) {
  for (int64_t i = 0; i < count; ++i) x[i] = value_of(kind, random);
}

TEST_P(ElementwiseTest, Embed) {
  constexpr int kVocab = 50;
  for (const int width : {1, 2, 8, 15, 16, 31, 32, 33, 64, 80, 320}) {
    Random random(static_cast<uint32_t>(width));
    const int64_t packed = round_up(kVocab, 16) * round_up(width, 32);
    std::vector<bf16_t> halves(packed);
    std::vector<float> floats(packed);
    for (bf16_t& x : halves) x = static_cast<bf16_t>(random.next());  // subnormals too
    fill(floats.data(), packed, Kind::special, random);
    std::vector<int32_t> tokens(19);
    for (int32_t& t : tokens) t = random.below(kVocab);
    for (const WeightLayout layout : {WeightLayout::rows, WeightLayout::panels})
      for (const DType type : {DType::bf16, DType::f32}) {
        const void* data = type == DType::bf16 ? static_cast<void*>(halves.data()) : floats.data();
        const Matrix table = {data, type, kVocab, width, layout};
        const Guarded<float> expected(19 * width), found(19 * width);
        EmbedParams p = {tokens.data(), table, 19, expected.data()};
        run(scalar().embed, p);
        p.out = found.data();
        run(kernels().embed, p, 3);
        EXPECT_TRUE(same(expected, found)) << "width " << width << " layout " << int(layout);
        p.scale = 3.7f;  // Gemma's and Granite's
        run(kernels().embed, p, 2);
        p.out = expected.data();
        run(scalar().embed, p);
        EXPECT_TRUE(same(expected, found)) << "scaled, width " << width;
      }
  }
}

constexpr int64_t kRowWidths[] = {1,  2,  15, 16,  17,  31,  33,  48,
                                  63, 64, 65, 100, 127, 128, 257, 640};

// Whether `work`, with an Activation to write to, does the same with both tables.
template <typename Work>
testing::AssertionResult rows_agree(const Kernels& reference, const Kernels& kernels, int64_t rows,
                                    int64_t width, DType type, Work work) {
  const int64_t stride = activation_stride(width), bytes = rows * stride * size_of(type);
  const Guarded<uint8_t> expected(bytes), found(bytes);
  work(reference, Activation{expected.data(), type, stride}, 1);
  work(kernels, Activation{found.data(), type, stride}, 3);
  if (type == DType::bf16) {
    if (!found.guards_are_intact()) return testing::AssertionFailure() << "guards";
    return same_bits(
        {reinterpret_cast<const bf16_t*>(expected.data()), static_cast<size_t>(bytes / 2)},
        {reinterpret_cast<const bf16_t*>(found.data()), static_cast<size_t>(bytes / 2)});
  }
  if (!found.guards_are_intact()) return testing::AssertionFailure() << "guards";
  return same_bits(
      {reinterpret_cast<const float*>(expected.data()), static_cast<size_t>(bytes / 4)},
      {reinterpret_cast<const float*>(found.data()), static_cast<size_t>(bytes / 4)});
}

TEST_P(ElementwiseTest, LayerNorm) {
  for (const int64_t width : kRowWidths)
    for (const Kind kind : kKinds)
      for (const DType type : {DType::bf16, DType::f32}) {
        Random random(static_cast<uint32_t>(width));
        constexpr int64_t kRows = 5;
        std::vector<float> x(kRows * width), weight(width), bias(width);
        fill(x.data(), std::ssize(x), kind, random);
        fill(weight.data(), width, Kind::plain, random);
        fill(bias.data(), width, Kind::plain, random);
        const std::vector<int32_t> rows_of = {4, 0, 0, 2, 1};
        EXPECT_TRUE(rows_agree(scalar(), kernels(), kRows, width, type,
                               [&](const Kernels& k, const Activation& out, int parts) {
                                 run(k.layer_norm,
                                     LayerNormParams{.x = x.data(),
                                                     .x_stride = width,
                                                     .rows_of = rows_of.data(),
                                                     .weight = weight.data(),
                                                     .bias = bias.data(),
                                                     .eps = 1e-5f,
                                                     .rows = kRows,
                                                     .width = width,
                                                     .out = out},
                                     parts);
                               }))
            << "width " << width << " kind " << static_cast<int>(kind);
      }
}

TEST_P(ElementwiseTest, Curves) {
  for (const Nonlinearity curve : {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::gelu,
                                   Nonlinearity::relu_squared})
    for (const int64_t width : kRowWidths)
      for (const Kind kind : kKinds)
        for (const DType type : {DType::bf16, DType::f32}) {
          Random random(static_cast<uint32_t>(width));
          constexpr int64_t kRows = 5;
          std::vector<float> x((kRows - 1) * (width + 3) + width);
          fill(x.data(), std::ssize(x), kind, random);
          for (size_t i = 0; kind == Kind::plain && i < x.size(); ++i) x[i] = 12 * x[i];
          EXPECT_TRUE(rows_agree(scalar(), kernels(), kRows, width, type,
                                 [&](const Kernels& k, const Activation& out, int parts) {
                                   run(k.curve,
                                       CurveParams{.x = x.data(),
                                                   .x_stride = width + 3,
                                                   .rows = kRows,
                                                   .width = width,
                                                   .curve = curve,
                                                   .out = out},
                                       parts);
                                 }))
              << "width " << width << " curve " << static_cast<int>(curve);
        }
}

// The vector that a token brings to a layer, gated by the stream.
TEST_P(ElementwiseTest, GatedInputs) {
  for (const int64_t width : kRowWidths)
    for (const Kind kind : kKinds)
      for (const DType type : {DType::bf16, DType::f32}) {
        Random random(static_cast<uint32_t>(width));
        constexpr int64_t kRows = 5;
        const int64_t stride = width + 7;
        std::vector<float> x(kRows * width), inputs(kRows * stride);
        fill(x.data(), std::ssize(x), kind, random);
        fill(inputs.data(), std::ssize(inputs), kind, random);
        EXPECT_TRUE(rows_agree(scalar(), kernels(), kRows, width, type,
                               [&](const Kernels& k, const Activation& out, int parts) {
                                 run(k.gate_inputs,
                                     GateInputsParams{.x = x.data(),
                                                      .inputs = inputs.data(),
                                                      .inputs_stride = stride,
                                                      .rows = kRows,
                                                      .width = width,
                                                      .curve = Nonlinearity::gelu_tanh,
                                                      .out = out},
                                     parts);
                               }))
            << "width " << width;
      }
}

TEST_P(ElementwiseTest, ScaledRows) {
  for (const int64_t width : kRowWidths)
    for (const Kind kind : kKinds) {
      Random random(static_cast<uint32_t>(width));
      constexpr int64_t kRows = 5;
      std::vector<float> x(kRows * width), expected, found;
      fill(x.data(), std::ssize(x), kind, random);
      const float factor = 0.7f;
      for (const auto& [k, to, parts] :
           {std::tuple(&scalar(), &expected, 1), std::tuple(&kernels(), &found, 3)}) {
        *to = x;
        run(k->scale_rows,
            ScaleRowsParams{.x = to->data(), .rows = kRows, .width = width, .factor = &factor},
            parts);
      }
      EXPECT_EQ(std::memcmp(expected.data(), found.data(), expected.size() * sizeof(float)), 0)
          << "width " << width;
    }
}

TEST_P(ElementwiseTest, ScaledLogitsAndSums) {
  for (const int64_t width : kRowWidths)
    for (const Kind kind : kKinds) {
      Random random(static_cast<uint32_t>(width));
      constexpr int64_t kRows = 5;
      std::vector<float> x(kRows * width), bias(width);
      fill(x.data(), std::ssize(x), kind, random);
      fill(bias.data(), width, Kind::plain, random);
      for (const float divisor : {1.0f, 8.0f, 0.3f})
        for (const float cap : {0.0f, 30.0f}) {
          const Guarded<float> expected(kRows * width), found(kRows * width);
          for (const auto& [k, to, parts] :
               {std::tuple(&scalar(), &expected, 1), std::tuple(&kernels(), &found, 3)}) {
            std::ranges::copy(x, to->data());
            run(k->scale_logits, ScaleLogitsParams{to->data(), kRows, width, width, divisor, cap},
                parts);
            run(k->add,
                AddParams{x.data(), width, cap > 0 ? bias.data() : nullptr, kRows, width,
                          to->data(), divisor},
                parts);
          }
          EXPECT_TRUE(same(expected, found)) << width << " " << divisor << " " << cap;
        }
    }
}

// What tanh-GELU, erf-GELU and the cap are, within what f32 can say.
TEST(Curves, AreTheFunctionsThatTheyAreNamedAfter) {
  const ScopedFlushToZero flush;
  for (double x = -12; x <= 12; x += 0.01) {
    const float v = static_cast<float>(x);
    const double tanh_form =
        0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * std::pow(v, 3))));
    EXPECT_NEAR(math::gelu_tanh(v), tanh_form, 1e-6 * (1 + std::fabs(x)));
    EXPECT_NEAR(math::gelu(v), 0.5 * v * std::erfc(-v / std::sqrt(2.0)), 3e-7 * (1 + std::fabs(x)));
    EXPECT_NEAR(math::half_tanh(v), std::tanh(v / 2.0), 2e-7);
    EXPECT_NEAR(math::silu(v), v / (1 + std::exp(-static_cast<double>(v))),
                1e-6 * (1 + std::fabs(x)));
  }
}

struct NormCase {
  int64_t width, rows;
  Kind kind;
  DType type;
  bool chosen;  // with rows_of
};

// Whether `kernel` does what the reference does.
template <typename T>
testing::AssertionResult norm_agrees(const Kernels& reference,
                                     void (*kernel)(const RmsNormParams&, const Execution&),
                                     const NormCase& c, int parts) {
  Random random(static_cast<uint32_t>(c.width * 31 + c.rows));
  const int64_t x_stride = c.width + 3, stride = activation_stride(c.width);
  // Ends exactly where the last row ends, so that a load past it is seen by sanitizers.
  std::vector<float> x((c.rows - 1) * x_stride + c.width), weight(c.width);
  fill(x.data(), static_cast<int64_t>(x.size()), c.kind, random);
  fill(weight.data(), c.width, Kind::plain, random);
  std::vector<int32_t> rows_of(c.rows);
  for (int32_t& r : rows_of) r = random.below(static_cast<int>(c.rows));
  const Guarded<T> expected(c.rows * stride), found(c.rows * stride);
  RmsNormParams p = {.x = x.data(),
                     .x_stride = x_stride,
                     .rows_of = c.chosen ? rows_of.data() : nullptr,
                     .weight = weight.data(),
                     .eps = 1e-6f,
                     .rows = c.rows,
                     .width = c.width,
                     .out = {expected.data(), c.type, stride}};
  run(reference.rms_norm, p);
  p.out.data = found.data();
  run(kernel, p, parts);
  if (auto result = same(expected, found); !result) return result;
  // Into rows that others follow at once.
  p.keeps_pad = true;
  for (const Guarded<T>* out : {&expected, &found}) {
    std::memset(out->data(), 0x11, static_cast<size_t>(out->size()) * sizeof(T));
    p.out.data = out->data();
    run(out == &found ? kernel : reference.rms_norm, p, out == &found ? parts : 1);
  }
  return same(expected, found);
}

testing::AssertionResult norm_agrees(const Kernels& reference,
                                     void (*kernel)(const RmsNormParams&, const Execution&),
                                     const NormCase& c, int parts) {
  return c.type == DType::bf16 ? norm_agrees<bf16_t>(reference, kernel, c, parts)
                               : norm_agrees<float>(reference, kernel, c, parts);
}

TEST_P(ElementwiseTest, RmsNorm) {
  for (const int width :
       {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 200, 320, 1000, 1024, 4096})
    for (const Kind kind : kKinds)
      for (const DType type : {DType::bf16, DType::f32}) {
        const NormCase c = {width, width < 200 ? 5 : 2, kind, type, false};
        EXPECT_TRUE(norm_agrees(scalar(), kernels().rms_norm, c, 1))
            << "width " << width << " kind " << static_cast<int>(kind);
      }
  // In f32, since another order of a sum is rarely seen in bf16.
  for (const int rows : {1, 2, 3, 16, 17, 127, 128, 129, 130, 255, 256, 257, 1024})
    for (const int parts : {1, 2, 3, 7})
      for (const DType type : {DType::bf16, DType::f32})
        EXPECT_TRUE(norm_agrees(scalar(), kernels().rms_norm,
                                {200, rows, Kind::plain, type, rows % 2 == 1}, parts))
            << rows << " rows in " << parts << " parts";
}

// Sums in one lane, and touches nothing else than it should: another order.
void rms_norm_in_sequence(const RmsNormParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    float sum = 0.0f;
    for (int64_t i = 0; i < p.width; ++i)
      sum = std::fma(p.x[t * p.x_stride + i], p.x[t * p.x_stride + i], sum);
    const float rs = 1.0f / std::sqrt(sum / static_cast<float>(p.width) + p.eps);
    float* y = static_cast<float*>(p.out.data) + t * p.out.stride;
    for (int64_t i = 0; i < (p.keeps_pad ? p.width : round_up(p.width, 32)); ++i)
      y[i] = i < p.width ? (p.x[t * p.x_stride + i] * rs) * p.weight[i] : 0.0f;
  }
}

TEST(ElementwiseControl, AnotherOrderOfTheSumIsSeen) {
  const Kernels reference = select_kernels(Order::portable, "scalar");
  // Up to 64 elements and down to bf16 the orders may agree; not over 20 rows of 1000 in f32.
  EXPECT_FALSE(
      norm_agrees(reference, rms_norm_in_sequence, {1000, 20, Kind::plain, DType::f32, false}, 1));
  // The control itself is sound: with one element both orders are one.
  EXPECT_TRUE(
      norm_agrees(reference, rms_norm_in_sequence, {1, 20, Kind::plain, DType::f32, false}, 1));
}

struct QkvCase {
  int rows, heads, groups, head_dim, block_size;
  bool norms;
  Kind kind;
  int shape;  // 0: one run of slots; 1: slots at random; 2: no, one or several slots per row
  DType cache = DType::bf16;
  int words() const { return cache == DType::f32 ? 2 : 1; }  // of 16 bits, to an element
};

struct QkvOutputs {
  QkvOutputs(const QkvCase& c, const KvLayer& kv, int blocks)
      : keys(blocks * c.groups * kv.key_block() * c.words()),
        values(blocks * c.groups * kv.value_block() * c.words()),
        q(int64_t{c.rows} * c.heads * round_up(c.head_dim, 32) * c.words()),
        non_finite(c.rows) {
    std::ranges::fill(keys.span(), bf16_t{0});
    std::ranges::fill(values.span(), bf16_t{0});
    std::ranges::fill(non_finite.span(), false);
  }
  Guarded<bf16_t> keys, values, q;
  Guarded<bool> non_finite;
};

// A product whose outputs are to be rotated.
struct QkvProduct {
  QkvProduct(const QkvCase& c, int k, Random& random)
      : k(k),
        outputs((c.heads + 2 * c.groups) * c.head_dim),
        stride(activation_stride(k)),
        x(c.rows * stride),
        w(Matrix{.n = outputs, .k = k}.elements()),
        bias(outputs) {
    std::ranges::fill(x.span(), bf16_t{0});
    std::ranges::fill(w.span(), bf16_t{0});
    for (int t = 0; t < c.rows; ++t) fill_row(random, x.span().subspan(t * stride, k));
    for (int n = 0; n < outputs; ++n)
      for (int i = 0; i < k; ++i) w[packed_index_bf16(n, i, k)] = f32_to_bf16(random.uniform());
    for (float& b : bias.span()) b = random.uniform();
  }
  Activation activation() const { return {x.data(), DType::bf16, stride}; }
  Matrix weight() const { return {.data = w.data(), .n = outputs, .k = k}; }

  int k, outputs;
  int64_t stride;
  Guarded<bf16_t> x, w;
  Guarded<float> bias;
};

// With `product`, the reference's product and rotation against those in one.
void check_qkv(const Kernels& reference, const Kernels& kernels, const QkvCase& c, int parts,
               bool product = false) {
  Random random(static_cast<uint32_t>(c.rows * 131 + c.head_dim * 7 + c.shape));
  constexpr int kPositions = 300;
  const int e = c.head_dim;
  const int64_t width = int64_t{c.heads + 2 * c.groups} * e, stride = width + 5;
  std::vector<float> in((c.rows - 1) * stride + width), q_norm(e), k_norm(e);
  fill(in.data(), static_cast<int64_t>(in.size()), c.kind, random);
  fill(q_norm.data(), e, Kind::plain, random);
  fill(k_norm.data(), e, Kind::plain, random);
  std::vector<float> cos(kPositions * e / 2), sin(cos.size());
  for (size_t i = 0; i < cos.size(); ++i) cos[i] = random.uniform(), sin[i] = random.uniform();
  const int blocks = 300 / c.block_size + 2, slots = blocks * c.block_size;

  // Each slot is written once at most.
  std::vector<int32_t> order(slots), positions(c.rows), begin = {0}, block, slot;
  std::iota(order.begin(), order.end(), 3);
  if (c.shape) {
    for (int i = slots - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    for (int32_t& o : order) o -= 3;
  }
  for (int t = 0; t < c.rows; ++t) {
    positions[t] = c.shape ? random.below(kPositions) : t;
    for (int i = c.shape == 2 ? random.below(4) : 1; i > 0; --i) {
      const int at = order[slot.size()];
      block.push_back(blocks - 1 - at / c.block_size);
      slot.push_back(at % c.block_size);
    }
    begin.push_back(static_cast<int32_t>(slot.size()));
  }

  const KvLayer layer = {nullptr, nullptr, c.block_size, c.groups, e, CacheLayout::panels, c.cache};
  const QkvProduct made(c, 70, random);
  const Guarded<float> scratch(parts * c.rows * qkv_scratch_stride(e));
  if (product)
    run(reference.matmul, MatmulParams{.x = made.activation(),
                                       .w = made.weight(),
                                       .rows = c.rows,
                                       .split_k = 1,
                                       .bias = made.bias.data(),
                                       .accumulate = false,
                                       .y = in.data(),
                                       .y_stride = stride});
  const auto run_with = [&](const Kernels& k, int part_count, const QkvOutputs& out) {
    KvLayer kv = layer;
    kv.keys = out.keys.data(), kv.values = out.values.data();
    const QkvParams p = {.qkv = in.data(),
                         .qkv_stride = stride,
                         .rows = c.rows,
                         .heads = c.heads,
                         .q_norm = c.norms ? q_norm.data() : nullptr,
                         .k_norm = c.norms ? k_norm.data() : nullptr,
                         .norm_eps = 1e-6f,
                         .positions = positions.data(),
                         .cos = cos.data(),
                         .sin = sin.data(),
                         .write_begin = begin.data(),
                         .write_block = block.data(),
                         .write_slot = slot.data(),
                         .kv = kv,
                         .q = out.q.data(),
                         .non_finite = out.non_finite.data()};
    if (product && &k == &kernels)
      run(k.qkv_product,
          QkvProductParams{.x = made.activation(),
                           .w = made.weight(),
                           .bias = made.bias.data(),
                           .then = p,
                           .scratch = scratch.data()},
          part_count);
    else
      run(k.qkv, p, part_count);
  };
  const QkvOutputs expected(c, layer, blocks), found(c, layer, blocks);
  run_with(reference, 1, expected);
  run_with(kernels, parts, found);
  EXPECT_TRUE(same(expected.q, found.q));
  EXPECT_TRUE(same(expected.keys, found.keys));
  EXPECT_TRUE(same(expected.values, found.values));
  EXPECT_TRUE(same(expected.non_finite, found.non_finite));
  EXPECT_TRUE(scratch.guards_are_intact());
}

TEST_P(ElementwiseTest, QkvHeadSizes) {
  for (const int head_dim : {2, 8, 16, 30, 32, 40, 64, 80, 96, 128, 192, 256})
    for (const Kind kind : kKinds)
      for (const bool norms : {false, true}) {
        SCOPED_TRACE(testing::Message() << "head size " << head_dim << " kind "
                                        << static_cast<int>(kind) << " norms " << norms);
        check_qkv(scalar(), kernels(), {7, 4, 2, head_dim, 32, norms, kind, 0}, 2);
      }
}

TEST_P(ElementwiseTest, QkvSlots) {
  for (const int rows : {1, 2, 3, 15, 16, 17, 33, 64, 130})
    for (const int block_size : {32, 64, 128})
      for (const int shape : {0, 1, 2})
        for (const int parts : {1, 3}) {
          if (shape == 2 && rows > 80) continue;  // not enough slots
          SCOPED_TRACE(testing::Message() << rows << " rows, blocks of " << block_size << ", shape "
                                          << shape << ", " << parts << " parts");
          for (const int head_dim : {40, 48})
            check_qkv(scalar(), kernels(),
                      {rows, 2, 1, head_dim, block_size, true, Kind::plain, shape}, parts);
        }
}

// Of f32: what is not rounded is not clamped to bf16's range either.
TEST_P(ElementwiseTest, QkvExact) {
  for (const int head_dim : {2, 30, 40, 64, 128, 256})
    for (const Kind kind : kKinds)
      for (const int shape : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << "head size " << head_dim << " kind "
                                        << static_cast<int>(kind) << " shape " << shape);
        check_qkv(scalar(), kernels(),
                  {19, 4, 2, head_dim, 32, head_dim != 40, kind, shape, DType::f32}, 2);
      }
}

TEST_P(ElementwiseTest, QkvProduct) {
  for (const int head_dim : {16, 48, 64, 128})
    for (const int rows : {1, 15, 33, 100, 275})
      for (const int groups : {1, 2, 3})
        for (const int parts : {1, 2, 3, 4}) {
          SCOPED_TRACE(testing::Message() << "head size " << head_dim << ", " << rows << " rows, "
                                          << groups << " groups, " << parts << " parts");
          const int shape = parts % 2;  // slots in one run, or at random
          check_qkv(scalar(), kernels(),
                    {rows, 2 * groups, groups, head_dim, 64, groups == 2, Kind::plain, shape},
                    parts, true);
        }
}

struct LogitsOutputs {
  explicit LogitsOutputs(int rows) : argmax(rows), max(rows), log_sum(rows), has_nan(rows) {}
  Guarded<int32_t> argmax;
  Guarded<float> max, log_sum;
  Guarded<bool> has_nan;
};

void log_sum_exp(const Kernels& k, const std::vector<float>& x, int rows, int vocab, int parts,
                 bool sums, const LogitsOutputs& out) {
  run(k.log_sum_exp,
      LogitsParams{.logits = x.data(),
                   .rows = rows,
                   .stride = vocab + 1,
                   .vocab = vocab,
                   .argmax = out.argmax.data(),
                   .max = out.max.data(),
                   .log_sum = sums ? out.log_sum.data() : nullptr,
                   .has_nan = out.has_nan.data()},
      parts);
}

TEST_P(ElementwiseTest, LogSumExp) {
  constexpr int kRows = 5;
  for (const int vocab :
       {1, 2, 15, 16, 17, 63, 64, 65, 100, 511, 512, 513, 640, 1000, 4097, 32000}) {
    for (int kind = 0; kind < 6; ++kind) {
      Random random(static_cast<uint32_t>(vocab + kind));
      std::vector<float> x((kRows - 1) * (vocab + 1) + vocab);
      for (float& v : x) {
        v = 8.0f * random.uniform();
        if (kind == 1) v = std::floor(v);  // ties
        if (kind == 2) v = with_exponent(random, -127, 128);
        if (kind == 3) v = random.below(3) ? v : -INFINITY;
        if (kind == 4) v = random.below(2) ? 0.0f : -0.0f;
      }
      if (kind == 3) x[0] = -INFINITY;
      if (kind == 5) {
        for (int row = 0; row < kRows; row += 2) x[row * (vocab + 1) + random.below(vocab)] = NAN;
        x[vocab + 1] = INFINITY;
      }
      for (const bool sums : {true, false}) {
        SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << " kind " << kind);
        const LogitsOutputs expected(kRows), found(kRows);
        log_sum_exp(scalar(), x, kRows, vocab, 1, sums, expected);
        log_sum_exp(kernels(), x, kRows, vocab, 1 + kind % 3, sums, found);
        EXPECT_TRUE(same(expected.argmax, found.argmax));
        EXPECT_TRUE(same(expected.max, found.max));
        EXPECT_TRUE(same(expected.log_sum, found.log_sum));
        EXPECT_TRUE(same(expected.has_nan, found.has_nan));
      }
    }
  }
}

}  // namespace
}  // namespace invar
