// Products of blocks as integers on a GPU against the definition (numerics 2.3).
#include "kernels/cuda/block_product.h"

#include <fmt/format.h>

#include "../kernels/random_blocks.h"
#include "cuda_check.h"
#include "kernels/cuda/blocks.h"
#include "kernels/select.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;  // k as blocks of 32; those of 256 have eight times as many columns
  int split_k = 1;
};

// Of which the last has more rows than the scratch memory takes at once.
constexpr Case kCases[] = {{1, 16, 32},     {1, 100, 96},       {2, 33, 256, 8},  {3, 48, 160},
                           {5, 40, 128, 4}, {16, 17, 64, 2},    {17, 50, 96},     {63, 20, 64},
                           {65, 33, 32},    {300, 20, 2048, 2}, {12000, 16, 2048}};

class BlockProductsOnGpu : public CudaTest {
 protected:
  Twin<bf16_t> rows_of(Random& random, int64_t rows, int64_t k) {
    Twin<bf16_t> x = random_rows<bf16_t>(gpu(), random, rows, k);
    for (int64_t t = 0; t < rows; t += 2)  // the others hold numbers of any kind
      for (int64_t i = 0; i < k; ++i)
        x.host[t * activation_stride(k) + i] = f32_to_bf16(random.uniform());
    x.upload();
    return x;
  }

  // `change`: a bit of the last integers, for the control.
  ::testing::AssertionResult matmul_agrees(DType type, const Case& c, bool change) {
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    const Twin<bf16_t> x = rows_of(random, c.rows, c.k);
    const TwoFormsOfAMatrix w(random, type, c.n, c.k, 1);
    const Twin<float> bias(gpu(), random_floats(random, c.n));
    Twin<float> y(gpu(), random_floats(random, c.rows * c.n));
    MatmulParams p{.x = {const_cast<bf16_t*>(x.host.data()), DType::bf16, activation_stride(c.k)},
                   .w = w.stored,
                   .rows = c.rows,
                   .split_k = c.split_k,
                   .bias = bias.host.data(),
                   .accumulate = true,
                   .y = y.host.data(),
                   .y_stride = c.n};
    const Kernels definition = select_block_kernels("auto");  // tests/kernels compares it
    run_in_parts(1, [&](const Execution& host) { definition.matmul(p, host); });
    if (change)
      for (int64_t i = 1; i <= 64; ++i) w.stored_bytes[w.stored.scales_at() - i] ^= 1;
    const DeviceArray<uint8_t> bytes(gpu(), w.stored.bytes(), "a test");
    const DeviceArray<std::byte> scratch(gpu(), cuda::kBlocksScratch, "a test");
    gpu().upload(bytes.data(), w.stored_bytes.data(), w.stored.bytes());
    p.x.data = x.device();
    p.w.data = bytes.data();
    p.bias = bias.device();
    p.y = y.device();
    p.scratch = scratch.data();
    cuda::block_matmul(p, on());
    return y.matches();
  }

  ::testing::AssertionResult gated_agrees(DType type, const Case& c) {
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    const Twin<bf16_t> x = rows_of(random, c.rows, c.k);
    const TwoFormsOfAMatrix w(random, type, c.n, c.k, 2);
    const int64_t stride = activation_stride(c.n);
    Twin<bf16_t> out(gpu(), c.rows * stride);
    GatedMatmulParams p{
        .x = {const_cast<bf16_t*>(x.host.data()), DType::bf16, activation_stride(c.k)},
        .gate_up = w.stored,
        .rows = c.rows,
        .gate_bias = nullptr,
        .up_bias = nullptr,
        .out = {out.host.data(), DType::bf16, stride}};
    const Kernels definition = select_block_kernels("auto");
    run_in_parts(1, [&](const Execution& host) { definition.gated_matmul(p, host); });
    const DeviceArray<uint8_t> bytes(gpu(), w.stored.bytes(), "a test");
    const DeviceArray<std::byte> scratch(gpu(), cuda::kBlocksScratch, "a test");
    gpu().upload(bytes.data(), w.stored_bytes.data(), w.stored.bytes());
    p.x.data = x.device();
    p.gate_up.data = bytes.data();
    p.out.data = out.device();
    p.scratch = scratch.data();
    cuda::block_gated_matmul(p, on());
    return out.matches();
  }
};

TEST_F(BlockProductsOnGpu, AreThoseOfTheDefinition) {
  for (const DType type : block_types())
    for (Case c : kCases) {
      c.k *= storage_of(type).block / 32;
      if (c.rows * c.k > int64_t{1} << 25 && type != DType::q8_0) continue;
      const std::string what =
          fmt::format("{}: rows {} n {} k {} runs {}", name_of(type), c.rows, c.n, c.k, c.split_k);
      EXPECT_TRUE(matmul_agrees(type, c, false)) << what;
      EXPECT_FALSE(matmul_agrees(type, c, true)) << what;
      EXPECT_TRUE(gated_agrees(type, c)) << what;
    }
}

}  // namespace
}  // namespace invar
