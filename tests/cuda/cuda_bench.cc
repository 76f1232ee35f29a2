// Times of the GPU's kernels on the shapes of Qwen3-8B, as Markdown tables. Weights are rotated
// among copies larger than the L2 cache; operands are random.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "../kernels/kernel_check.h"
#include "device/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"

namespace invar {
namespace {

std::vector<bf16_t> random_values(int64_t count) {
  Random random(1);
  std::vector<bf16_t> values(count);
  for (int64_t i = 0; i < std::min<int64_t>(count, 1 << 20); ++i)
    values[i] = f32_to_bf16(random.uniform());
  for (int64_t i = 1 << 20; i < count; ++i) values[i] = values[(i * 7) & ((1 << 20) - 1)];
  return values;
}

class Bench {
 public:
  explicit Bench(Device& gpu) : gpu_(gpu), stream_(gpu.make_stream()) {}

  // Microseconds of one call of `work(i)`: the median of five rounds.
  template <typename Work>
  double time(Work work) {
    std::vector<double> rounds;
    const int calls = 12;
    for (int round = -1; round < 5; ++round) {
      wait();
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) work(i);
      wait();
      const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
      if (round >= 0) rounds.push_back(us.count() / calls);
    }
    std::ranges::sort(rounds);
    return rounds[rounds.size() / 2];
  }

  struct Layer {
    const char* name;
    int64_t k, n;
    int runs;
    bool gated;
  };

  void products(Order order, const Layer& layer, const std::vector<int64_t>& sizes) {
    const int matrices = layer.gated ? 2 : 1;
    PackedWeight w = {.type = DType::bf16, .n = layer.n, .k = layer.k};
    const int64_t elements = matrices * w.elements();
    const int copies = static_cast<int>(std::max<int64_t>(1, (256 << 20) / (elements * 2)));
    const auto values = random_values(elements);
    std::vector<DeviceArray<bf16_t>> weights;
    for (int i = 0; i < copies; ++i) {
      weights.emplace_back(gpu_, elements, "a bench");
      gpu_.upload(weights.back().data(), values.data(), elements * 2);
    }
    const int64_t most = sizes.back(), x_stride = activation_stride(layer.k);
    const DeviceArray<bf16_t> x(gpu_, most * x_stride, "a bench");
    gpu_.upload(x.data(), values.data(), std::min<int64_t>(elements, most * x_stride) * 2);
    const DeviceArray<float> y(gpu_, most * activation_stride(layer.n), "a bench");
    for (const int64_t rows : sizes) {
      const MatmulParams plain{{x.data(), DType::bf16, x_stride},
                               w,
                               rows,
                               layer.runs,
                               nullptr,
                               false,
                               y.data(),
                               layer.n};
      const GatedMatmulParams gated{{x.data(), DType::bf16, x_stride},
                                    w,
                                    rows,
                                    nullptr,
                                    nullptr,
                                    {y.data(), DType::bf16, activation_stride(layer.n)}};
      std::string all;
      double best = 0;
      const char* best_name = "";
      for (const cuda::ProductSchedule& s : cuda::product_schedules(order)) {
        if (!s.can(layer.k, layer.runs) ||
            (rows > 256 && std::string_view(s.name).starts_with("direct")))
          continue;
        const double us = time([&](int i) {
          const void* weight = weights[i % copies].data();
          if (layer.gated) {
            GatedMatmulParams p = gated;
            p.gate_up.data = weight;
            s.gated_matmul(p, on_);
          } else {
            MatmulParams p = plain;
            p.w.data = weight;
            s.matmul(p, on_);
          }
        });
        all += fmt::format("{}{} {:.1f}", all.empty() ? "" : "; ", s.name, us);
        if (best == 0 || us < best) best = us, best_name = s.name;
      }
      fmt::print("| {} | {} | {} -> {} | {} | {:.1f} | {} | {:.2f} | {:.0f} | {} |\n",
                 name_of(order), layer.name, layer.k, layer.n * matrices, rows, best, best_name,
                 elements * 2 / best * 1e-6,
                 2.0 * rows * layer.k * layer.n * matrices / best * 1e-6, all);
      std::fflush(stdout);
    }
  }

  void attention(Order order, int64_t rows, int64_t length, bool causal) {
    const int heads = 32, kv_heads = 8, e = 128, places = 128;
    KvLayer kv{.page_places = places, .kv_heads = kv_heads, .head_dim = e};
    const int64_t sequences = causal ? 1 : rows, pages = length / places;
    const auto values =
        random_values(std::max(rows * heads * e, sequences * pages * kv_heads * kv.key_block()));
    const DeviceArray<bf16_t> k(gpu_, values.size(), "a bench"), v(gpu_, values.size(), "a bench"),
        q(gpu_, rows * heads * e, "a bench"), out(gpu_, rows * heads * e, "a bench");
    for (const auto* array : {&k, &v}) gpu_.upload(array->data(), values.data(), values.size() * 2);
    gpu_.upload(q.data(), values.data(), rows * heads * e * 2);
    std::vector<int32_t> page(sequences * pages), position(rows), table(rows);
    for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<int32_t>(i);
    for (int64_t t = 0; t < rows; ++t) {
      position[t] = static_cast<int32_t>(causal ? length - rows + t : length - 1);
      table[t] = static_cast<int32_t>(causal ? 0 : t);
    }
    const DeviceArray<int32_t> pages_on(gpu_, page.size(), "a bench"),
        positions_on(gpu_, rows, "a bench"), table_on(gpu_, rows, "a bench");
    gpu_.upload(pages_on.data(), page.data(), page.size() * 4);
    gpu_.upload(positions_on.data(), position.data(), rows * 4);
    gpu_.upload(table_on.data(), table.data(), rows * 4);
    std::vector<const int32_t*> tables(sequences);
    for (int64_t i = 0; i < sequences; ++i) tables[i] = pages_on.data() + i * pages;
    const DeviceArray<const int32_t*> tables_on(gpu_, sequences, "a bench");
    gpu_.upload(tables_on.data(), tables.data(), sequences * sizeof(void*));
    kv.keys = k.data();
    kv.values = v.data();
    const AttentionParams p{q.data(),
                            rows,
                            heads,
                            positions_on.data(),
                            table_on.data(),
                            tables_on.data(),
                            0,
                            kv,
                            {out.data(), DType::bf16, heads * e}};
    std::string all;
    double best = 0;
    for (const cuda::AttentionSchedule& s : cuda::attention_schedules(order)) {
      const double us = time([&](int) { s.attention(p, on_); });
      all += fmt::format("{}{} {:.1f}", all.empty() ? "" : "; ", s.name, us);
      if (best == 0 || us < best) best = us;
    }
    fmt::print("| {} | {} rows, {} places{} | {:.1f} | {:.2f} | {} |\n", name_of(order), rows,
               length, causal ? ", one prompt" : "", best,
               sequences * length * kv_heads * e * 4 / best * 1e-6, all);
    std::fflush(stdout);
  }

 private:
  void wait() { stream_->wait(); }

  Device& gpu_;
  std::unique_ptr<Stream> stream_;
  const Execution on_{&gpu_, stream_.get()};
};

void run() {
  const auto gpu = make_cuda_device(0);
  Bench bench(*gpu);
  fmt::print(
      "{}\n\n| order | layer | K -> N | rows | us | schedule | TB/s | TFLOP/s | all schedules, us "
      "|\n|---|---|---|---|---|---|---|---|---|\n",
      describe_cuda_device(0));
  const Bench::Layer layers[] = {{"qkv", 4096, 6144, 1, false},
                                 {"o", 4096, 4096, 8, false},
                                 {"gate+up", 4096, 12288, 1, true},
                                 {"down", 12288, 4096, 8, false}};
  for (const auto& layer : layers)
    bench.products(Order::hopper, layer, {1, 16, 64, 256, 1024, 4096});
  bench.products(Order::hopper, {"lm_head", 4096, 151936, 1, false}, {1, 64});
  for (const auto& layer : layers) bench.products(Order::portable, layer, {1, 16, 256});
  fmt::print(
      "\n| order | attention, 32/8 heads of 128 | us | TB/s | all schedules, us "
      "|\n|---|---|---|---|---|\n");
  for (const Order order : {Order::hopper, Order::portable}) {
    bench.attention(order, 1, 4096, false);
    bench.attention(order, 16, 4096, false);
    bench.attention(order, 64, 2048, false);
    bench.attention(order, 1024, 1024, true);
  }
}

}  // namespace
}  // namespace invar

int main() {
  try {
    invar::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
