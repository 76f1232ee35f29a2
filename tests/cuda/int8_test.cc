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
