#include "cuda_ragged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "cuda_values.h"
#include "kernels/cuda/cuda_kernels.h"
#include "workload/mixtures.h"

namespace invar::bench {

namespace {

constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kSlots = 64, kRounds = 9, kCalls = 20;
constexpr int64_t kMean = 2048;  // tokens of a sequence

// A batch and the arrays of its cache, of which several take turns.
class Decode {
 public:
  Decode(Device& gpu, const Mixture& mixture)
      : gpu_(gpu), table_(cuda::kernels(Order::hopper)), rows_(std::ssize(mixture.lengths)) {
    std::vector<int32_t> blocks, begins, position, table;
    for (const int64_t length : mixture.lengths) {
      begins.push_back(static_cast<int32_t>(blocks.size()));
      table.push_back(static_cast<int32_t>(table.size()));
      position.push_back(static_cast<int32_t>(length - 1));
      for (int64_t i = 0; i < (length + kSlots - 1) / kSlots; ++i)
        blocks.push_back(static_cast<int32_t>(blocks.size()));
      tokens_ += length;
    }
    elements_ = std::ssize(blocks) * kKvHeads * kSlots * kHeadDim;
    copies_ = static_cast<int>(std::clamp<int64_t>((200 << 20) / (elements_ * 2), 1, 4));
    const auto values = random_values(elements_);
    keys_ = {gpu, static_cast<size_t>(copies_ * elements_), "a bench"};
    values_ = {gpu, static_cast<size_t>(copies_ * elements_), "a bench"};
    for (int i = 0; i < copies_; ++i)
      for (const auto* array : {&keys_, &values_})
        gpu.upload(array->data() + i * elements_, values.data(), elements_ * 2);
    queries_ = on_gpu(gpu, random_values(rows_ * kHeads * kHeadDim));
    out_ = {gpu, static_cast<size_t>(rows_ * kHeads * kHeadDim), "a bench"};
    scratch_ = {gpu, table_.attention_scratch, "a bench"};
    block_ = on_gpu(gpu, blocks);
    position_ = on_gpu(gpu, position);
    table_of_ = on_gpu(gpu, table);
    std::vector<const int32_t*> tables;
    for (const int32_t begin : begins) tables.push_back(block_.data() + begin);
    tables_ = on_gpu(gpu, tables);
  }

  int64_t tokens() const { return tokens_; }
  void run(int i, const Execution& on) const {
    const int64_t at = i % copies_ * elements_;
    table_.attention({.q = queries_.data(),
                      .rows = rows_,
                      .heads = kHeads,
                      .positions = position_.data(),
                      .table_of = table_of_.data(),
                      .tables = tables_.data(),
                      .window = 0,
                      .kv = {.keys = keys_.data() + at,
                             .values = values_.data() + at,
                             .block_size = kSlots,
                             .kv_heads = kKvHeads,
                             .head_dim = kHeadDim,
                             .layout = table_.cache},
                      .out = {out_.data(), DType::bf16, kHeads * kHeadDim},
                      .scratch = scratch_.data(),
                      .fewest_rows = 1,
                      .most_rows = 1},
                     on);
  }

 private:
  Device& gpu_;
  const Kernels table_;
  const int64_t rows_;
  int64_t tokens_ = 0, elements_ = 0;
  int copies_ = 1;
  DeviceArray<bf16_t> keys_, values_, queries_, out_;
  DeviceArray<std::byte> scratch_;
  DeviceArray<int32_t> block_, position_, table_of_;
  DeviceArray<const int32_t*> tables_;
};

}  // namespace

void bench_ragged(Device& gpu, GpuTimer& timer, int64_t sequences) {
  std::vector<Mixture> all = ragged_mixtures(sequences, kMean);
  all.insert(all.begin(), even_mixture(sequences, kMean));
  std::vector<std::unique_ptr<Decode>> batches;
  for (const Mixture& m : all) {
    batches.push_back(std::make_unique<Decode>(gpu, m));
    const Decode& batch = *batches.back();
    timer.add(
        m.name, [&](int i) { batch.run(i, timer.on()); }, kCalls);
  }
  double even = 0;
  const auto times = timer.run(kRounds);
  for (size_t i = 0; i < times.size(); ++i) {
    const auto& [name, us] = times[i];
    if (i == 0) even = us;
    const double bytes = batches[i]->tokens() * 4.0 * kKvHeads * kHeadDim;
    fmt::print("| {} | {} | {} | {:.1f} | {:.2f} | {:.3f} |\n", sequences, name, all[i].longest(),
               us, bytes / us * 1e-6, us / even);
  }
  std::fflush(stdout);
}

}  // namespace invar::bench
