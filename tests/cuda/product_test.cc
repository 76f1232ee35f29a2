// Matrix products: every schedule of both orders against the CPU's kernels.
#include <fmt/format.h>

#include "cuda_check.h"
#include "device/cuda/gpu.h"
#include "kernels/pack.h"

namespace invar {
namespace {

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
  bool bias = false, accumulate = false;
  DType type = DType::bf16;
  bool in_fours = false;  // rows of y are whole 16 bytes, as in models; else of any length
};

std::string describe(const Case& c, const char* schedule) {
  return fmt::format("{}: rows {} n {} k {} runs {} bias {} accumulate {} {}", schedule, c.rows,
                     c.n, c.k, c.split_k, c.bias, c.accumulate, name_of(c.type));
}

template <typename T>
constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;

// A matrix, or a gated pair, in panels for the CPU and as the GPU's products of the order read it.
template <typename T>
struct Weight {
  Matrix host, device;
  Twin<T> panels, rows;

  Weight(Device& gpu, Random& random, Order order, int64_t n, int64_t k, int matrices)
      : host{.type = kType<T>, .n = n, .k = k, .count = matrices},
        device{.type = kType<T>,
               .n = n,
               .k = k,
               .layout = cuda::kernels(order).weights,
               .count = matrices},
        panels(gpu, host.elements()),
        rows(gpu, device.elements()) {
    std::ranges::fill(panels.host, T{0});
    std::ranges::fill(rows.host, T{0});
    std::vector<T> row(k);
    for (int64_t i = 0; i < n; ++i)
      for (int m = 0; m < matrices; ++m) {
        fill_row(random, std::span<T>(row));
        const PackPlace place = {.output = m * 16, .step = matrices};
        pack_rows(host, row.data(), k, i, 1, place, panels.host.data());
        pack_rows(device, row.data(), k, i, 1, place, rows.host.data());
      }
    rows.upload();
    host.data = panels.host.data();
    device.data = rows.device();
  }
};

class Products : public CudaTest {
 protected:
  template <typename T>
  void check_matmul(Order order, const Case& c) {
    Random random(c.rows * 7919 + c.n * 104729 + c.k * 31 + c.split_k);
    auto x = random_rows<T>(gpu(), random, c.rows, c.k);
    const Weight<T> w(gpu(), random, order, c.n, c.k, 1);
    const Twin<float> bias(gpu(), random_floats(random, c.n));
    const int64_t stride =
        c.in_fours ? round_up(c.n, 4) + 4 * random.below(10) : c.n + random.below(40);
    auto before = random_floats(random, c.rows * stride);
    if (c.in_fours) {  // whatever adds to y flushes subnormals: dots of 0, and odd numbers in y
      std::fill_n(x.host.begin() + activation_stride(c.k), c.k, T{0});
      x.upload();
      const float odd[] = {1e-40f, -1e-40f, -0.0f, 1.2e-38f, -3e38f};
      for (size_t i = 0; i < before.size(); i += 3) before[i] = odd[i / 3 % 5];
    }
    Twin<float> y(gpu(), before);
    MatmulParams p{.x = {const_cast<T*>(x.host.data()), kType<T>, activation_stride(c.k)},
                   .w = w.host,
                   .rows = c.rows,
                   .split_k = c.split_k,
                   .bias = c.bias ? bias.host.data() : nullptr,
                   .accumulate = c.accumulate,
                   .y = y.host.data(),
                   .y_stride = stride};
    run_in_parts(1, [&](const Execution& on) { cpu(order).matmul(p, on); });
    p.x.data = x.device();
    p.w = w.device;
    p.bias = c.bias ? bias.device() : nullptr;
    p.y = y.device();
    const cuda::ProductShape shape{c.rows, c.n, c.k, c.split_k, 1, gpu_of(on()).multiprocessors()};
    const auto compare = [&](const cuda::ProductSchedule& s, const std::string& name) {
      gpu().upload(y.device(), before.data(), before.size() * sizeof(float));
      s.matmul(p, on());
      EXPECT_TRUE(y.matches()) << describe(c, name.c_str());
    };
    for (const cuda::ProductSchedule& s : cuda::product_schedules(order))
      if (s.can(shape)) compare(s, s.name);
    compare(cuda::chosen_schedule(order, shape), "chosen");
  }

  template <typename T>
  void check_gated(Order order, const Case& c) {
    Random random(c.rows * 7919 + c.n * 104729 + c.k * 31);
    const auto x = random_rows<T>(gpu(), random, c.rows, c.k);
    const Weight<T> w(gpu(), random, order, c.n, c.k, 2);
    const Twin<float> gate(gpu(), random_floats(random, c.n)),
        up(gpu(), random_floats(random, c.n));
    Twin<T> y(gpu(), c.rows * activation_stride(c.n));
    GatedMatmulParams p{.x = {const_cast<T*>(x.host.data()), kType<T>, activation_stride(c.k)},
                        .gate_up = w.host,
                        .rows = c.rows,
                        .gate_bias = c.bias ? gate.host.data() : nullptr,
                        .up_bias = c.bias ? up.host.data() : nullptr,
                        .out = {y.host.data(), kType<T>, activation_stride(c.n)},
                        .curve = c.k % 64 == 0  ? Nonlinearity::silu
                                 : c.k % 3 == 0 ? Nonlinearity::clamped
                                                : Nonlinearity::gelu_tanh};
    run_in_parts(1, [&](const Execution& on) { cpu(order).gated_matmul(p, on); });
    p.x.data = x.device();
    p.gate_up = w.device;
    p.gate_bias = c.bias ? gate.device() : nullptr;
    p.up_bias = c.bias ? up.device() : nullptr;
    p.out.data = y.device();
    const std::vector<T> stale(
        y.host.size(),
        std::bit_cast<T>(static_cast<std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>>(~0u)));
    for (const cuda::ProductSchedule& s : cuda::product_schedules(order)) {
      if (!s.can({c.rows, c.n, c.k, 1, 2})) continue;
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

// What tiles, slices and runs of the tensor cores' kernels do not divide: rows around tiles,
// outputs of odd numbers, inner sizes of models (896; runs of 608 of 4864, of 2368 of 18944) and
// none.
constexpr Case kHopperMatmuls[] = {{9, 100, 896, 2, true, true},
                                   {16, 72, 4864, 8, false, true},
                                   {17, 66, 608},
                                   {31, 1000, 72},
                                   {32, 65, 128, 4, true},
                                   {64, 130, 2560, 8, true, true},
                                   {64, 200, 64, 2},
                                   {127, 260, 4864, 8},
                                   {128, 64, 256, 8, false, true},
                                   {129, 7, 18944, 8, true},
                                   {257, 389, 200, 1, true, true},
                                   {300, 132, 1024, 4, false, true},
                                   {384, 1536, 320},
                                   {300, 132, 1024, 4, false, true, DType::bf16, true},
                                   {128, 96, 128, 2, true, true, DType::bf16, true},
                                   {260, 77, 512, 8, true, false, DType::bf16, true},
                                   {1, 896, 4864, 8, false, true},
                                   {2, 3000, 896, 1, true},
                                   {1100, 200, 96, 1, false, true},
                                   {1, 128, 2048},
                                   {7, 250, 4096, 1, true}};

TEST_F(Products, HopperMatmul) {
  for (const Case& c : kMatmuls) check_matmul<bf16_t>(Order::hopper, c);
  for (const Case& c : kHopperMatmuls) check_matmul<bf16_t>(Order::hopper, c);
}

// More tiles than multiprocessors, so that blocks take several, with as many columns as make two
// groups of tiles; small, since the CPU computes them, too.
TEST_F(Products, HopperManyTiles) {
  check_matmul<bf16_t>(Order::hopper, {2200, 1300, 96, 1, true});
  check_matmul<bf16_t>(Order::hopper, {1200, 1900, 256, 8, false, true});
  check_matmul<bf16_t>(Order::hopper, {1200, 1900, 256, 8, true, true, DType::bf16, true});
  check_matmul<bf16_t>(Order::hopper, {1100, 1300, 256, 8, false, false, DType::bf16, true});
  check_gated<bf16_t>(Order::hopper, {1300, 800, 160});
  check_matmul<bf16_t>(Order::hopper, {3, 60000, 64});
  check_gated<bf16_t>(Order::hopper, {40, 30000, 64});
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
  for (const Case& c : {Case{16, 17, 896, 1, true}, {64, 1000, 200}, {257, 333, 72, 1, true}})
    check_gated<bf16_t>(Order::hopper, c);
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
  const int64_t n = 64, k = 1024;
  Twin<bf16_t> x(gpu(), activation_stride(k));
  for (bf16_t& v : x.host) v = f32_to_bf16(random.uniform());
  x.upload();
  const auto product = [&](Order order) {
    Random same(6);
    const Weight<bf16_t> w(gpu(), same, order, n, k, 1);
    const Twin<float> y(gpu(), n);
    cuda::kernels(order).matmul({.x = {x.device(), DType::bf16, activation_stride(k)},
                                 .w = w.device,
                                 .rows = 1,
                                 .split_k = 1,
                                 .y = y.device(),
                                 .y_stride = n},
                                on());
    return y.download();
  };
  EXPECT_NE(product(Order::portable), product(Order::hopper));
}

// A tree of runs is not one chain, nor one of other runs.
TEST_F(Products, RunsDiffer) {
  Random random(7);
  const int64_t rows = 130, n = 64, k = 1024;
  Twin<bf16_t> x(gpu(), rows * activation_stride(k));
  for (bf16_t& v : x.host) v = f32_to_bf16(random.uniform());
  x.upload();
  const Weight<bf16_t> w(gpu(), random, Order::hopper, n, k, 1);
  const auto product = [&](int split_k, int64_t count) {
    const Twin<float> y(gpu(), count * n);
    cuda::kernels(Order::hopper)
        .matmul({.x = {x.device(), DType::bf16, activation_stride(k)},
                 .w = w.device,
                 .rows = count,
                 .split_k = split_k,
                 .y = y.device(),
                 .y_stride = n},
                on());
    return y.download();
  };
  for (const int64_t count : {int64_t{3}, rows}) {
    EXPECT_NE(product(1, count), product(2, count));
    EXPECT_NE(product(2, count), product(4, count));
    EXPECT_NE(product(4, count), product(8, count));
  }
}

}  // namespace
}  // namespace invar
