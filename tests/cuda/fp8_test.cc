// Products of e4m3 numbers on a GPU, in groups and by rows, against the definition (numerics 2.2,
// 2.5), and its tensor cores against recorded ones.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "../kernels/random_fp8.h"
#include "cuda_check.h"
#include "kernels/cuda/fp8.h"
#include "kernels/reference/reference.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
  DType type = DType::e4m3;
};

// The same by rows.
Case by_rows(Case c) {
  c.type = DType::e4m3_row;
  return c;
}

// Runs of whole blocks of 128 columns, and of 32, 64, 96 and 192.
constexpr Case kCases[] = {
    {1, 16, 128},     {1, 100, 1024},     {3, 33, 512, 8},    {8, 300, 2048, 8},   {9, 48, 384, 4},
    {17, 17, 256, 8}, {2, 40, 256, 2},    {5, 1000, 1280},    {33, 144, 512, 4},   {64, 70, 896},
    {65, 272, 640},   {130, 40, 1024, 8}, {257, 389, 768, 8}, {300, 130, 1024, 2}, {128, 64, 128},
    {40, 1, 384, 2},  {200, 200, 1536, 4}};

class Fp8OnGpu : public CudaTest {
 protected:
  // Rows and what the definition makes of them, on both sides.
  struct Rows {
    Rows(Device& gpu, Random& random, const Case& c)
        : x(random_rows<bf16_t>(gpu, random, c.rows, c.k)),
          q(gpu, c.rows * c.k),
          scales(gpu, 2 * c.rows * scales_of_row(c.type, c.k, c.split_k)),
          params{.x = {x.host.data(), DType::bf16, activation_stride(c.k)},
                 .rows = c.rows,
                 .width = c.k,
                 .split_k = c.split_k,
                 .out = {q.host.data(), c.type, c.k,
                         reinterpret_cast<RunScale*>(scales.host.data())}} {
      for (int64_t i = 0; i < c.k; ++i)  // a row of finite numbers
        x.host[i] = f32_to_bf16(random.uniform());
      if (c.rows > 2) std::fill_n(x.host.begin() + 2 * activation_stride(c.k), c.k, bf16_t{0});
      if (c.rows > 4) x.host[4 * activation_stride(c.k) + c.k - 1] = 0x7f80;
      x.upload();
      run_in_parts(1, [&](const Execution& on) { reference::quantise_fp8(params, on); });
    }
    // As the GPU has them.
    Activation on_gpu() const {
      return {q.device(), params.out.type, params.width,
              reinterpret_cast<RunScale*>(scales.device())};
    }
    Activation elements_on_gpu() const { return {x.device(), DType::bf16, params.x.stride}; }
    Twin<bf16_t> x;
    Twin<uint8_t> q;
    Twin<int32_t> scales;
    QuantiseParams params;
  };

  static DeviceArray<uint8_t> copy(Device& gpu, const Fp8Weight& w) {
    DeviceArray<uint8_t> bytes(gpu, w.bytes.size(), "a test");
    gpu.upload(bytes.data(), w.bytes.data(), w.bytes.size());
    return bytes;
  }
  static std::vector<float> random_values(Random& random, int64_t size) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = random.uniform();
    return values;
  }

  // `changed` changes the signs of some numbers of a weight after the definition has multiplied.
  // `makes`: the product makes the numbers of its rows itself.
  ::testing::AssertionResult matmul_agrees(const Case& c, bool adds, bool changed = false,
                                           bool makes = false) {
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    Rows rows(gpu(), random, c);
    const Fp8Weight w(random, c.n, c.k, 1, WeightLayout::rows, c.type);
    Twin<float> y(gpu(), random_values(random, c.rows * c.n)),
        bias(gpu(), random_values(random, c.n));
    MatmulParams p{.x = rows.params.out,
                   .w = w.packed,
                   .rows = c.rows,
                   .split_k = c.split_k,
                   .bias = adds ? bias.host.data() : nullptr,
                   .accumulate = adds,
                   .y = y.host.data(),
                   .y_stride = c.n};
    run_in_parts(1, [&](const Execution& on) { reference::fp8_matmul(p, on); });
    for (int64_t i = 0; changed && i < orders::kFp8Group; ++i) w.bytes[i] ^= 0x80;
    const auto matrix = copy(gpu(), w);
    rows.q.upload();
    rows.scales.upload();
    p.x = makes ? rows.elements_on_gpu() : rows.on_gpu();
    p.w.data = matrix.data();
    p.bias = adds ? bias.device() : nullptr;
    p.y = y.device();
    cuda::fp8_matmul(p, on());
    return y.matches();
  }

  ::testing::AssertionResult gated_agrees(Case c, Nonlinearity curve, bool adds,
                                          bool makes = false) {
    c.split_k = 1;
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    Rows rows(gpu(), random, c);
    const Fp8Weight w(random, c.n, c.k, 2, WeightLayout::rows, c.type);
    const int64_t stride = round_up(c.n, kLeafPad);
    Twin<bf16_t> out(gpu(), c.rows * stride);
    Twin<float> bias(gpu(), random_values(random, 2 * c.n));
    GatedMatmulParams p{.x = rows.params.out,
                        .gate_up = w.packed,
                        .rows = c.rows,
                        .gate_bias = adds ? bias.host.data() : nullptr,
                        .up_bias = adds ? bias.host.data() + c.n : nullptr,
                        .out = {out.host.data(), DType::bf16, stride},
                        .curve = curve};
    run_in_parts(1, [&](const Execution& on) { reference::fp8_gated_matmul(p, on); });
    const auto matrix = copy(gpu(), w);
    rows.q.upload();
    rows.scales.upload();
    p.x = makes ? rows.elements_on_gpu() : rows.on_gpu();
    p.gate_up.data = matrix.data();
    p.gate_bias = adds ? bias.device() : nullptr;
    p.up_bias = adds ? bias.device() + c.n : nullptr;
    p.out.data = out.device();
    cuda::fp8_gated_matmul(p, on());
    return out.matches();
  }
};

std::string name_of(const Case& c) {
  return fmt::format("{} rows {} n {} k {} runs {}", invar::name_of(c.type), c.rows, c.n, c.k,
                     c.split_k);
}

TEST_F(Fp8OnGpu, Products) {
  const ScopedFlushToZero flush;
  for (const Case& c : kCases) {
    EXPECT_TRUE(matmul_agrees(c, true)) << name_of(c);
    EXPECT_TRUE(matmul_agrees(c, false)) << name_of(c);
    EXPECT_FALSE(matmul_agrees(c, false, true)) << name_of(c);
  }
}

// Chains of many steps, and rows of bf16 that a product makes numbers of itself.
TEST_F(Fp8OnGpu, ProductsByRows) {
  const ScopedFlushToZero flush;
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  for (const int64_t rows : {1, 4, 40, 300})
    for (const int split_k : {1, 2, 8}) cases.push_back({rows, 136, 12288, split_k});
  for (const Case& in_groups : cases) {
    const Case c = by_rows(in_groups);
    EXPECT_TRUE(matmul_agrees(c, true)) << name_of(c);
    EXPECT_TRUE(matmul_agrees(c, false)) << name_of(c);
    EXPECT_FALSE(matmul_agrees(c, false, true)) << name_of(c);
    if (c.rows <= 4 && c.k % 256 == 0 && c.k < 8192) {
      EXPECT_TRUE(matmul_agrees(c, true, false, true)) << name_of(c);
      EXPECT_FALSE(matmul_agrees(c, true, true, true)) << name_of(c);
    }
  }
}

TEST_F(Fp8OnGpu, GatedProducts) {
  const ScopedFlushToZero flush;
  for (const Case& c : kCases)
    for (const Nonlinearity curve :
         {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::clamped})
      EXPECT_TRUE(gated_agrees(c, curve, curve != Nonlinearity::gelu_tanh))
          << name_of(c) << " curve " << static_cast<int>(curve);
}

TEST_F(Fp8OnGpu, GatedProductsByRows) {
  const ScopedFlushToZero flush;
  for (const Case& in_groups : kCases) {
    const Case c = by_rows(in_groups);
    for (const Nonlinearity curve : {Nonlinearity::silu, Nonlinearity::gelu_tanh})
      EXPECT_TRUE(gated_agrees(c, curve, curve != Nonlinearity::gelu_tanh)) << name_of(c);
    if (c.rows > 4) continue;
    EXPECT_TRUE(gated_agrees(c, Nonlinearity::silu, true, true)) << name_of(c);
  }
}

TEST_F(Fp8OnGpu, Quantise) {
  const ScopedFlushToZero flush;
  const Case in_groups[] = {{40, 1, 128},     {40, 1, 128, 4}, {33, 1, 384, 4},
                            {20, 1, 1024, 8}, {7, 1, 768, 8},  {300, 1, 4096, 8}};
  std::vector<Case> cases(std::begin(in_groups), std::end(in_groups));
  for (const Case& c : in_groups) cases.push_back(by_rows(c));
  for (const Case& c : cases) {
    Random random(c.k + c.split_k);
    Rows rows(gpu(), random, c);
    for (size_t i = 0; i < rows.scales.host.size(); i += 2)  // a NaN is a NaN
      if ((rows.scales.host[i] & 0x7fffffff) > 0x7f800000 && rows.scales.host[i + 1] == 0)
        rows.scales.host[i] = 0x7fffffff;
    QuantiseParams p = rows.params;
    p.x.data = rows.x.device();
    p.out = rows.on_gpu();
    cuda::quantise_fp8(p, on());
    EXPECT_TRUE(rows.q.matches()) << name_of(c);
    EXPECT_TRUE(rows.scales.matches()) << name_of(c);
  }
}

unsigned differing_steps(const Execution& on, std::span<const cuda::RecordedSteps8> steps) {
  Device& gpu = *on.device;
  const DeviceArray<cuda::RecordedSteps8> cases(gpu, steps.size(), "recorded steps");
  const DeviceArray<unsigned> count(gpu, 1, "recorded steps");
  gpu.upload(cases.data(), steps.data(), steps.size_bytes());
  cuda::count_differing_steps(cases.data(), steps.size(), count.data(), on);
  unsigned different = 0;
  gpu.download(&different, count.data(), sizeof different);
  return different;
}

TEST_F(Fp8OnGpu, SampleIsAcceptedAndAChangedBitIsNot) {
  EXPECT_NO_THROW(cuda::check_hopper8_steps(gpu()));
  std::vector<cuda::RecordedSteps8> changed(cuda::hopper8_sample().begin(),
                                            cuda::hopper8_sample().end());
  ASSERT_EQ(changed.size(), 10u);
  changed[3].d[17][5] ^= 1;
  EXPECT_EQ(differing_steps(on(), changed), 1u);
}

TEST_F(Fp8OnGpu, EveryRecordedStep) {
  // The repository, here or where this program was brought to.
  const std::filesystem::path name = "tests/data/hopper/hopper_wgmma_e4m3_k32.bin";
  std::filesystem::path path = INVAR_SOURCE_DIR / name;
  if (!std::filesystem::exists(path)) path = name;
  std::ifstream file(path, std::ios::binary);
  int32_t count = 0;
  ASSERT_TRUE(file.read(reinterpret_cast<char*>(&count), sizeof count));
  std::vector<cuda::RecordedSteps8> steps(count);
  ASSERT_TRUE(
      file.read(reinterpret_cast<char*>(steps.data()), count * sizeof(cuda::RecordedSteps8)));
  EXPECT_EQ(differing_steps(on(), steps), 0u);
  EXPECT_EQ(count, 60);
}

}  // namespace
}  // namespace invar
