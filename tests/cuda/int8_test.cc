// Products of integers on a GPU against the definition (numerics 2.1), in both layouts.
#include <fmt/format.h>

#include "../kernels/random_int8.h"
#include "cuda_check.h"
#include "kernels/cuda/int8.h"
#include "kernels/reference/reference.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
};

constexpr Case kCases[] = {{1, 16, 32},        {1, 100, 895},  {3, 33, 512, 8},
                           {8, 300, 2048, 8},  {9, 48, 96},    {17, 17, 256, 2},
                           {33, 144, 512, 4},  {65, 272, 320}, {130, 40, 1024},
                           {257, 389, 768, 8}, {128, 64, 64},  {40, 1, 33}};

class Int8OnGpu : public CudaTest {
 protected:
  // Operands on the GPU.
  struct Copies {
    Copies(Device& gpu, const Int8Rows& x, const Int8Weight& w)
        : values(gpu, x.values.size(), "a test"),
          scales(gpu, x.scales.size(), "a test"),
          bytes(gpu, w.bytes.size(), "a test"),
          rows{values.data(), DType::i8, x.stride, scales.data()},
          matrix(w.packed) {
      gpu.upload(values.data(), x.values.data(), x.values.size());
      gpu.upload(scales.data(), x.scales.data(), x.scales.size() * sizeof(RunScale));
      gpu.upload(bytes.data(), w.bytes.data(), w.bytes.size());
      matrix.data = bytes.data();
    }
    DeviceArray<int8_t> values;
    DeviceArray<RunScale> scales;
    DeviceArray<uint8_t> bytes;
    Activation rows;
    Matrix matrix;
  };

  ::testing::AssertionResult matmul_agrees(const Case& c, WeightLayout layout, bool change) {
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    const Int8Rows x(random, c.rows, c.k, c.split_k, layout);
    const Int8Weight w(random, c.n, c.k, 1, layout);
    Twin<float> y(gpu(), random_vector(random, c.rows * c.n)),
        bias(gpu(), random_vector(random, c.n));
    MatmulParams p{.x = x.view(),
                   .w = w.packed,
                   .rows = c.rows,
                   .split_k = c.split_k,
                   .bias = bias.host.data(),
                   .accumulate = true,
                   .y = y.host.data(),
                   .y_stride = c.n};
    run_in_parts(1, [&](const Execution& on) { reference::int8_matmul(p, on); });
    for (int i = 0; change && i < 64; ++i) w.bytes[i] ^= 1;
    const Copies copies(gpu(), x, w);
    p.x = copies.rows;
    p.w = copies.matrix;
    p.bias = bias.device();
    p.y = y.device();
    cuda::int8_matmul(p, on());
    return y.matches();
  }

  ::testing::AssertionResult gated_agrees(const Case& c, WeightLayout layout) {
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    const Int8Rows x(random, c.rows, c.k, 1, layout);
    const Int8Weight w(random, c.n, c.k, 2, layout);
    const int64_t stride = round_up(c.n, kLeafPad);
    Twin<bf16_t> out(gpu(), c.rows * stride);
    GatedMatmulParams p{.x = x.view(),
                        .gate_up = w.packed,
                        .rows = c.rows,
                        .gate_bias = nullptr,
                        .up_bias = nullptr,
                        .out = {out.host.data(), DType::bf16, stride}};
    run_in_parts(1, [&](const Execution& on) { reference::int8_gated_matmul(p, on); });
    const Copies copies(gpu(), x, w);
    p.x = copies.rows;
    p.gate_up = copies.matrix;
    p.out.data = out.device();
    cuda::int8_gated_matmul(p, on());
    return out.matches();
  }
};

TEST_F(Int8OnGpu, Products) {
  for (const WeightLayout layout : {WeightLayout::rows, WeightLayout::panels})
    for (const Case& c : kCases) {
      const std::string what = fmt::format("{} rows {} n {} k {} runs {}",
                                           layout == WeightLayout::rows ? "rows" : "panels", c.rows,
                                           c.n, c.k, c.split_k);
      EXPECT_TRUE(matmul_agrees(c, layout, false)) << what;
      EXPECT_FALSE(matmul_agrees(c, layout, true)) << what;
      EXPECT_TRUE(gated_agrees(c, layout)) << what;
    }
}

// Few rows of bf16, some without a finite maximum or with none but zeros, of which the product
// makes integers itself.
TEST_F(Int8OnGpu, ProductsMakeIntegersOfFewRows) {
  constexpr Case kFew[] = {{1, 16, 32},     {1, 100, 895},      {4, 300, 2048, 8},
                           {3, 33, 512, 8}, {4, 144, 512, 4},   {4, 17, 256, 2},
                           {1, 4096, 4096}, {2, 3000, 6144, 8}, {4, 1000, 8000, 1}};
  for (const Case& c : kFew)
    for (const bool changed : {false, true}) {
      const std::string what =
          fmt::format("rows {} n {} k {} runs {}", c.rows, c.n, c.k, c.split_k);
      Random random(c.rows * 7919 + c.n * 31 + c.k);
      const Int8Weight w(random, c.n, c.k, 1, WeightLayout::rows);
      const Int8Weight pair(random, c.n, c.k, 2, WeightLayout::rows);
      Twin<bf16_t> x = random_rows<bf16_t>(gpu(), random, c.rows, c.k);
      for (int64_t i = 0; i < c.k; ++i) x.host[i] = f32_to_bf16(random.uniform());
      if (c.rows > 2) {
        x.host[activation_stride(c.k) + 3] = 0x7f80;
        std::fill_n(x.host.begin() + 2 * activation_stride(c.k), c.k, bf16_t{0});
      }
      x.upload();
      if (changed)  // the control
        for (int i = 0; i < 16; ++i) x.host[i] ^= 0x8000;
      const int64_t stride = int8_stride(c.k, WeightLayout::rows), out = round_up(c.n, kLeafPad);
      std::vector<int8_t> q(c.rows * stride);
      std::vector<RunScale> scales(c.rows * c.split_k);
      const Activation rows{x.host.data(), DType::bf16, activation_stride(c.k)};
      const QuantiseParams quantise{.x = rows,
                                    .rows = c.rows,
                                    .width = c.k,
                                    .split_k = c.split_k,
                                    .out = {q.data(), DType::i8, stride, scales.data()}};
      run_in_parts(1, [&](const Execution& at) { reference::quantise(quantise, at); });
      ASSERT_TRUE(cuda::makes_integers(w.packed, c.rows, c.split_k)) << what;
      Twin<float> y(gpu(), random_vector(random, c.rows * c.n));
      Twin<bf16_t> gated(gpu(), c.rows * out);
      MatmulParams p{.x = quantise.out,
                     .w = w.packed,
                     .rows = c.rows,
                     .split_k = c.split_k,
                     .bias = nullptr,
                     .accumulate = true,
                     .y = y.host.data(),
                     .y_stride = c.n};
      GatedMatmulParams g{.x = quantise.out,
                          .gate_up = pair.packed,
                          .rows = c.rows,
                          .gate_bias = nullptr,
                          .up_bias = nullptr,
                          .out = {gated.host.data(), DType::bf16, out}};
      run_in_parts(1, [&](const Execution& at) { reference::int8_matmul(p, at); });
      if (c.split_k == 1)
        run_in_parts(1, [&](const Execution& at) { reference::int8_gated_matmul(g, at); });
      const auto copy = [&](const Int8Weight& weight) {
        DeviceArray<uint8_t> bytes(gpu(), weight.bytes.size(), "a test");
        gpu().upload(bytes.data(), weight.bytes.data(), weight.bytes.size());
        return bytes;
      };
      const auto matrix = copy(w), matrices = copy(pair);
      p.x = g.x = {const_cast<bf16_t*>(x.device()), DType::bf16, activation_stride(c.k)};
      p.w.data = matrix.data();
      p.y = y.device();
      g.gate_up.data = matrices.data();
      g.out.data = gated.device();
      cuda::int8_matmul(p, on());
      EXPECT_EQ(static_cast<bool>(y.matches()), !changed) << what;
      if (c.split_k > 1) continue;
      cuda::int8_gated_matmul(g, on());
      EXPECT_EQ(static_cast<bool>(gated.matches()), !changed) << what;
    }
}

TEST_F(Int8OnGpu, Quantise) {
  for (const int64_t k : {33, 96, 512, 895})
    for (const int split_k : {1, 2, 8}) {
      if (split_k > 1 && k % (32 * split_k)) continue;
      Random random(k + split_k);
      const int64_t rows = 40, stride = int8_stride(k, WeightLayout::rows);
      const Twin<bf16_t> x = random_rows<bf16_t>(gpu(), random, rows, k);
      Twin<int8_t> q(gpu(), rows * stride);
      Twin<int32_t> scales(gpu(), 2 * rows * split_k);
      QuantiseParams p{.x = {const_cast<bf16_t*>(x.host.data()), DType::bf16, activation_stride(k)},
                       .rows = rows,
                       .width = k,
                       .split_k = split_k,
                       .out = {q.host.data(), DType::i8, stride,
                               reinterpret_cast<RunScale*>(scales.host.data())}};
      run_in_parts(1, [&](const Execution& on) { reference::quantise(p, on); });
      for (int64_t i = 0; i < rows * split_k; ++i)  // a NaN is a NaN
        if ((scales.host[2 * i] & 0x7fffffff) > 0x7f800000) scales.host[2 * i] = 0x7fffffff;
      p.x.data = x.device();
      p.out = {q.device(), DType::i8, stride, reinterpret_cast<RunScale*>(scales.device())};
      cuda::quantise(p, on());
      EXPECT_TRUE(q.matches()) << k << " in " << split_k;
      EXPECT_TRUE(scales.matches()) << k << " in " << split_k;
    }
}

}  // namespace
}  // namespace invar
