// Everything that is not a matrix product, against the CPU's kernels.
#include <cmath>
#include <thread>

#include "cuda_check.h"
#include "kernels/select.h"

namespace invar {
namespace {

class Elementwise : public CudaTest {
 protected:
  Kernels host_ = cpu(Order::portable), gpu_table_ = cuda::kernels(Order::portable);
};

TEST_F(Elementwise, Embed) {
  Random random(1);
  const int64_t vocab = 50, width = 72;
  const std::vector<int32_t> ids = {0, 49, 7, 7, 33};
  const Twin<int32_t> tokens(gpu(), ids);
  for (const DType type : {DType::bf16, DType::f32})
    for (const WeightLayout layout : {WeightLayout::rows, WeightLayout::panels}) {
      Matrix w = {.type = type, .n = vocab, .k = width, .layout = layout};
      Twin<float> table(gpu(), w.elements());  // as bf16: twice as many as are needed
      for (float& x : table.host) fill_row(random, std::span(&x, 1));
      table.upload();
      Twin<float> out(gpu(), std::ssize(ids) * width);
      w.data = table.host.data();
      EmbedParams p{tokens.host.data(), w, std::ssize(ids), out.host.data()};
      run_in_parts(1, [&](const Execution& on) { host_.embed(p, on); });
      p.tokens = tokens.device();
      p.table.data = table.device();
      p.out = out.device();
      gpu_table_.embed(p, on());
      EXPECT_TRUE(out.matches()) << name_of(type) << int(layout);
      p = {tokens.host.data(), w, std::ssize(ids), out.host.data(), 3.7f};
      run_in_parts(1, [&](const Execution& on) { host_.embed(p, on); });
      p.tokens = tokens.device();
      p.table.data = table.device();
      p.out = out.device();
      gpu_table_.embed(p, on());
      EXPECT_TRUE(out.matches()) << "scaled, " << name_of(type) << int(layout);
    }
}

// What ends a product and what the next one begins with, in one pass.
TEST_F(Elementwise, SumsAndNormsInOnePass) {
  Random random(14);
  const Kernels scalar = select_kernels(Order::portable, "scalar");
  for (const int64_t width : {8, 40, 1000, 1024, 2304, 4096, 5376, 8192, 9000})
    for (const bool has_norm : {false, true})
      for (const bool has_next : {false, true})
        for (const bool has_out : {false, true}) {
          const int64_t rows = 5, stride = round_up(width, kLeafPad);
          Twin<float> x(gpu(), random_floats(random, rows * stride)),
              y(gpu(), random_floats(random, rows * width));
          const Twin<float> norm(gpu(), random_floats(random, width)),
              next(gpu(), random_floats(random, width));
          Twin<bf16_t> out(gpu(), rows * activation_stride(width));
          AddNormParams p{
              .x = x.host.data(),
              .x_stride = stride,
              .bias = has_norm ? nullptr : norm.host.data(),
              .norm = has_norm ? norm.host.data() : nullptr,
              .eps = 1e-5f,
              .rows = rows,
              .width = width,
              .y = y.host.data(),
              .scale = width % 3 ? 1.0f : 0.22f,
              .next = has_next ? next.host.data() : nullptr,
              .out = {has_out ? out.host.data() : nullptr, DType::bf16, activation_stride(width)}};
          run_in_parts(1, [&](const Execution& on) { scalar.add_norm(p, on); });
          p.x = x.device();
          p.y = y.device();
          if (p.bias) p.bias = norm.device();
          if (p.norm) p.norm = norm.device();
          if (p.next) p.next = next.device();
          if (has_out) p.out.data = out.device();
          gpu_table_.add_norm(p, on());
          EXPECT_TRUE(y.matches()) << width << has_norm << has_next << has_out;
          EXPECT_TRUE(out.matches()) << width << has_norm << has_next << has_out;
        }
}

// LayerNorm, curves of products, scaled logits, heads rotated where they lie.
TEST_F(Elementwise, OperationsOfFamilies) {
  Random random(12);
  for (const int64_t width : {8, 40, 100, 896, 4544})
    for (const DType type : {DType::bf16, DType::f32}) {
      const int64_t rows = 9, stride = activation_stride(width);
      Twin<float> x(gpu(), random_floats(random, rows * width));
      for (float& v : x.host) v = 9 * v;
      x.upload();
      const Twin<float> weight(gpu(), random_floats(random, width)),
          bias(gpu(), random_floats(random, width));
      Twin<float> out(gpu(), rows * stride);
      const auto fresh = [&] {
        std::ranges::fill(out.host, 0.0f);
        out.upload();
      };
      fresh();
      LayerNormParams norm{.x = x.host.data(),
                           .x_stride = width,
                           .rows_of = nullptr,
                           .weight = weight.host.data(),
                           .bias = bias.host.data(),
                           .eps = 1e-5f,
                           .rows = rows,
                           .width = width,
                           .out = {out.host.data(), type, stride}};
      run_in_parts(1, [&](const Execution& on) { host_.layer_norm(norm, on); });
      norm.x = x.device(), norm.weight = weight.device(), norm.bias = bias.device();
      norm.out.data = out.device();
      gpu_table_.layer_norm(norm, on());
      EXPECT_TRUE(out.matches()) << "norm " << width;
      for (const Nonlinearity curve : {Nonlinearity::silu, Nonlinearity::gelu_tanh,
                                       Nonlinearity::gelu, Nonlinearity::relu_squared}) {
        fresh();
        CurveParams p{x.host.data(), width, rows, width, curve, {out.host.data(), type, stride}};
        run_in_parts(1, [&](const Execution& on) { host_.curve(p, on); });
        p.x = x.device(), p.out.data = out.device();
        gpu_table_.curve(p, on());
        EXPECT_TRUE(out.matches()) << "curve " << static_cast<int>(curve) << " " << width;
      }
      const auto before = random_floats(random, rows * width);
      Twin<float> y(gpu(), before);
      ScaleLogitsParams logits{y.host.data(), rows, width, width, 0.3f, 5.0f};
      run_in_parts(1, [&](const Execution& on) { host_.scale_logits(logits, on); });
      logits.x = y.device();
      gpu_table_.scale_logits(logits, on());
      EXPECT_TRUE(y.matches()) << "logits " << width;
      AddParams add{x.host.data(), width, bias.host.data(), rows, width, y.host.data(), 0.22f};
      run_in_parts(1, [&](const Execution& on) { host_.add(add, on); });
      add = {x.device(), width, bias.device(), rows, width, y.device(), 0.22f};
      gpu_table_.add(add, on());
      EXPECT_TRUE(y.matches()) << "add " << width;
    }
  const int heads = 3, e = 40;
  const int64_t rows = 5;
  const Twin<int32_t> positions(gpu(), std::vector<int32_t>{4, 0, 7, 7, 2});
  const Twin<float> cos(gpu(), random_floats(random, 8 * e / 2)),
      sin(gpu(), random_floats(random, 8 * e / 2));
  Twin<float> x(gpu(), random_floats(random, rows * heads * e));
  RotateHeadsParams p{x.host.data(),         heads * e,       rows,           heads, e,
                      positions.host.data(), cos.host.data(), sin.host.data()};
  run_in_parts(1, [&](const Execution& on) { host_.rotate_heads(p, on); });
  gpu_table_.rotate_heads(
      {x.device(), heads * e, rows, heads, e, positions.device(), cos.device(), sin.device()},
      on());
  EXPECT_TRUE(x.matches());
}

// The vector that a token brings to a layer, gated by the stream, and the number that ends the
// layer.
TEST_F(Elementwise, EndOfALayer) {
  Random random(17);
  for (const int64_t width : {8, 16, 100, 256, 1536})
    for (const DType type : {DType::bf16, DType::f32}) {
      const int64_t rows = 9, inputs_stride = 3 * width + 5, stride = activation_stride(width);
      Twin<float> x(gpu(), random_floats(random, rows * width));
      for (float& value : x.host) value = 9 * value;
      x.upload();
      const Twin<float> inputs(gpu(), random_floats(random, rows * inputs_stride)),
          factor(gpu(), std::vector<float>{0.7f});
      Twin<float> out(gpu(), rows * stride);  // of bf16 half of it
      std::ranges::fill(out.host, 0.0f);
      out.upload();
      GateInputsParams gate{.x = x.host.data(),
                            .inputs = inputs.host.data() + width,
                            .inputs_stride = inputs_stride,
                            .rows = rows,
                            .width = width,
                            .curve = Nonlinearity::gelu_tanh,
                            .out = {out.host.data(), type, stride}};
      run_in_parts(1, [&](const Execution& on) { host_.gate_inputs(gate, on); });
      EXPECT_FALSE(out.matches()) << "the comparison sees no gate";
      gate.x = x.device(), gate.inputs = inputs.device() + width, gate.out.data = out.device();
      gpu_table_.gate_inputs(gate, on());
      EXPECT_TRUE(out.matches()) << "gate " << width;
      ScaleRowsParams scale{x.host.data(), rows, width, factor.host.data()};
      run_in_parts(1, [&](const Execution& on) { host_.scale_rows(scale, on); });
      EXPECT_FALSE(x.matches()) << "the comparison sees no factor";
      gpu_table_.scale_rows({x.device(), rows, width, factor.device()}, on());
      EXPECT_TRUE(x.matches()) << "scale " << width;
    }
}

// Heads that lie among others, where they lie.
TEST_F(Elementwise, RmsNormInPlace) {
  Random random(18);
  for (const int64_t width : {16, 256, 512, 2816}) {
    const int64_t rows = 9, stride = 3 * width + 4;
    Twin<float> x(gpu(), random_floats(random, rows * stride));
    const Twin<float> weight(gpu(), random_floats(random, width));
    const auto norm = [&](const Kernels& kernels, float* at, const float* by, const Execution& on) {
      kernels.rms_norm({.x = at,
                        .x_stride = stride,
                        .rows_of = nullptr,
                        .weight = by,
                        .eps = 1e-6f,
                        .rows = rows,
                        .width = width,
                        .out = {at, DType::f32, stride},
                        .keeps_pad = true},
                       on);
    };
    run_in_parts(1, [&](const Execution& on) {
      norm(host_, x.host.data() + width, weight.host.data(), on);
    });
    EXPECT_FALSE(x.matches()) << "the comparison sees no norm";
    norm(gpu_table_, x.device() + width, weight.device(), on());
    EXPECT_TRUE(x.matches()) << width;
  }
}

TEST_F(Elementwise, OutputGate) {
  Random random(3);
  const int64_t rows = 7, width = 100;
  const Twin<float> gate(gpu(), random_floats(random, rows * width));
  const std::vector<float> values = random_floats(random, rows * width);
  std::vector<bf16_t> rounded;
  for (const float value : values) rounded.push_back(f32_to_bf16(value));
  const auto check = [&](auto x, DType type) {
    OutputGateParams p{{x.host.data(), type, width}, gate.host.data(), width, rows, width};
    run_in_parts(1, [&](const Execution& on) { host_.gate_output(p, on); });
    p.x.data = x.device(), p.gate = gate.device();
    gpu_table_.gate_output(p, on());
    EXPECT_TRUE(x.matches());
  };
  check(Twin<float>(gpu(), values), DType::f32);
  check(Twin<bf16_t>(gpu(), rounded), DType::bf16);
}

TEST_F(Elementwise, RmsNorm) {
  Random random(2);
  for (const int64_t width : {8, 40, 64, 100, 896, 1024, 2048, 4096, 5120, 8192})
    for (const DType type : {DType::bf16, DType::f32}) {
      const int64_t rows = 9, stride = activation_stride(width);
      Twin<float> x(gpu(), rows * (width + 4));
      for (int64_t t = 0; t < rows; ++t)
        fill_row(random, std::span(x.host).subspan(t * (width + 4), width));
      x.upload();
      const Twin<float> weight(gpu(), random_floats(random, width));
      const Twin<int32_t> rows_of(gpu(), std::vector<int32_t>{8, 0, 3, 3, 5, 1, 2, 4, 6});
      Twin<float> out(gpu(), rows * stride);
      std::ranges::fill(out.host, 0.0f);
      out.upload();
      RmsNormParams p{x.host.data(),
                      width + 4,
                      rows_of.host.data(),
                      weight.host.data(),
                      1e-5f,
                      rows,
                      width,
                      {out.host.data(), type, stride}};
      run_in_parts(1, [&](const Execution& on) { host_.rms_norm(p, on); });
      p.x = x.device();
      p.rows_of = rows_of.device();
      p.weight = weight.device();
      p.out.data = out.device();
      gpu_table_.rms_norm(p, on());
      // bf16 pairs may look like NaN of different payloads as f32; compare them as what they are.
      if (type == DType::f32) {
        EXPECT_TRUE(out.matches()) << width;
      } else {
        const auto found = out.download();
        const auto halves = [](const auto& v) {
          return std::span(reinterpret_cast<const bf16_t*>(v.data()), v.size() * 2);
        };
        EXPECT_TRUE(same_bits(halves(out.host), halves(found))) << width;
      }
    }
}

// How much shared memory a kernel may have is one number for all threads.
TEST_F(Elementwise, ThreadsLaunchAKernelForDifferentWidths) {
  constexpr int kThreads = 4, kLaunches = 3000;
  const auto norm = [&](int thread) {
    const int64_t width = int64_t{300} << thread, stride = activation_stride(width);
    Random random(static_cast<uint32_t>(thread));
    const Twin<float> x(gpu(), random_floats(random, width)),
        weight(gpu(), random_floats(random, width));
    Twin<float> out(gpu(), stride);
    std::ranges::fill(out.host, 0.0f);
    out.upload();
    RmsNormParams p{x.host.data(), width, nullptr, weight.host.data(),
                    1e-5f,         1,     width,   {out.host.data(), DType::f32, stride}};
    run_in_parts(1, [&](const Execution& on) { host_.rms_norm(p, on); });
    p.x = x.device(), p.weight = weight.device(), p.out.data = out.device();
    const auto stream = gpu().make_stream();
    for (int i = 0; i < kLaunches; ++i) gpu_table_.rms_norm(p, {&gpu(), stream.get()});
    stream->wait();
    EXPECT_TRUE(out.matches()) << width;
  };
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] { EXPECT_NO_THROW(norm(thread)) << thread; });
}

// Rows of heads, and where they go.
struct QkvCase {
  int head_dim;
  bool norm;
  int64_t stride_more;  // elements between a row's end and the next one's beginning
  CacheLayout layout;
  std::vector<int32_t> positions, begin, block, slot;
  int kv_heads = 2;  // 0: of queries alone
};

class Rotation : public Elementwise {
 protected:
  const Kernels host_ = select_kernels(Order::portable, "scalar");

  // T: of queries, keys and values.
  template <typename T = bf16_t>
  void check(Random& random, const QkvCase& c) {
    const int heads = 6, kv_heads = c.kv_heads, block_size = 32, max_position = 700, e = c.head_dim;
    const int64_t rows = std::ssize(c.positions),
                  stride = (heads + 2 * kv_heads) * e + c.stride_more;
    const int blocks = 1 + *std::ranges::max_element(c.block);
    Twin<float> in(gpu(), rows * stride), cos(gpu(), random_floats(random, max_position * e / 2)),
        sin(gpu(), random_floats(random, max_position * e / 2)),
        q_norm(gpu(), random_floats(random, e)), k_norm(gpu(), random_floats(random, e));
    for (int64_t t = 0; t < rows; ++t)
      fill_row(random, std::span(in.host).subspan(t * stride, stride));
    in.upload();
    const Twin<int32_t> positions(gpu(), c.positions), begin(gpu(), c.begin), block(gpu(), c.block),
        slot(gpu(), c.slot);
    KvLayer kv{.block_size = block_size,
               .kv_heads = kv_heads,
               .head_dim = e,
               .layout = c.layout,
               .type = std::is_same_v<T, float> ? DType::f32 : DType::bf16};
    Twin<T> keys(gpu(), blocks * kv_heads * kv.key_block()),
        values(gpu(), blocks * kv_heads * kv.value_block()),
        q(gpu(), rows * heads * round_up(e, 32));
    std::ranges::fill(keys.host, T{0});
    std::ranges::fill(values.host, T{0});
    keys.upload();
    values.upload();
    Twin<char> failed(gpu(), std::vector<char>(rows, 0));
    const auto of = [](T* data) { return reinterpret_cast<bf16_t*>(data); };
    kv.keys = of(keys.host.data());
    kv.values = of(values.host.data());
    QkvParams p{.qkv = in.host.data(),
                .qkv_stride = stride,
                .rows = rows,
                .heads = heads,
                .q_norm = c.norm ? q_norm.host.data() : nullptr,
                .k_norm = c.norm ? k_norm.host.data() : nullptr,
                .norm_eps = 1e-6f,
                .positions = positions.host.data(),
                .cos = cos.host.data(),
                .sin = sin.host.data(),
                .write_begin = begin.host.data(),
                .write_block = block.host.data(),
                .write_slot = slot.host.data(),
                .kv = kv,
                .q = of(q.host.data()),
                .non_finite = reinterpret_cast<bool*>(failed.host.data())};
    run_in_parts(1, [&](const Execution& on) { host_.qkv(p, on); });
    p.qkv = in.device();
    p.q_norm = c.norm ? q_norm.device() : nullptr;
    p.k_norm = c.norm ? k_norm.device() : nullptr;
    p.positions = positions.device();
    p.cos = cos.device();
    p.sin = sin.device();
    p.write_begin = begin.device();
    p.write_block = block.device();
    p.write_slot = slot.device();
    p.kv.keys = of(keys.device());
    p.kv.values = of(values.device());
    p.q = of(q.device());
    EXPECT_FALSE(q.matches()) << "the comparison sees no rotation";
    EXPECT_EQ(static_cast<bool>(keys.matches()), kv_heads == 0) << "and no keys";
    p.non_finite = reinterpret_cast<bool*>(failed.device());
    gpu_table_.qkv(p, on());
    EXPECT_TRUE(q.matches()) << e << c.norm;
    EXPECT_TRUE(keys.matches()) << e << c.norm;
    EXPECT_TRUE(values.matches()) << e << c.norm;
    EXPECT_TRUE(failed.matches()) << e << c.norm;
  }
};

TEST_F(Rotation, FewRows) {
  Random random(3);
  for (const int e : {8, 40, 64, 128, 256, 512, 576})
    for (const bool norm : {false, true}) {
      QkvCase c{.head_dim = e,
                .norm = norm,
                .stride_more = 3,
                .layout = CacheLayout::panels,
                .positions = {0, 1, 199, 31, 32, 64, 5},
                .begin = {0, 1, 2, 5, 6, 7, 8, 8},
                .block = {0, 0, 1, 2, 3, 4, 4, 4},
                .slot = {0, 1, 31, 30, 29, 0, 1, 7}};
      for (const int kv_heads : {2, 0}) {
        c.kv_heads = kv_heads;
        check(random, c);
        check<float>(random, c);
      }
    }
}

// A prompt: by several heads per warp where rows are aligned, else as above.
TEST_F(Rotation, ManyRows) {
  Random random(13);
  QkvCase c{.head_dim = 128, .layout = CacheLayout::rows, .begin = {0}};
  for (int32_t t = 0; t < 600; ++t) {
    c.positions.push_back(t + 40);
    const int writes = t % 50 == 3 ? 0 : t % 50 == 7 ? 2 : 1;  // of drafts: more or fewer than one
    for (int i = 0; i < writes; ++i) {
      c.block.push_back(t / 32 + 20 * i);
      c.slot.push_back(t % 32);
    }
    c.begin.push_back(static_cast<int32_t>(c.block.size()));
  }
  for (const bool norm : {false, true})
    for (const int64_t more : {0, 3}) {
      c.norm = norm;
      c.stride_more = more;
      check(random, c);
    }
}

TEST_F(Elementwise, Add) {
  Random random(4);
  const int64_t rows = 5, width = 77;
  const Twin<float> x(gpu(), random_floats(random, rows * width)),
      bias(gpu(), random_floats(random, width));
  const auto before = random_floats(random, rows * width);
  for (const bool has_bias : {false, true}) {
    Twin<float> y(gpu(), before);
    AddParams p{x.host.data(), width, has_bias ? bias.host.data() : nullptr,
                rows,          width, y.host.data()};
    run_in_parts(1, [&](const Execution& on) { host_.add(p, on); });
    gpu_table_.add({x.device(), width, has_bias ? bias.device() : nullptr, rows, width, y.device()},
                   on());
    EXPECT_TRUE(y.matches());
  }
}

TEST_F(Elementwise, AddSilu) {
  Random random(6);
  const int64_t count = 700;
  auto values = random_floats(random, count);
  for (const float x : {-200.0f, -88.0f, 0.0f, -0.0f, 90.0f}) values.push_back(x);
  const Twin<float> x(gpu(), values);
  Twin<float> y(gpu(), random_floats(random, std::ssize(values)));
  run_in_parts(1, [&](const Execution& on) {
    host_.add_silu({x.host.data(), std::ssize(values), y.host.data()}, on);
  });
  EXPECT_FALSE(y.matches()) << "the comparison sees no sum";
  gpu_table_.add_silu({x.device(), std::ssize(values), y.device()}, on());
  EXPECT_TRUE(y.matches());
}

// All rows, and those that are named.
TEST_F(Elementwise, Round) {
  Random random(7);
  const int64_t rows = 3, width = 77, stride = round_up(width, kLeafPad);
  const Twin<float> x(gpu(), random_floats(random, 5 * width));
  const Twin<int32_t> rows_of(gpu(), std::vector<int32_t>{4, 0, 3});
  decltype(Twin<bf16_t>::host) before;
  for (const bool is_named : {false, true}) {
    Twin<bf16_t> out(gpu(), std::vector<bf16_t>(rows * stride, 1));
    host_.round({x.host.data(),
                 width,
                 is_named ? rows_of.host.data() : nullptr,
                 rows,
                 width,
                 {out.host.data(), DType::bf16, stride}},
                Execution());
    EXPECT_NE(out.host, before) << "both orders of rows are the same";
    before = out.host;
    gpu_table_.round({x.device(),
                      width,
                      is_named ? rows_of.device() : nullptr,
                      rows,
                      width,
                      {out.device(), DType::bf16, stride}},
                     on());
    EXPECT_TRUE(out.matches());
  }
}

// The cache as it is defined: values where a row has elements, zero beside them. Which of the zeros
// are copied too is the kernel's affair.
class Copies : public Elementwise {
 protected:
  // T: of keys and values.
  template <typename T>
  void check(CacheLayout layout) {
    Random random(5);
    const Twin<SlotCopy> copies(
        gpu(), std::vector<SlotCopy>{{0, 1, 3, 40}, {2, 3, 0, 64}, {0, 5, 63, 64}});
    KvLayer kv{.block_size = 64,
               .kv_heads = 3,
               .head_dim = 40,
               .layout = layout,
               .type = std::is_same_v<T, float> ? DType::f32 : DType::bf16};
    Twin<T> keys(gpu(), std::vector<T>(6 * 3 * kv.key_block()));
    Twin<T> values(gpu(), std::vector<T>(6 * 3 * kv.value_block()));
    const auto any = [&] {
      if constexpr (std::is_same_v<T, float>)
        return random.uniform();
      else
        return f32_to_bf16(random.uniform());
    };
    for (int block = 0; block < 6; ++block)
      for (int head = 0; head < kv.kv_heads; ++head)
        for (int slot = 0; slot < kv.block_size; ++slot)
          for (int e = 0; e < kv.head_dim; ++e) {
            keys.host[kv.key_index(block, head, slot, e)] = any();
            values.host[kv.value_index(block, head, slot, e)] = any();
          }
    keys.upload();
    values.upload();
    kv.keys = reinterpret_cast<bf16_t*>(keys.host.data());
    kv.values = reinterpret_cast<bf16_t*>(values.host.data());
    run_in_parts(1, [&](const Execution& on) {
      host_.copy_slots({kv, copies.host.data(), 3}, on);
    });
    EXPECT_FALSE(keys.matches()) << "the comparison sees no copies";
    EXPECT_FALSE(values.matches()) << "the comparison sees no copies";
    kv.keys = reinterpret_cast<bf16_t*>(keys.device());
    kv.values = reinterpret_cast<bf16_t*>(values.device());
    gpu_table_.copy_slots({kv, copies.device(), 3}, on());
    EXPECT_TRUE(keys.matches());
    EXPECT_TRUE(values.matches());
  }
};

TEST_F(Copies, OfSlots) {
  for (const CacheLayout layout : {CacheLayout::panels, CacheLayout::rows}) check<bf16_t>(layout);
  check<float>(CacheLayout::panels);
}

// Layers with a state are among a model's layers, and have neither keys nor values.
TEST_F(Copies, OfALayerWithoutKeys) {
  Twin<SlotCopy> copies(gpu(), std::vector<SlotCopy>{{0, 1, 0, 32}});
  for (const auto copy : {gpu_table_.copy_slots, gpu_table_.copy_stored})
    EXPECT_NO_THROW(copy({KvLayer{.block_size = 32}, copies.device(), 1}, on()));
  on().stream->wait();
}

TEST_F(Elementwise, LogSumExp) {
  Random random(6);
  for (const int64_t vocab : {1, 63, 320, 513, 32000, 151936}) {
    const int64_t rows = 4, stride = vocab + 5;
    Twin<float> logits(gpu(), rows * stride);
    for (float& x : logits.host) x = 12.0f * random.uniform();
    logits.host[stride + vocab / 2] = std::numeric_limits<float>::quiet_NaN();
    if (vocab > 100) logits.host[2 * stride + 99] = logits.host[2 * stride + 17] = 100.0f;  // a tie
    logits.upload();
    Twin<int32_t> argmax(gpu(), rows);
    Twin<float> max(gpu(), rows), log_sum(gpu(), rows);
    Twin<char> has_nan(gpu(), std::vector<char>(rows, 0));
    LogitsParams p{logits.host.data(),
                   rows,
                   stride,
                   vocab,
                   argmax.host.data(),
                   max.host.data(),
                   log_sum.host.data(),
                   reinterpret_cast<bool*>(has_nan.host.data())};
    run_in_parts(1, [&](const Execution& on) { host_.log_sum_exp(p, on); });
    p = {
        logits.device(), rows,         stride,           vocab,
        argmax.device(), max.device(), log_sum.device(), reinterpret_cast<bool*>(has_nan.device())};
    gpu_table_.log_sum_exp(p, on());
    EXPECT_TRUE(argmax.matches()) << vocab;
    EXPECT_TRUE(max.matches()) << vocab;
    EXPECT_TRUE(log_sum.matches()) << vocab;
    EXPECT_TRUE(has_nan.matches()) << vocab;
  }
}

}  // namespace
}  // namespace invar
