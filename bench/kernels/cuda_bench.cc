// Times of the GPU's kernels on the shapes of Qwen3-8B beside cuBLAS, as Markdown tables. Operands
// are random; weights are rotated among copies larger than the L2 cache.
// Usage: cuda_bench [products | curve | portable | attention ...], all but the curve by default.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "../../tests/kernels/kernel_check.h"
#include "base/error.h"
#include "cuda_timer.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"

namespace invar::bench {
namespace {

constexpr int kRounds = 15;

std::vector<bf16_t> random_values(int64_t count) {
  Random random(1);
  std::vector<bf16_t> values(count);
  for (int64_t i = 0; i < std::min<int64_t>(count, 1 << 20); ++i)
    values[i] = f32_to_bf16(random.uniform());
  for (int64_t i = 1 << 20; i < count; ++i) values[i] = values[(i * 7) & ((1 << 20) - 1)];
  return values;
}

struct Layer {
  const char* name;
  int64_t k, n;
  int runs;
  int matrices = 1;
  bool residual = false;
};

// As the model's activations lie.
int64_t stride_of(Order order, int64_t width) {
  return activation_stride(width, cuda::kernels(order).weights);
}

class Bench {
 public:
  Bench() : gpu_(make_cuda_device(0)), timer_(*gpu_), cublas_(timer_.stream()) {
    if (!cublas_.is_there()) std::fprintf(stderr, "no cuBLAS: its columns stay empty\n");
  }

  static void product_header() {
    fmt::print(
        "\n| order | layer | K -> N | rows | us | schedule | TB/s | TFLOP/s | x cuBLAS | cuBLAS, "
        "us "
        "| others, us |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  }

  void products(Order order, const Layer& layer, const std::vector<int64_t>& sizes) {
    PackedWeight w = {
        .type = DType::bf16, .n = layer.n, .k = layer.k, .layout = cuda::kernels(order).weights};
    const int64_t elements = layer.matrices * w.elements();
    const int copies = static_cast<int>(std::max<int64_t>(2, (320 << 20) / (elements * 2)));
    const auto values = random_values(elements);
    std::vector<DeviceArray<bf16_t>> weights;
    for (int i = 0; i < copies; ++i) {
      weights.emplace_back(*gpu_, elements, "a bench");
      gpu_->upload(weights.back().data(), values.data(), elements * 2);
    }
    const int64_t most = sizes.back(), n = layer.n * layer.matrices;
    const DeviceArray<bf16_t> x(*gpu_, most * activation_stride(layer.k), "a bench");
    gpu_->upload(x.data(), values.data(), std::min<int64_t>(elements, x.size()) * 2);
    const DeviceArray<float> y(*gpu_, most * activation_stride(n), "a bench");
    const DeviceArray<bf16_t> gated(*gpu_, most * activation_stride(layer.n), "a bench");
    for (const int64_t rows : sizes) {
      const double flops = 2.0 * rows * n * layer.k;
      const int calls = std::clamp(static_cast<int>(1e12 / flops), 4, 40);
      const auto weight = [&](int i) { return weights[i % copies].data(); };
      if (cublas_.is_there() && order == Order::hopper)
        timer_.add(
            "cuBLAS",
            [&](int i) {
              cublas_.matmul(x.data(), weight(i), y.data(), rows, n, layer.k);
              if (layer.matrices == 2) gate(y.data(), gated.data(), rows, layer.n, timer_.stream());
            },
            calls);
      const cuda::ProductShape shape{rows, layer.n, layer.k, layer.runs, layer.matrices};
      for (const cuda::ProductSchedule& s : cuda::product_schedules(order)) {
        if (!s.can(shape)) continue;
        timer_.add(
            s.name,
            [&](int i) {
              w.data = weight(i);
              const Activation in{x.data(), DType::bf16, stride_of(order, layer.k)};
              if (layer.matrices == 2)
                s.gated_matmul({.x = in,
                                .gate_up = w,
                                .rows = rows,
                                .out = {gated.data(), DType::bf16, stride_of(order, layer.n)}},
                               timer_.on());
              else
                s.matmul({.x = in,
                          .w = w,
                          .rows = rows,
                          .runs = layer.runs,
                          .accumulate = layer.residual,
                          .y = y.data(),
                          .y_stride = layer.n},
                         timer_.on());
            },
            calls);
      }
      print(order, layer, rows, elements * 2, flops, cuda::chosen_schedule(order, shape).name);
    }
  }

 private:
  void print(Order order, const Layer& layer, int64_t rows, int64_t bytes, double flops,
             std::string_view chosen) {
    double cublas = 0, us = 0;
    std::string others;
    for (const auto& [name, time] : timer_.run(kRounds)) {
      if (name == "cuBLAS")
        cublas = time;
      else if (name == chosen)
        us = time;
      else
        others += fmt::format("{}{} {:.1f}", others.empty() ? "" : "; ", name, time);
    }
    const auto of_cublas = [&](double value, const char* format) {
      return cublas > 0 ? fmt::format(fmt::runtime(format), value) : std::string("-");
    };
    fmt::print("| {} | {} | {} -> {} | {} | {:.1f} | {} | {:.2f} | {:.0f} | {} | {} | {} |\n",
               name_of(order), layer.name, layer.k, layer.n * layer.matrices, rows, us, chosen,
               bytes / us * 1e-6, flops / us * 1e-6, of_cublas(us / cublas, "{:.3f}"),
               of_cublas(cublas, "{:.1f}"), others);
    std::fflush(stdout);
  }

  std::unique_ptr<Device> gpu_;
  GpuTimer timer_;
  Cublas cublas_;
};

void run(const std::vector<std::string_view>& parts) {
  const auto wanted = [&](std::string_view part) {
    return parts.empty() ? part != "curve"
                         : std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  Bench bench;
  fmt::print("{}\n", describe_cuda_device(0));
  const Layer qkv{"qkv", 4096, 6144, 1}, o{"o", 4096, 4096, 8}, pair{"gate+up", 4096, 12288, 1, 2},
      down{"down", 12288, 4096, 8}, head{"lm_head", 4096, 151936, 1};
  Layer o_residual = o, down_residual = down;
  o_residual.name = "o, residual";
  down_residual.name = "down, residual";
  o_residual.residual = down_residual.residual = true;
  if (wanted("products")) {
    Bench::product_header();
    for (const Layer& layer : {qkv, o, o_residual, pair, down, down_residual})
      bench.products(Order::hopper, layer, {1, 16, 64, 128, 192, 256, 512, 1024, 4096});
    bench.products(Order::hopper, head, {1, 16, 64});
  }
  if (wanted("curve")) {
    Bench::product_header();
    for (const Layer& layer : {qkv, o, pair, down})
      bench.products(Order::hopper, layer,
                     {1,   2,   4,   8,    16,   32,   64,   96,   128,  192, 256,
                      384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192});
  }
  if (wanted("portable")) {
    Bench::product_header();
    for (const Layer& layer : {qkv, o, pair, down})
      bench.products(Order::portable, layer, {1, 16, 256});
  }
}

}  // namespace
}  // namespace invar::bench

int main(int argc, char** argv) {
  try {
    invar::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
