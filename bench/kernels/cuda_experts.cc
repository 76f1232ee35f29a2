#include "cuda_experts.h"

#include <fmt/format.h>

#include <cstdio>

#include "cuda_values.h"
#include "kernels/cuda/cuda_kernels.h"

namespace invar::bench {

namespace {

constexpr int64_t kExperts = 128, kChosen = 8, kHidden = 2048, kWidth = 768;
constexpr int kRounds = 9;

// Operands of both products; bf16 and f32 outputs lie where the larger of them fits.
struct Operands {
  explicit Operands(Device& gpu, int64_t rows)
      : pairs(rows * kChosen),
        table(cuda::kernels(Order::hopper)),
        gate_up{.n = kWidth, .k = kHidden, .layout = table.weights, .count = 2 * kExperts},
        down{.n = kHidden, .k = kWidth, .layout = table.weights, .count = kExperts},
        x(on_gpu(gpu, random_values(pairs * kHidden))),
        gate_up_weights(on_gpu(gpu, random_values(gate_up.elements()))),
        down_weights(on_gpu(gpu, random_values(down.elements()))),
        gated(on_gpu(gpu, random_values(pairs * kWidth))),
        y(gpu, static_cast<size_t>(pairs * kHidden), "a bench") {
    gate_up.data = gate_up_weights.data();
    down.data = down_weights.data();
    std::vector<int32_t> begins;
    for (int64_t e = 0; e <= kExperts; ++e)
      begins.push_back(static_cast<int32_t>(e * pairs / kExperts));
    begin = on_gpu(gpu, begins);
  }

  int64_t pairs;
  Kernels table;
  Matrix gate_up, down;
  DeviceArray<bf16_t> x, gate_up_weights, down_weights, gated;
  DeviceArray<float> y;
  DeviceArray<int32_t> begin;
};

void run_gated(const Operands& o, const Execution& on) {
  o.table.expert_gated_matmul({.each = {.x = {o.x.data(), DType::bf16, kHidden},
                                        .gate_up = o.gate_up,
                                        .rows = o.pairs,
                                        .gate_bias = nullptr,
                                        .up_bias = nullptr,
                                        .out = {o.gated.data(), DType::bf16, kWidth}},
                               .begin = o.begin.data(),
                               .matmul = o.table.gated_matmul},
                              on);
}

void run_down(const Operands& o, const Execution& on) {
  o.table.expert_matmul({.each = {.x = {o.gated.data(), DType::bf16, kWidth},
                                  .w = o.down,
                                  .rows = o.pairs,
                                  .split_k = 1,
                                  .bias = nullptr,
                                  .accumulate = false,
                                  .y = o.y.data(),
                                  .y_stride = kHidden},
                         .begin = o.begin.data(),
                         .matmul = o.table.matmul},
                        on);
}

// One product after the other, [rows of an expert][n] each.
void run_cublas(cuda::Cublas& cublas, const bf16_t* x, const bf16_t* w, float* y, int64_t pairs,
                int64_t n, int64_t k, cudaStream_t stream) {
  const int64_t rows = pairs / kExperts;
  for (int64_t e = 0; e < kExperts; ++e)
    cublas.multiply({.x = x + e * rows * k,
                     .w = w + e * n * k,
                     .y = y + e * rows * n,
                     .type = DType::bf16,
                     .rows = rows,
                     .n = n,
                     .k = k,
                     .x_stride = k,
                     .w_stride = k,
                     .y_stride = n},
                    stream);
}

}  // namespace

void bench_experts(Device& gpu, GpuTimer& timer, cuda::Cublas& cublas, int64_t rows) {
  const Operands o(gpu, rows);
  const int calls = rows > 8192 ? 4 : 10;
  timer.add(
      "gate and up", [&](int) { run_gated(o, timer.on()); }, calls);
  timer.add(
      "down", [&](int) { run_down(o, timer.on()); }, calls);
  if (cublas.is_there()) {
    timer.add(
        "gate and up, cuBLAS",
        [&](int) {
          run_cublas(cublas, o.x.data(), o.gate_up_weights.data(), o.y.data(), o.pairs, 2 * kWidth,
                     kHidden, timer.stream());
          gate(o.y.data(), o.gated.data(), o.pairs, kWidth, timer.stream());
        },
        calls);
    timer.add(
        "down, cuBLAS",
        [&](int) {
          run_cublas(cublas, o.gated.data(), o.down_weights.data(), o.y.data(), o.pairs, kHidden,
                     kWidth, timer.stream());
        },
        calls);
  }
  const auto times = timer.run(kRounds);
  for (size_t i = 0; i < 2; ++i) {
    const auto& [name, us] = times[i];
    const double flops = 2.0 * o.pairs * kHidden * kWidth * (i == 0 ? 2 : 1);
    fmt::print("| {} | {} | {:.1f} | {:.0f} | {} |\n", rows, name, us, flops / us * 1e-6,
               times.size() > 2 ? fmt::format("{:.3f}", us / times[i + 2].second) : "-");
  }
  std::fflush(stdout);
}

}  // namespace invar::bench
