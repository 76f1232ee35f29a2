// Recurrent layers by chunk (numerics 4.4) beside the plain recurrence in f32, which reads and
// writes the state at every row: time of one head of 128 x 128.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/recurrent.h"
#include "kernels/select.h"

namespace invar {
namespace {

constexpr int kSize = 128;

double microseconds(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

std::vector<float> numbers(int64_t count, float scale) {
  std::vector<float> x(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& y : x) {
    state = state * 1664525 + 1013904223;
    y = scale * static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return x;
}

// The state of a head at each row, as engines decode.
void plain_row(const float* q, const float* k, const float* v, float decay, float factor,
               float* state, float* out) {
  alignas(64) float y[kSize] = {}, u[kSize];
  for (int d = 0; d < kSize; ++d)
    for (int e = 0; e < kSize; ++e) {
      state[d * kSize + e] *= decay;
      y[e] = __builtin_fmaf(k[d], state[d * kSize + e], y[e]);
    }
  for (int e = 0; e < kSize; ++e) u[e] = factor * (v[e] - y[e]), y[e] = 0;
  for (int d = 0; d < kSize; ++d)
    for (int e = 0; e < kSize; ++e) {
      state[d * kSize + e] = __builtin_fmaf(k[d], u[e], state[d * kSize + e]);
      y[e] = __builtin_fmaf(q[d], state[d * kSize + e], y[e]);
    }
  for (int e = 0; e < kSize; ++e) out[e] = y[e];
}

// A layer of many heads and one sequence.
class Bench {
 public:
  Bench(Recurrence kind, int heads, int rows, Order order, const std::string& set)
      : kernels_(select_kernels(order, set)),
        heads_(heads),
        rows_(rows),
        chunks_((rows + kChunkSlots - 1) / kChunkSlots),
        memory_(5),
        plain_(static_cast<size_t>(heads) * kSize * kSize),
        q_(numbers(rows * int64_t{heads} * kSize, 1)),
        k_(numbers(q_.size(), 1)),
        v_(numbers(q_.size(), 1)),
        decays_(static_cast<size_t>(rows) * heads * (kind == Recurrence::channel_delta ? kSize : 1),
                -0.05f),
        factors_(static_cast<size_t>(rows) * heads, 0.5f),
        out_(q_.size()),
        non_finite_(std::make_unique<bool[]>(rows)) {
    layer_ = {
        .kind = kind, .key_heads = heads, .heads = heads, .key_size = kSize, .value_size = kSize};
    layer_.keys = cells(0, layer_.key_elements() * 2, chunks_);
    layer_.values = cells(1, layer_.value_elements() * 2, chunks_);
    layer_.sums = cells(2, layer_.sum_elements() * 4, chunks_);
    layer_.states = cells(3, layer_.state_elements() * 4, 2);
    layer_.operands = cells(4, layer_.state_elements() * 2, 2);
    q_row_.resize(static_cast<size_t>(rows) * heads * kSize);
    k_row_.resize(q_row_.size());
    positions_.resize(rows), zeros_.resize(rows), begin_.resize(rows + 1), table_.resize(chunks_);
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(begin_.begin(), begin_.end(), 0);
    std::iota(table_.begin(), table_.end(), 0);
    for (int t = 0; t < rows; ++t) cell_.push_back(t / kChunkSlots);
  }

  // Rows [first, first + count), all behind a state.
  void by_chunk(int first, int count, int32_t next_state) {
    const int64_t width = int64_t{heads_} * kSize, at = first * width;
    const int32_t* tables[] = {table_.data()};
    const RowPlaces places{count,         positions_.data() + first, zeros_.data(), tables,
                           begin_.data(), cell_.data() + first};
    const RecurrentKeysParams keys{.queries = q_.data() + at,
                                   .keys = k_.data() + at,
                                   .stride = width,
                                   .normalises = layer_.kind != Recurrence::state_space,
                                   .eps = 1e-6f,
                                   .scale = 0.088388346f,
                                   .layer = layer_,
                                   .places = places,
                                   .q = q_row_.data(),
                                   .k = k_row_.data(),
                                   .non_finite = non_finite_.get()};
    kernels_.recurrent_keys(keys, {});
    const int32_t sequence[] = {0, count};
    const std::vector<int32_t> next(static_cast<size_t>(count), next_state);
    const RecurrenceParams p{.layer = layer_,
                             .places = places,
                             .q = q_row_.data(),
                             .k = k_row_.data(),
                             .v = v_.data() + at,
                             .v_stride = width,
                             .decays = decays_.data(),
                             .factors = factors_.data(),
                             .skips = nullptr,
                             .sequence_begin = sequence,
                             .sequences = 1,
                             .state_of = zeros_.data(),
                             .next_state = next.data(),
                             .out = out_.data() + at,
                             .out_stride = width,
                             .non_finite = non_finite_.get(),
                             .matmul = kernels_.matmul};
    kernels_.recurrence(p, {});
  }
  void by_row(int first, int count) {
    const int64_t width = int64_t{heads_} * kSize;
    for (int h = 0; h < heads_; ++h)
      for (int t = first; t < first + count; ++t) {
        const int64_t at = t * width + h * kSize;
        plain_row(q_.data() + at, k_.data() + at, v_.data() + at, 0.95f, 0.5f,
                  plain_.data() + int64_t{h} * kSize * kSize, out_.data() + at);
      }
  }

  // Median times a head and row: decoding a chunk row by row, and a prompt of all rows.
  void run(int repetitions) {
    std::vector<double> decode, plain, prompt;
    for (int i = 0; i < repetitions; ++i) {
      const double heads = heads_;
      decode.push_back(microseconds([&] {
                         for (int t = 0; t < kChunkSlots; ++t) by_chunk(t, 1, 1);
                       }) /
                       heads / kChunkSlots);
      plain.push_back(microseconds([&] {
                        for (int t = 0; t < kChunkSlots; ++t) by_row(t, 1);
                      }) /
                      heads / kChunkSlots);
      prompt.push_back(microseconds([&] { by_chunk(0, rows_, 0); }) / heads / rows_);
    }
    for (auto* x : {&decode, &plain, &prompt}) std::ranges::sort(*x);
    const size_t middle = decode.size() / 2;
    fmt::print(
        "decoding {:.2f} us a row and head, the plain recurrence {:.2f} us: {:.2f} x; a prompt of "
        "{} rows {:.2f} us a row: {:.2f} x\n",
        decode[middle], plain[middle], decode[middle] / plain[middle], rows_, prompt[middle],
        prompt[middle] / plain[middle]);
  }

 private:
  Cells cells(int which, int64_t bytes_of_head, int count) {
    const int64_t bytes = bytes_of_head * heads_;
    memory_[which].resize(static_cast<size_t>(bytes * count + 64));
    char* data = memory_[which].data();
    return {data + (64 - reinterpret_cast<uintptr_t>(data) % 64) % 64, bytes};
  }

  Kernels kernels_;
  int heads_, rows_, chunks_;
  RecurrentLayer layer_;
  std::vector<std::vector<char>> memory_;
  std::vector<float> plain_, q_, k_, v_, decays_, factors_, out_;
  std::vector<bf16_t> q_row_, k_row_;
  std::vector<int32_t> positions_, zeros_, begin_, table_, cell_;
  std::unique_ptr<bool[]> non_finite_;
};

}  // namespace
}  // namespace invar

int main(int argc, char** argv) {
  using namespace invar;
  CLI::App app("Recurrent layers beside the plain recurrence: one thread, one sequence");
  int heads = 256, rows = 512, repetitions = 5;
  std::string kind = "delta", set = "auto";
  app.add_option("--heads", heads, "of a layer; their states are what memory holds");
  app.add_option("--rows", rows, "of the prompt")->check(CLI::Range(64, 65536));
  app.add_option("--repetitions", repetitions, "of which the median counts");
  app.add_option("--kind", kind)->check(CLI::IsMember({"delta", "channels", "state-space"}));
  app.add_option("--set", set, "the instruction set");
  CLI11_PARSE(app, argc, argv);
  const ScopedFlushToZero flush;
  const Recurrence which = kind == "delta"      ? Recurrence::delta
                           : kind == "channels" ? Recurrence::channel_delta
                                                : Recurrence::state_space;
  Bench(which, heads, rows, Order::portable, set).run(repetitions);
  return 0;
}
