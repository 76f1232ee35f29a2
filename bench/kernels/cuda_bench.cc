// Times of the GPU's kernels on the shapes of Qwen3-8B beside cuBLAS, as Markdown tables. Operands
// are random; weights are rotated among copies larger than the L2 cache.
// Usage: cuda_bench [products | blocks | curve | portable | attention | ragged | layers | experts |
// recurrent | lasting ...] [--layer NAME] [--rows NUMBER], all but the curve, the layers and what
// lasts by default; --layer and --rows leave out the others. `lasting` runs each kernel for a
// second, so that the power limit sets the clock, and reads power and clocks.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "cuda_blocks.h"
#include "cuda_experts.h"
#include "cuda_layers.h"
#include "cuda_ragged.h"
#include "cuda_recurrent.h"
#include "cuda_timer.h"
#include "cuda_values.h"
#include "device/cuda/cublas.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/gpu.h"
#include "device/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"

namespace invar::bench {
namespace {

constexpr int kRounds = 15;

struct Layer {
  const char* name;
  int64_t k, n;
  int split_k;
  int matrices = 1;
  bool residual = false;
};

// As the model's activations lie.
int64_t stride_of(Order order, int64_t width) {
  return activation_stride(width, cuda::kernels(order).weights);
}

struct Options {
  std::vector<std::string_view> parts;
  std::string_view layer;  // one layer's products only, or all
  int64_t rows = 0;        // so many rows only, or as many as the part has

  bool wants(std::string_view part) const {
    return parts.empty() ? part != "curve" && part != "layers" && part != "lasting"
                         : std::find(parts.begin(), parts.end(), part) != parts.end();
  }
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), gpu_(make_cuda_device(0)), timer_(*gpu_) {
    if (!cublas_.is_there()) std::fprintf(stderr, "no cuBLAS: its columns stay empty\n");
  }

  static void product_header() {
    fmt::print(
        "\n| order | layer | K -> N | rows | us | schedule | TB/s | TFLOP/s | x cuBLAS | cuBLAS, "
        "us "
        "| others, us |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  }

  static void lasting_header() {
    fmt::print(
        "\n| what | rows | schedule | us | TFLOP/s | W | MHz | % of looks under the power limit | "
        "pJ an operation |\n|---|---|---|---|---|---|---|---|---|\n");
  }

  // `lasting`: so long at a time that the GPU's power limit sets its clock, as in a long prompt.
  void products(Order order, const Layer& layer, std::vector<int64_t> sizes, bool lasting = false) {
    if (!options_.layer.empty() && options_.layer != layer.name) return;
    if (options_.rows > 0) sizes = {options_.rows};
    Matrix w = {.n = layer.n,
                .k = layer.k,
                .layout = cuda::kernels(order).weights,
                .count = layer.matrices};
    const int64_t elements = w.elements();
    const int copies = static_cast<int>(std::max<int64_t>(2, (320 << 20) / (elements * 2)));
    const int64_t most = sizes.back(), n = layer.n * layer.matrices;
    const auto values = random_values(std::max(elements, most * activation_stride(layer.k)));
    std::vector<DeviceArray<bf16_t>> weights;
    for (int i = 0; i < copies; ++i) {
      weights.emplace_back(*gpu_, elements, "a bench");
      gpu_->upload(weights.back().data(), values.data(), elements * 2);
    }
    const DeviceArray<bf16_t> x(*gpu_, most * activation_stride(layer.k), "a bench");
    gpu_->upload(x.data(), values.data(), x.size() * sizeof(bf16_t));
    const DeviceArray<float> y(*gpu_, most * activation_stride(n), "a bench");
    const DeviceArray<bf16_t> gated(*gpu_, most * activation_stride(layer.n), "a bench");
    for (const int64_t rows : sizes) {
      const double flops = 2.0 * rows * n * layer.k;
      const int calls =
          std::clamp(static_cast<int>((lasting ? 5e13 : 1e12) / flops), 4, lasting ? 300 : 40);
      const auto weight = [&](int i) { return weights[i % copies].data(); };
      if (cublas_.is_there() && order == Order::hopper)
        timer_.add(
            "cuBLAS",
            [&](int i) {
              cublas_.multiply({.x = x.data(),
                                .w = weight(i),
                                .y = y.data(),
                                .type = DType::bf16,
                                .rows = rows,
                                .n = n,
                                .k = layer.k,
                                .x_stride = layer.k,
                                .w_stride = layer.k,
                                .y_stride = n},
                               timer_.stream());
              if (layer.matrices == 2) gate(y.data(), gated.data(), rows, layer.n, timer_.stream());
            },
            calls);
      const cuda::ProductShape shape{rows,           layer.n,
                                     layer.k,        layer.split_k,
                                     layer.matrices, gpu_of(timer_.on()).multiprocessors()};
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
                          .split_k = layer.split_k,
                          .accumulate = layer.residual,
                          .y = y.data(),
                          .y_stride = layer.n},
                         timer_.on());
            },
            calls);
      }
      const char* chosen = cuda::chosen_schedule(order, shape).name;
      lasting ? print_lasting(layer.name, rows, flops, chosen)
              : print(order, layer, rows, elements * 2, flops, chosen);
    }
  }

  static void attention_header() {
    fmt::print(
        "\n| order | attention, 32/8 heads of 128 | us | schedule | TB/s | TFLOP/s | others, us "
        "|\n|---|---|---|---|---|---|---|\n");
  }

  // `prompt`: one of `rows` rows that end at `length`; else so many sequences of that length.
  void attention(Order order, int64_t rows, int64_t length, bool prompt, bool lasting = false) {
    const int heads = 32, e = 128, slots = 64;
    KvLayer kv{
        .block_size = slots, .kv_heads = 8, .head_dim = e, .layout = cuda::kernels(order).cache};
    const int64_t sequences = prompt ? 1 : rows, blocks = sequences * length / slots;
    const int64_t elements = blocks * kv.kv_heads * kv.key_block();
    const int sets = static_cast<int>(std::clamp<int64_t>((160 << 20) / (elements * 2), 1, 8));
    const auto values = random_values(std::max(rows * heads * e, sets * elements));
    const DeviceArray<bf16_t> k(*gpu_, values.size(), "a bench"),
        v(*gpu_, values.size(), "a bench"), q(*gpu_, rows * heads * e, "a bench"),
        out(*gpu_, rows * heads * e, "a bench");
    for (const auto* array : {&k, &v})
      gpu_->upload(array->data(), values.data(), values.size() * 2);
    gpu_->upload(q.data(), values.data(), rows * heads * e * 2);
    std::vector<int32_t> block(blocks), position(rows), table(rows);
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<int32_t>(i);
    double flops = 0;
    for (int64_t t = 0; t < rows; ++t) {
      position[t] = static_cast<int32_t>(prompt ? length - rows + t : length - 1);
      table[t] = static_cast<int32_t>(prompt ? 0 : t);
      flops += 4.0 * e * heads * (position[t] + 1);
    }
    const auto blocks_on = on_gpu(*gpu_, block), positions_on = on_gpu(*gpu_, position),
               table_on = on_gpu(*gpu_, table);
    std::vector<const int32_t*> tables(sequences);
    for (int64_t i = 0; i < sequences; ++i) tables[i] = blocks_on.data() + i * (length / slots);
    const auto tables_on = on_gpu(*gpu_, tables);
    const DeviceArray<std::byte> scratch(*gpu_, cuda::kernels(order).attention_scratch, "a bench");
    AttentionParams p{.q = q.data(),
                      .rows = rows,
                      .heads = heads,
                      .positions = positions_on.data(),
                      .table_of = table_on.data(),
                      .tables = tables_on.data(),
                      .window = 0,
                      .kv = kv,
                      .out = {out.data(), DType::bf16, heads * e},
                      .scratch = scratch.data(),
                      .fewest_rows = static_cast<int32_t>(prompt ? rows : 1),
                      .most_rows = static_cast<int32_t>(prompt ? rows : 1),
                      .rows_are_even = !prompt};
    const int calls = lasting ? 100 : std::clamp(static_cast<int>(1e11 / flops), 2, 30);
    std::string chosen, others;
    double us = 0;
    for (const cuda::AttentionSchedule& s : cuda::attention_schedules(order)) {
      if (!s.can(p)) continue;
      if (chosen.empty() && rows <= s.max_rows)
        chosen = s.name;
      else if (flops > 3e11)
        continue;  // far slower
      timer_.add(
          s.name,
          [&](int i) {
            p.kv.keys = k.data() + i % sets * elements;
            p.kv.values = v.data() + i % sets * elements;
            s.attention(p, timer_.on());
          },
          calls);
    }
    if (lasting) return print_lasting("attention", rows, flops, chosen);
    for (const auto& [name, time] : timer_.run(kRounds)) {
      if (name == chosen)
        us = time;
      else
        others += fmt::format("{}{} {:.1f}", others.empty() ? "" : "; ", name, time);
    }
    const std::string what = prompt ? fmt::format("{} rows of a prompt to {}", rows, length)
                                    : fmt::format("{} sequences of {}", rows, length);
    fmt::print("| {} | {} | {:.1f} | {} | {:.2f} | {:.0f} | {} |\n", name_of(order), what, us,
               chosen, elements * 4 / us * 1e-6, flops / us * 1e-6, others);
    std::fflush(stdout);
  }

  void recurrent() {
    fmt::print(
        "\n| sequences | rows of each | from position | convolution, us | gates | keys | "
        "recurrence "
        "| norm | all | TB/s of a plain recurrence |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (const int32_t sequences : {1, 32, 64, 256})
      bench_recurrent(*gpu_, timer_, sequences, 1, 1000);
    for (const int32_t rows : {16, 64, 512, 2048, 8192}) bench_recurrent(*gpu_, timer_, 1, rows, 0);
    bench_recurrent(*gpu_, timer_, 8, 1024, 0);
  }

  void ragged(std::vector<int64_t> batches) {
    if (options_.rows > 0) batches = {options_.rows};
    fmt::print(
        "\n| sequences | contexts, 2048 tokens in the mean | the longest | us | TB/s | x even "
        "|\n|---|---|---|---|---|---|\n");
    for (const int64_t sequences : batches) bench_ragged(*gpu_, timer_, sequences);
  }

  void experts(std::vector<int64_t> sizes) {
    if (options_.rows > 0) sizes = {options_.rows};
    fmt::print(
        "\n| tokens | experts' product | us | TFLOP/s | x cuBLAS, expert by expert "
        "|\n|---|---|---|---|---|\n");
    for (const int64_t rows : sizes) bench_experts(*gpu_, timer_, cublas_, rows);
  }

  void blocks(std::vector<int64_t> sizes) {
    if (options_.rows > 0) sizes = {options_.rows};
    fmt::print(
        "\n| us, TB/s, x as fast as bf16 | rows | bf16 | q8_0 | q4_0 | q4_k | integers | that it "
        "makes | e4m3 | e4m3 by rows "
        "|\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (const int64_t rows : sizes) bench_blocks(*gpu_, timer_, rows, options_.layer);
  }

  void layers(int64_t rows, int64_t context, bool prompt) {
    if (options_.rows > 0 && options_.rows != rows) return;
    bench_layers(*gpu_, timer_, rows, context, prompt);
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

  // Prints the power that each of those that were added draws, the chosen one marked.
  void print_lasting(const char* what, int64_t rows, double flops, std::string_view chosen) {
    for (const auto& [name, us, draw] : timer_.run_lasting(1.0))
      fmt::print("| {} | {} | {}{} | {:.1f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.2f} |\n", what,
                 rows, name, name == chosen ? " *" : "", us, flops / us * 1e-6, draw.watts,
                 draw.megahertz, 100 * draw.capped, draw.watts * us / flops * 1e6);
    std::fflush(stdout);
  }

  Options options_;
  std::unique_ptr<Device> gpu_;
  GpuTimer timer_;
  cuda::Cublas cublas_;
};

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with("--")) {
      options.parts.push_back(argument);
      continue;
    }
    const std::string_view value = i + 1 < argc ? argv[++i] : "";
    if (argument == "--layer")
      options.layer = value;
    else if (argument != "--rows" ||
             std::from_chars(value.data(), value.data() + value.size(), options.rows).ec !=
                 std::errc{})
      fail("expected --layer NAME or --rows NUMBER, found {} {}", argument, value);
  }
  return options;
}

void run(const Options& options) {
  const auto wanted = [&](std::string_view part) { return options.wants(part); };
  Bench bench(options);
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
  if (wanted("blocks")) bench.blocks({1, 2, 8, 16, 32, 64});
  if (wanted("lasting")) {
    Bench::lasting_header();
    for (const Layer& layer : {qkv, o_residual, pair, down_residual})
      bench.products(Order::hopper, layer, {2048, 4096, 8192}, true);
    bench.attention(Order::hopper, 4096, 4096, true, true);
  }
  if (wanted("curve")) {
    Bench::product_header();
    for (const Layer& layer : {qkv, o, pair, down})
      bench.products(Order::hopper, layer,
                     {1,   2,   4,   8,    16,   32,   64,   96,   128,  192, 256,
                      384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192});
  }
  if (wanted("attention")) {
    Bench::attention_header();
    for (const int64_t length : {2048, 4096, 32768, 131072})
      bench.attention(Order::hopper, 1, length, false);
    for (const int64_t rows : {16, 64})
      for (const int64_t length : {2048, 4096}) bench.attention(Order::hopper, rows, length, false);
    for (const int64_t rows : {1024, 4096, 8192}) bench.attention(Order::hopper, rows, rows, true);
    bench.attention(Order::hopper, 512, 4096, true);
    bench.attention(Order::hopper, 2048, 131072, true);
    bench.attention(Order::portable, 16, 4096, false);
    bench.attention(Order::portable, 1024, 1024, true);
  }
  if (wanted("ragged")) bench.ragged({8, 16, 24, 32, 64, 128});
  if (wanted("recurrent")) bench.recurrent();
  if (wanted("experts")) bench.experts({512, 4096, 32768});
  if (wanted("layers")) {
    for (const int64_t rows : {1, 32, 64}) bench.layers(rows, 1088, false);
    for (const int64_t rows : {512, 1024, 1536, 2048, 3072, 4096, 8192})
      bench.layers(rows, rows, true);
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
    invar::bench::run(invar::bench::options_of(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
