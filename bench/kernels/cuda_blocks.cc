#include "cuda_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "cuda_values.h"
#include "kernels/cuda/cuda_kernels.h"
#include "numerics/e4m3.h"

namespace invar::bench {

namespace {

struct Form {
  const char* name;
  DType type;
  DType of_rows = DType::bf16;
};
constexpr Form kForms[] = {{"bf16", DType::bf16},
                           {"q8_0", DType::q8_0},
                           {"q4_0", DType::q4_0},
                           {"q4_k", DType::q4_k},
                           {"integers", DType::i8, DType::i8},
                           {"integers it makes", DType::i8},
                           {"e4m3", DType::e4m3, DType::e4m3},
                           {"e4m3 by rows", DType::e4m3_row, DType::e4m3_row}};

struct Layer {
  const char* name;
  int64_t k, n;
  int split_k, matrices;
};
constexpr Layer kLayers[] = {{"qkv", 4096, 6144, 1, 1},
                             {"o, residual", 4096, 4096, 8, 1},
                             {"gate+up", 4096, 12288, 1, 2},
                             {"down, residual", 12288, 4096, 8, 1},
                             {"lm_head", 4096, 151936, 1, 1}};
constexpr int kCalls = 40, kRounds = 15;
constexpr int64_t kManyRows = 256;  // from here on fewer calls, and no lm_head, which has few rows

// Random numbers of e4m3 in place of bf16, so small that what they make as scales is below 1.
std::vector<bf16_t> as_e4m3(std::vector<bf16_t> values) {
  const auto number = [](bf16_t x) { return e4m3::from_f32(1.875f * bf16_to_f32(x)); };
  for (size_t i = 0; i + 1 < values.size(); ++i)
    values[i] = static_cast<bf16_t>(number(values[i]) | number(values[i + 1]) << 8);
  values.back() = 0;
  return values;
}

// A layer's operands: weights of one type, rotated among copies larger than the L2 cache.
class Product {
 public:
  Product(Device& gpu, const Layer& layer, const Form& form, int64_t rows,
          const std::vector<bf16_t>& values)
      : layer_(layer),
        of_rows_(form.of_rows),
        rows_(rows),
        table_(cuda::kernels(Order::hopper)),
        w_{.type = form.type,
           .n = layer.n,
           .k = layer.k,
           .layout = table_.weights,
           .count = layer.matrices},
        copies_(std::max<int64_t>(2, (320 << 20) / w_.bytes())),
        weights_(gpu, copies_ * w_.bytes(), "a bench"),
        x_(on_gpu(gpu, values)),
        scales_(
            on_gpu(gpu, std::vector<RunScale>(
                            rows * scales_of_row(form.type, layer.k, layer.split_k), {0.01f, 0}))),
        y_(gpu, rows * layer.n * layer.matrices, "a bench"),
        gated_(gpu, rows * layer.n, "a bench"),
        scratch_(gpu, table_.blocks_scratch, "a bench") {
    const auto size = static_cast<int64_t>(values.size() * sizeof(bf16_t));
    for (int64_t at = 0; at < copies_ * w_.bytes(); at += size)
      gpu.upload(weights_.data() + at, values.data(), std::min(size, copies_ * w_.bytes() - at));
  }

  int64_t bytes() const { return w_.bytes(); }
  // Whether there is such a product: few rows alone become integers in it.
  bool can() const {
    return w_.type != DType::i8 || of_rows_ == DType::i8 ||
           table_.makes_integers(w_, rows_, layer_.split_k);
  }
  void run(int i, const Execution& on) {
    w_.data = weights_.data() + i % copies_ * w_.bytes();
    const bool is_integer = w_.type == DType::i8, is_e4m3 = invar::is_e4m3(w_.type);
    const Activation x{x_.data(), of_rows_, layer_.k,
                       is_integer || is_e4m3 ? scales_.data() : nullptr};
    if (layer_.matrices == 2)
      (is_integer ? table_.int8_gated_matmul
       : is_e4m3  ? table_.fp8_gated_matmul
                  : table_.gated_matmul)({.x = x,
                                         .gate_up = w_,
                                         .rows = rows_,
                                         .gate_bias = nullptr,
                                         .up_bias = nullptr,
                                         .out = {gated_.data(), DType::bf16, layer_.n},
                                         .scratch = scratch_.data()},
                                        on);
    else
      (is_integer ? table_.int8_matmul
       : is_e4m3  ? table_.fp8_matmul
                  : table_.matmul)({.x = x,
                                   .w = w_,
                                   .rows = rows_,
                                   .split_k = layer_.split_k,
                                   .bias = nullptr,
                                   .accumulate = layer_.split_k > 1,
                                   .y = y_.data(),
                                   .y_stride = layer_.n,
                                   .scratch = scratch_.data()},
                                  on);
  }

 private:
  Layer layer_;
  DType of_rows_;
  int64_t rows_;
  Kernels table_;
  Matrix w_;
  int64_t copies_;
  DeviceArray<char> weights_;
  DeviceArray<bf16_t> x_;
  DeviceArray<RunScale> scales_;
  DeviceArray<float> y_;
  DeviceArray<bf16_t> gated_;
  DeviceArray<std::byte> scratch_;
};

}  // namespace

void bench_blocks(Device& gpu, GpuTimer& timer, int64_t rows, std::string_view only) {
  for (const Layer& layer : kLayers) {
    if (!only.empty() && only != layer.name) continue;
    if (rows >= kManyRows && layer.n > 100000) continue;
    const auto values = random_values(rows * layer.k), numbers = as_e4m3(values);
    std::vector<Product> products;
    for (const Form& form : kForms)
      products.emplace_back(gpu, layer, form, rows, invar::is_e4m3(form.type) ? numbers : values);
    for (size_t i = 0; i < products.size(); ++i)
      if (products[i].can())
        timer.add(
            kForms[i].name, [&, i](int call) { products[i].run(call, timer.on()); },
            rows < kManyRows ? kCalls : kCalls / 4);
    std::map<std::string, double> us;
    for (const auto& [name, time] : timer.run(kRounds)) us[name] = time;
    fmt::print("| {} | {} |", layer.name, rows);
    for (size_t i = 0; i < products.size(); ++i) {
      const auto time = us.find(kForms[i].name);
      if (time == us.end())
        fmt::print(" - |");
      else
        fmt::print(" {:.1f}, {:.2f}, {:.2f} x |", time->second,
                   static_cast<double>(products[i].bytes()) / time->second * 1e-6,
                   us.at("bf16") / time->second);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace invar::bench
