#include "cuda_layers.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <map>
#include <string>

#include "cuda_values.h"
#include "device/cuda/cublas.h"
#include "kernels/cuda/cuda_kernels.h"

namespace invar::bench {

namespace {

constexpr int kLayers = 36;
constexpr int kHidden = 4096, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kFfn = 12288, kSplitK = 8;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kSlots = 64;
constexpr float kEps = 1e-6f;

enum Op { norm1, qkv, rotation, attention, o, norm2, gate_up, down };
constexpr std::array kNames = {"norm", "q, k, v", "rotation", "attention",
                               "o",    "norm",    "gate, up", "down"};
constexpr int kOps = kNames.size();

// The arrays of some layers, taken in turns, so that what a layer reads is not in the L2 cache.
class Layers {
 public:
  Layers(Device& gpu, int64_t rows, int64_t context, bool prompt)
      : gpu_(gpu),
        table_(cuda::kernels(Order::hopper)),
        rows_(rows),
        sequences_(prompt ? 1 : rows),
        blocks_(sequences_ * ((context + kSlots - 1) / kSlots)) {
    for (Weights* w : {&qkv_, &o_, &gate_up_, &down_}) w->fill(gpu);
    const auto cached = random_values(kCopies * cache_elements());
    keys_ = on_gpu(gpu, cached);
    values_ = on_gpu(gpu, cached);
    hidden_ = on_gpu(gpu, std::vector<float>(rows * kHidden, 0.5f));
    norm_ = on_gpu(gpu, std::vector<float>(kHidden, 1.0f));
    cos_ = on_gpu(gpu, std::vector<float>(context * kHeadDim / 2, 0.8f));
    sin_ = on_gpu(gpu, std::vector<float>(context * kHeadDim / 2, 0.6f));
    normed_ = {gpu, static_cast<size_t>(rows * kHidden), "a bench"};
    products_ = {gpu, static_cast<size_t>(rows * kQkv), "a bench"};
    queries_ = on_gpu(gpu, random_values(rows * kHidden));
    attended_ = on_gpu(gpu, random_values(rows * kHidden));
    gated_ = on_gpu(gpu, random_values(rows * kFfn));
    pairs_ = {gpu, static_cast<size_t>(rows * 2 * kFfn), "a bench"};
    failed_ = {gpu, static_cast<size_t>(rows), "a bench"};
    scratch_ = {gpu, table_.attention_scratch, "a bench"};
    place(context, prompt);
  }

  void run(Op op, int layer, const Execution& on) const {
    switch (op) {
      case norm1:
      case norm2:
        return table_.rms_norm({.x = hidden_.data(),
                                .x_stride = kHidden,
                                .rows_of = nullptr,
                                .weight = norm_.data(),
                                .eps = kEps,
                                .rows = rows_,
                                .width = kHidden,
                                .out = bf16(normed_, kHidden)},
                               on);
      case qkv:
        return multiply(bf16(normed_, kHidden), qkv_, layer, 1, products_.data(), on);
      case rotation:
        return rotate(layer, on);
      case attention:
        return attend(layer, on);
      case o:
        return multiply(bf16(attended_, kHidden), o_, layer, kSplitK, hidden_.data(), on);
      case gate_up:
        return table_.gated_matmul({.x = bf16(normed_, kHidden),
                                    .gate_up = gate_up_.of(layer),
                                    .rows = rows_,
                                    .gate_bias = nullptr,
                                    .up_bias = nullptr,
                                    .out = bf16(gated_, kFfn)},
                                   on);
      case down:
        return multiply(bf16(gated_, kFfn), down_, layer, kSplitK, hidden_.data(), on);
    }
  }

  // The same product by cuBLAS; false when the operation is none.
  bool run_cublas(cuda::Cublas& cublas, Op op, int layer, cudaStream_t stream) const {
    const auto product = [&](const DeviceArray<bf16_t>& x, const Weights& w, void* y, DType type,
                             bool adds) {
      cublas.multiply({.x = x.data(),
                       .w = w.of(layer).data,
                       .y = y,
                       .type = type,
                       .rows = rows_,
                       .n = w.n * w.matrices,
                       .k = w.k,
                       .x_stride = w.k,
                       .w_stride = w.k,
                       .y_stride = w.n * w.matrices,
                       .accumulate = adds},
                      stream);
      return true;
    };
    switch (op) {
      case qkv:
        return product(normed_, qkv_, products_.data(), DType::f32, false);
      case o:
        return product(attended_, o_, hidden_.data(), DType::f32, true);
      case down:
        return product(gated_, down_, hidden_.data(), DType::f32, true);
      case gate_up:
        product(normed_, gate_up_, pairs_.data(), DType::bf16, false);
        gate(pairs_.data(), gated_.data(), rows_, kFfn, stream);
        return true;
      default:
        return false;
    }
  }

 private:
  static constexpr int kCopies = 2;

  struct Weights {
    int64_t n, k;
    int matrices = 1;
    DeviceArray<bf16_t> data = {};

    int64_t elements() const { return matrices * n * k; }
    void fill(Device& gpu) { data = on_gpu(gpu, random_values(kCopies * elements(), 1.0f / 64)); }
    Matrix of(int layer) const {
      return {.data = data.data() + layer % kCopies * elements(),
              .type = DType::bf16,
              .n = n,
              .k = k,
              .layout = WeightLayout::rows,
              .count = matrices};
    }
  };

  static Activation bf16(const DeviceArray<bf16_t>& x, int64_t width) {
    return {const_cast<bf16_t*>(x.data()), DType::bf16, width};
  }
  int64_t cache_elements() const { return blocks_ * kKvHeads * kSlots * kHeadDim; }
  KvLayer kv(int layer) const {
    const int64_t at = layer % kCopies * cache_elements();
    return {.keys = const_cast<bf16_t*>(keys_.data()) + at,
            .values = const_cast<bf16_t*>(values_.data()) + at,
            .block_size = kSlots,
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim,
            .layout = table_.cache};
  }

  // Where rows stand and what they write.
  void place(int64_t context, bool prompt) {
    const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    const int64_t per_sequence = blocks_ / sequences_;
    std::vector<int32_t> block(blocks_), position(rows_), table(rows_), write_begin(rows_ + 1),
        write_block(rows_), write_slot(rows_);
    for (int64_t i = 0; i < blocks_; ++i) block[i] = narrow(i);
    for (int64_t t = 0; t < rows_; ++t) {
      position[t] = narrow(prompt ? context - rows_ + t : context - 1);
      table[t] = narrow(prompt ? 0 : t);
      write_begin[t + 1] = narrow(t + 1);
      write_block[t] = narrow(table[t] * per_sequence + position[t] / kSlots);
      write_slot[t] = position[t] % kSlots;
    }
    block_ = on_gpu(gpu_, block);
    position_ = on_gpu(gpu_, position);
    table_of_ = on_gpu(gpu_, table);
    write_begin_ = on_gpu(gpu_, write_begin);
    write_block_ = on_gpu(gpu_, write_block);
    write_slot_ = on_gpu(gpu_, write_slot);
    std::vector<const int32_t*> tables(sequences_);
    for (int64_t i = 0; i < sequences_; ++i) tables[i] = block_.data() + i * per_sequence;
    tables_ = on_gpu(gpu_, tables);
  }

  void multiply(const Activation& x, const Weights& w, int layer, int split_k, const float* y,
                const Execution& on) const {
    table_.matmul({.x = x,
                   .w = w.of(layer),
                   .rows = rows_,
                   .split_k = split_k,
                   .bias = nullptr,
                   .accumulate = split_k > 1,
                   .y = const_cast<float*>(y),
                   .y_stride = w.n},
                  on);
  }

  void rotate(int layer, const Execution& on) const {
    table_.qkv({.qkv = products_.data(),
                .qkv_stride = kQkv,
                .rows = rows_,
                .heads = kHeads,
                .q_norm = norm_.data(),
                .k_norm = norm_.data(),
                .norm_eps = kEps,
                .positions = position_.data(),
                .cos = cos_.data(),
                .sin = sin_.data(),
                .write_begin = write_begin_.data(),
                .write_block = write_block_.data(),
                .write_slot = write_slot_.data(),
                .kv = kv(layer),
                .q = const_cast<bf16_t*>(queries_.data()),
                .non_finite = const_cast<bool*>(failed_.data())},
               on);
  }

  void attend(int layer, const Execution& on) const {
    const int32_t most = sequences_ == 1 ? static_cast<int32_t>(rows_) : 1;
    table_.attention({.q = queries_.data(),
                      .rows = rows_,
                      .heads = kHeads,
                      .positions = position_.data(),
                      .table_of = table_of_.data(),
                      .tables = tables_.data(),
                      .window = 0,
                      .kv = kv(layer),
                      .out = bf16(attended_, kHidden),
                      .scratch = const_cast<std::byte*>(scratch_.data()),
                      .fewest_rows = most,
                      .most_rows = most,
                      .rows_are_even = most == 1},
                     on);
  }

  Device& gpu_;
  const Kernels table_;
  const int64_t rows_, sequences_, blocks_;
  Weights qkv_{kQkv, kHidden}, o_{kHidden, kHidden}, gate_up_{kFfn, kHidden, 2},
      down_{kHidden, kFfn};
  DeviceArray<bf16_t> keys_, values_, normed_, queries_, attended_, gated_, pairs_;
  DeviceArray<float> hidden_, norm_, cos_, sin_, products_;
  DeviceArray<bool> failed_;
  DeviceArray<std::byte> scratch_;
  DeviceArray<int32_t> block_, position_, table_of_, write_begin_, write_block_, write_slot_;
  DeviceArray<const int32_t*> tables_;
};

}  // namespace

void bench_layers(Device& gpu, GpuTimer& timer, int64_t rows, int64_t context, bool prompt) {
  const Layers layers(gpu, rows, context, prompt);
  cuda::Cublas cublas;
  timer.add(
      "all",
      [&](int layer) {
        for (int op = 0; op < kOps; ++op) layers.run(static_cast<Op>(op), layer, timer.on());
      },
      kLayers);
  for (int i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    timer.add(
        fmt::format("{} alone", i), [&, op](int layer) { layers.run(op, layer, timer.on()); },
        kLayers);
    timer.add(
        fmt::format("{} left out", i),
        [&, op](int layer) {
          for (int other = 0; other < kOps; ++other)
            if (other != op) layers.run(static_cast<Op>(other), layer, timer.on());
        },
        kLayers);
    if (cublas.is_there() && (op == qkv || op == o || op == gate_up || op == down))
      timer.add(
          fmt::format("{} cuBLAS", i),
          [&, op](int layer) { layers.run_cublas(cublas, op, layer, timer.stream()); }, kLayers);
  }
  std::map<std::string, double> us;
  for (const auto& [name, time] : timer.run(rows > 1000 ? 3 : 9)) us[name] = time;

  const std::string what = prompt ? fmt::format("{} rows of a prompt to {}", rows, context)
                                  : fmt::format("{} sequences of {}", rows, context);
  fmt::print(
      "\n| {}, us a layer | alone | whole less without it | cuBLAS alone |\n|---|---|---|---|\n",
      what);
  double sum = 0;
  for (int i = 0; i < kOps; ++i) {
    const double alone = us.at(fmt::format("{} alone", i));
    sum += alone;
    const auto other = us.find(fmt::format("{} cuBLAS", i));
    fmt::print("| {} | {:.1f} | {:.1f} | {} |\n", kNames[i], alone,
               us["all"] - us.at(fmt::format("{} left out", i)),
               other == us.end() ? "" : fmt::format("{:.1f}", other->second));
  }
  fmt::print("| sum; whole | {:.1f} | {:.1f} | |\n", sum, us["all"]);
  std::fflush(stdout);
}

}  // namespace invar::bench
