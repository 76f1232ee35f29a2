// Matrix products: every schedule of both orders against the CPU's kernels.
#include <fmt/format.h>

#include "cuda_check.h"
#include "kernels/pack.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int runs = 1;
  bool bias = false, accumulate = false;
  DType type = DType::bf16;
};

std::string describe(const Case& c, const char* schedule) {
  return fmt::format("{}: rows {} n {} k {} runs {} bias {} accumulate {} {}", schedule, c.rows,
                     c.n, c.k, c.runs, c.bias, c.accumulate, name_of(c.type));
}

template <typename T>
constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;

// `matrices` packed matrices with panels in turn.
template <typename T>
Twin<T> random_weight(Device& gpu, Random& random, PackedWeight& w, int matrices) {
  Twin<T> packed(gpu, matrices * w.elements());
  std::ranges::fill(packed.host, T{0});
  std::vector<T> row(w.k);
  for (int64_t n = 0; n < w.n; ++n)
    for (int m = 0; m < matrices; ++m) {
      fill_row(random, std::span<T>(row));
      const PackPlace place = {.output = m * 16, .step = matrices};
      pack_rows(kType<T>, row.data(), w.k, n, 1, w.k, place, packed.host.data());
    }
  packed.upload();
  return packed;
}

class Products : public CudaTest {
 protected:
  template <typename T>
  void check_matmul(Order order, const Case& c) {
    Random random(c.rows * 7919 + c.n * 104729 + c.k * 31 + c.runs);
    PackedWeight w = {.type = kType<T>, .n = c.n, .k = c.k};
    const auto x = random_rows<T>(gpu(), random, c.rows, c.k);
    const auto weight = random_weight<T>(gpu(), random, w, 1);
    const Twin<float> bias(gpu(), random_floats(random, c.n));
    const int64_t stride = c.n + random.below(40);
    const auto before = random_floats(random, c.rows * stride);
    Twin<float> y(gpu(), before);
    MatmulParams p{.x = {const_cast<T*>(x.host.data()), kType<T>, activation_stride(c.k)},
                   .w = w,
                   .rows = c.rows,
                   .runs = c.runs,
                   .bias = c.bias ? bias.host.data() : nullptr,
                   .accumulate = c.accumulate,
                   .y = y.host.data(),
                   .y_stride = stride};
    p.w.data = weight.host.data();
    run_in_parts(1, [&](const Execution& on) { cpu(order).matmul(p, on); });
    p.x.data = x.device();
    p.w.data = weight.device();
    p.bias = c.bias ? bias.device() : nullptr;
    p.y = y.device();
    for (const cuda::ProductSchedule& s : cuda::product_schedules(order)) {
      if (!s.can(c.k, c.runs)) continue;
      gpu().upload(y.device(), before.data(), before.size() * sizeof(float));
      s.matmul(p, on());
      EXPECT_TRUE(y.matches()) << describe(c, s.name);
    }
    gpu().upload(y.device(), before.data(), before.size() * sizeof(float));
    cuda::kernels(order).matmul(p, on());
    EXPECT_TRUE(y.matches()) << describe(c, "chosen");
  }

  template <typename T>
  void check_gated(Order order, const Case& c) {
    Random random(c.rows * 7919 + c.n * 104729 + c.k * 31);
    PackedWeight w = {.type = kType<T>, .n = c.n, .k = c.k};
    const auto x = random_rows<T>(gpu(), random, c.rows, c.k);
    const auto weight = random_weight<T>(gpu(), random, w, 2);
    const Twin<float> gate(gpu(), random_floats(random, c.n)),
        up(gpu(), random_floats(random, c.n));
    Twin<T> y(gpu(), c.rows * activation_stride(c.n));
    GatedMatmulParams p{.x = {const_cast<T*>(x.host.data()), kType<T>, activation_stride(c.k)},
                        .gate_up = w,
                        .rows = c.rows,
                        .gate_bias = c.bias ? gate.host.data() : nullptr,
                        .up_bias = c.bias ? up.host.data() : nullptr,
                        .out = {y.host.data(), kType<T>, activation_stride(c.n)}};
    p.gate_up.data = weight.host.data();
    run_in_parts(1, [&](const Execution& on) { cpu(order).gated_matmul(p, on); });
    p.x.data = x.device();
    p.gate_up.data = weight.device();
    p.gate_bias = c.bias ? gate.device() : nullptr;
    p.up_bias = c.bias ? up.device() : nullptr;
    p.out.data = y.device();
    const std::vector<T> stale(
        y.host.size(),
        std::bit_cast<T>(static_cast<std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>>(~0u)));
    for (const cuda::ProductSchedule& s : cuda::product_schedules(order)) {
      if (!s.can(c.k, 1)) continue;
      gpu().upload(y.device(), stale.data(), stale.size() * sizeof(T));
      s.gated_matmul(p, on());
      EXPECT_TRUE(y.matches()) << describe(c, s.name);
    }
  }
};

constexpr Case kMatmuls[] = {
    {1, 1, 1},
    {1, 16, 32, 1, true},
    {3, 40, 40, 1, false, true},
    {8, 33, 96, 1, true, true},
    {17, 80, 256, 8, true, true},
    {33, 144, 512, 4, false, true},
    {65, 272, 256, 2},
    {130, 48, 128, 1, true},
    {200, 300, 1056},
    {5, 64, 4096, 8, false, true},
    {129, 128, 2048, 8, true, true},
    {2, 320, 11008, 8, false, true},
};

TEST_F(Products, HopperMatmul) {
  for (const Case& c : kMatmuls) check_matmul<bf16_t>(Order::hopper, c);
}

TEST_F(Products, PortableMatmul) {
  for (const Case& c : kMatmuls) {
    check_matmul<bf16_t>(Order::portable, c);
    Case f32 = c;
    f32.type = DType::f32;
    check_matmul<float>(Order::portable, f32);
  }
}

constexpr Case kGated[] = {
    {1, 1, 1},      {1, 16, 64, 1, true},     {5, 40, 96}, {9, 24, 40, 1, true}, {33, 100, 256},
    {70, 272, 512}, {140, 160, 1024, 1, true}};

TEST_F(Products, HopperGatedMatmul) {
  for (const Case& c : kGated) check_gated<bf16_t>(Order::hopper, c);
}

TEST_F(Products, PortableGatedMatmul) {
  for (const Case& c : kGated) {
    check_gated<bf16_t>(Order::portable, c);
    check_gated<float>(Order::portable, c);
  }
}

// The orders are not each other: a table that mixed them up would be seen.
TEST_F(Products, OrdersDiffer) {
  Random random(5);
  PackedWeight w = {.type = DType::bf16, .n = 64, .k = 1024};
  Twin<bf16_t> x(gpu(), activation_stride(w.k)), weight(gpu(), w.elements());
  for (bf16_t& v : x.host) v = f32_to_bf16(random.uniform());
  for (bf16_t& v : weight.host) v = f32_to_bf16(random.uniform());
  x.upload();
  weight.upload();
  w.data = weight.device();
  Twin<float> a(gpu(), w.n), b(gpu(), w.n);
  MatmulParams p{
      {x.device(), DType::bf16, activation_stride(w.k)}, w, 1, 1, nullptr, false, a.device(), w.n};
  cuda::kernels(Order::portable).matmul(p, on());
  p.y = b.device();
  cuda::kernels(Order::hopper).matmul(p, on());
  EXPECT_NE(a.download(), b.download());
}

}  // namespace
}  // namespace invar
