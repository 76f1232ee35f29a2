#include "cuda_recurrent.h"

#include <fmt/format.h>

#include <cstdio>

#include "cuda_values.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/recurrent.h"

namespace invar::bench {

namespace {

constexpr int kKeyHeads = 16, kHeads = 32, kSize = 128, kTaps = 4, kRounds = 9;
constexpr int64_t kMixed = (2 * kKeyHeads + kHeads) * kSize, kValues = kHeads * kSize;

std::vector<float> random_floats_of(int64_t count, float scale, float offset = 0) {
  std::vector<float> x;
  for (const bf16_t value : random_values(count, scale)) x.push_back(bf16_to_f32(value) + offset);
  return x;
}

// A step's rows, the layer's memory, and what its operations give.
class Step {
 public:
  Step(Device& gpu, int32_t sequences, int32_t rows, int32_t begin)
      : table_(cuda::kernels(Order::hopper)),
        rows_(int64_t{sequences} * rows),
        sequences_(sequences) {
    layer_ = {.kind = Recurrence::delta,
              .key_heads = kKeyHeads,
              .heads = kHeads,
              .key_size = kSize,
              .value_size = kSize,
              .layout = table_.cache};
    lay_out(gpu, rows, begin);
    const auto cells = [&](DeviceArray<std::byte>& array, int64_t count, int64_t bytes) {
      array = on_gpu(gpu, std::vector<std::byte>(static_cast<size_t>(count * bytes)));
      return Cells{array.data(), bytes};
    };
    layer_.keys = cells(keys_, chunks_, kKeyHeads * layer_.key_elements() * 2);
    layer_.values = cells(values_, chunks_, kHeads * layer_.value_elements() * 2);
    layer_.sums = cells(sums_, chunks_, kHeads * kChunkSlots * 4);
    layer_.states = cells(states_, sequences, kHeads * layer_.state_elements() * 4);
    layer_.operands = cells(operands_, sequences, kHeads * layer_.state_elements() * 2);
    conv_inputs_ = cells(inputs_, chunks_, kChunkSlots * kMixed * 2);
    conv_before_ = cells(before_, sequences, (kTaps - 1) * kMixed * 2);
    x_ = on_gpu(gpu, random_floats_of(rows_ * kMixed, 1));
    taps_ = on_gpu(gpu, random_floats_of(kTaps * kMixed, 0.5f));
    gates_ = on_gpu(gpu, random_floats_of(rows_ * 2 * kHeads, 1));
    per_head_ = on_gpu(gpu, random_floats_of(kSize, 0.5f, 1));
    mixed_ = {gpu, static_cast<size_t>(rows_ * kMixed), "a bench"};
    decays_ = {gpu, static_cast<size_t>(rows_ * kHeads), "a bench"};
    factors_ = {gpu, static_cast<size_t>(rows_ * kHeads), "a bench"};
    q_ = {gpu, static_cast<size_t>(rows_ * kKeyHeads * kSize), "a bench"};
    k_ = {gpu, static_cast<size_t>(rows_ * kKeyHeads * kSize), "a bench"};
    out_ = {gpu, static_cast<size_t>(rows_ * kValues), "a bench"};
    normed_ = {gpu, static_cast<size_t>(rows_ * kValues), "a bench"};
    flags_ = on_gpu(gpu, std::vector<unsigned char>(static_cast<size_t>(rows_)));
    scratch_ = on_gpu(gpu, std::vector<std::byte>(table_.attention_scratch));
  }

  void convolve(const Execution& on) const {
    table_.short_conv({.x = x_.data(),
                       .x_stride = kMixed,
                       .factor = nullptr,
                       .factor_stride = 0,
                       .places = places(),
                       .sequences = sequences_,
                       .channels = kMixed,
                       .taps = kTaps,
                       .weight = taps_.data(),
                       .bias = nullptr,
                       .silu = true,
                       .gate = nullptr,
                       .gate_stride = 0,
                       .inputs = conv_inputs_,
                       .before = conv_before_,
                       .type = DType::bf16,
                       .before_of = before_of_.data(),
                       .next_state = next_.data(),
                       .out = {mixed_.data(), DType::f32, kMixed},
                       .non_finite = flags()},
                      on);
  }
  void make_gates(const Execution& on) const {
    table_.recurrent_gates({.kind = Recurrence::delta,
                            .a = gates_.data() + kHeads,
                            .a_stride = 2 * kHeads,
                            .z = gates_.data(),
                            .z_stride = 2 * kHeads,
                            .log_rate = per_head_.data(),
                            .bias = per_head_.data(),
                            .rows = rows_,
                            .heads = kHeads,
                            .channels = 1,
                            .doubles = false,
                            .least = 0,
                            .most = 0,
                            .decays = decays_.data(),
                            .factors = factors_.data()},
                           on);
  }
  void make_keys(const Execution& on) const {
    table_.recurrent_keys({.queries = mixed_.data(),
                           .keys = mixed_.data() + kKeyHeads * kSize,
                           .stride = kMixed,
                           .normalises = true,
                           .eps = 1e-6f,
                           .scale = 0.0883883461f,
                           .layer = layer_,
                           .places = places(),
                           .q = q_.data(),
                           .k = k_.data(),
                           .non_finite = flags()},
                          on);
  }
  void recur(const Execution& on) const {
    table_.recurrence({.layer = layer_,
                       .places = places(),
                       .q = q_.data(),
                       .k = k_.data(),
                       .v = mixed_.data() + 2 * kKeyHeads * kSize,
                       .v_stride = kMixed,
                       .decays = decays_.data(),
                       .factors = factors_.data(),
                       .skips = nullptr,
                       .sequence_begin = sequence_begin_.data(),
                       .sequences = sequences_,
                       .state_of = state_of_.data(),
                       .next_state = next_.data(),
                       .out = out_.data(),
                       .out_stride = kValues,
                       .non_finite = flags(),
                       .matmul = table_.matmul,
                       .scratch = scratch_.data()},
                      on);
  }
  void norm(const Execution& on) const {
    table_.gated_norm({.x = out_.data(),
                       .x_stride = kValues,
                       .gate = x_.data(),
                       .gate_stride = kMixed,
                       .weight = per_head_.data(),
                       .own_weights = false,
                       .is_sigmoid = false,
                       .gate_first = false,
                       .eps = 1e-6f,
                       .rows = rows_,
                       .groups = kHeads,
                       .width = kSize,
                       .out = {normed_.data(), DType::bf16, kValues}},
                      on);
  }

 private:
  // The last chunk of a sequence's rows has the cell of the sequence, the others scratch ones.
  void lay_out(Device& gpu, int32_t rows, int32_t begin) {
    std::vector<int32_t> position, table_of, write_begin, write_cell, state_of, before_of, next,
        sequence_begin, table;
    const int32_t first = begin / kChunkSlots, last = (begin + rows - 1) / kChunkSlots;
    chunks_ = sequences_;
    for (int32_t i = 0; i < sequences_; ++i) {
      sequence_begin.push_back(i * rows);
      for (int32_t c = 0; c <= last; ++c)
        table.push_back(c == last ? i : c < first ? i : static_cast<int32_t>(chunks_++));
      for (int32_t p = begin; p < begin + rows; ++p) {
        const int32_t chunk = p / kChunkSlots;
        position.push_back(p);
        table_of.push_back(i);
        write_begin.push_back(static_cast<int32_t>(write_cell.size()));
        write_cell.push_back(table[static_cast<size_t>(i * (last + 1) + chunk)]);
        state_of.push_back(chunk == 0 ? -1 : i);
        before_of.push_back(chunk == first ? i : -1);
        next.push_back(p % kChunkSlots == kChunkSlots - 1 ? i : -1);
      }
    }
    write_begin.push_back(static_cast<int32_t>(write_cell.size()));
    sequence_begin.push_back(sequences_ * rows);
    positions_ = on_gpu(gpu, position), table_of_ = on_gpu(gpu, table_of);
    write_begin_ = on_gpu(gpu, write_begin), write_cell_ = on_gpu(gpu, write_cell);
    state_of_ = on_gpu(gpu, state_of), before_of_ = on_gpu(gpu, before_of);
    next_ = on_gpu(gpu, next), sequence_begin_ = on_gpu(gpu, sequence_begin);
    cells_ = on_gpu(gpu, table);
    std::vector<const int32_t*> tables;
    for (int32_t i = 0; i < sequences_; ++i)
      tables.push_back(cells_.data() + int64_t{i} * (last + 1));
    tables_ = on_gpu(gpu, tables);
  }
  RowPlaces places() const {
    return {rows_,          positions_.data(),   table_of_.data(),
            tables_.data(), write_begin_.data(), write_cell_.data()};
  }
  bool* flags() const { return reinterpret_cast<bool*>(flags_.data()); }

  const Kernels table_;
  const int64_t rows_;
  const int32_t sequences_;
  int64_t chunks_ = 0;
  RecurrentLayer layer_;
  Cells conv_inputs_, conv_before_;
  DeviceArray<std::byte> keys_, values_, sums_, states_, operands_, inputs_, before_, scratch_;
  DeviceArray<int32_t> positions_, table_of_, write_begin_, write_cell_, state_of_, before_of_,
      next_, sequence_begin_, cells_;
  DeviceArray<const int32_t*> tables_;
  DeviceArray<float> x_, taps_, gates_, per_head_, mixed_, decays_, factors_, out_;
  DeviceArray<bf16_t> q_, k_, normed_;
  DeviceArray<unsigned char> flags_;
};

}  // namespace

void bench_recurrent(Device& gpu, GpuTimer& timer, int32_t sequences, int32_t rows, int32_t begin) {
  const Step step(gpu, sequences, rows, begin);
  const int calls = rows > 1024 ? 2 : 10;
  const auto add = [&](const char* name, void (Step::*operation)(const Execution&) const) {
    (step.*operation)(timer.on());  // the later ones read what this one gives
    timer.add(
        name, [&, operation](int) { (step.*operation)(timer.on()); }, calls);
  };
  add("convolution", &Step::convolve);
  add("gates", &Step::make_gates);
  add("keys", &Step::make_keys);
  add("recurrence", &Step::recur);
  add("norm", &Step::norm);
  fmt::print("| {} | {} | {} |", sequences, rows, begin);
  double sum = 0;
  for (const auto& [name, us] : timer.run(kRounds)) {
    fmt::print(" {:.1f} |", us);
    sum += us;
  }
  // A plain recurrence reads and writes a state of f32 with every row.
  const double plain = 2.0 * sequences * kHeads * kSize * kSize * 4;
  fmt::print(" {:.1f} | {:.2f} |\n", sum, plain / sum * 1e-6);
  std::fflush(stdout);
}

}  // namespace invar::bench
