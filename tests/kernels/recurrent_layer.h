// A recurrent layer's memory and sequences of random rows for the tests of its kernels.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernel_check.h"
#include "kernels/recurrent.h"

namespace invar {

// Numbers of the whole range that arithmetic gives: none is subnormal (numerics 0).
inline void fill_results(Random& random, std::span<float> row) {
  fill_row(random, row);
  for (float& x : row)
    if (std::fpclassify(x) == FP_SUBNORMAL) x = std::copysign(0.0f, x);
}

struct RecurrentShape {
  Recurrence kind;
  int32_t key_heads, heads, key_size, value_size;
  DType type = DType::bf16;
  CacheLayout layout = CacheLayout::panels;
};

// Memory for some chunks and states, zeros at first.
class RecurrentMemory {
 public:
  RecurrentMemory(const RecurrentShape& shape, int chunks, int states)
      : layer{.kind = shape.kind,
              .key_heads = shape.key_heads,
              .heads = shape.heads,
              .key_size = shape.key_size,
              .value_size = shape.value_size,
              .type = shape.type,
              .layout = shape.layout},
        keys(chunks * chunk_bytes(layer.key_heads * layer.key_elements())),
        values(chunks * chunk_bytes(layer.heads * layer.value_elements())),
        sums(chunks * layer.heads * layer.sum_elements()),
        states(states * layer.heads * layer.state_elements()),
        operands(states * layer.heads * layer.state_elements()) {
    std::ranges::fill(keys.span(), char{0});
    std::ranges::fill(values.span(), char{0});
    layer.keys = {keys.data(), keys.size() / chunks};
    layer.values = {values.data(), values.size() / chunks};
    layer.sums = {sums.data(), sums.size() / chunks * 4};
    layer.states = {this->states.data(), this->states.size() / states * 4};
    layer.operands = {operands.data(), operands.size() / states * 2};
  }
  ::testing::AssertionResult is_same(const RecurrentMemory& other) const {
    if (auto result = same(keys, other.keys); !result) return result << " (keys)";
    if (auto result = same(values, other.values); !result) return result << " (values)";
    if (auto result = same(sums, other.sums); !result) return result << " (sums)";
    if (auto result = same(states, other.states); !result) return result << " (states)";
    if (auto result = same(operands, other.operands); !result) return result << " (operands)";
    return ::testing::AssertionSuccess();
  }
  void copy_from(const RecurrentMemory& other) {
    keys.copy_from(other.keys);
    values.copy_from(other.values);
    sums.copy_from(other.sums);
    states.copy_from(other.states);
    operands.copy_from(other.operands);
  }

  RecurrentLayer layer;
  Guarded<char> keys, values;
  Guarded<float> sums, states;
  Guarded<bf16_t> operands;

 private:
  int64_t chunk_bytes(int64_t elements) const { return elements * size_of(layer.type); }
};

// What enters a recurrence at the positions of one sequence.
struct RecurrentInputs {
  std::vector<float> queries, keys, values, decays, factors;

  RecurrentInputs(Random& random, const RecurrentShape& s, int64_t rows)
      : queries(rows * s.key_heads * s.key_size),
        keys(queries.size()),
        values(rows * s.heads * s.value_size),
        decays(rows * s.heads * (s.kind == Recurrence::channel_delta ? s.key_size : 1)),
        factors(rows * s.heads) {
    const float scale = s.kind == Recurrence::state_space ? 1.0f / 8 : 1.0f;
    for (float& x : queries) x = scale * random.uniform();
    for (float& x : keys) x = scale * random.uniform();
    for (float& x : values) x = random.uniform();
    for (float& x : factors) x = 0.5f + 0.49f * random.uniform();
    for (float& x : decays) {  // some rows forget much
      const float y = random.uniform();
      x = -0.15f * y * y - (random.below(40) == 0 ? 3.0f : 0.0f);
    }
    // Keys repeat, as text does.
    const int64_t width = s.key_heads * s.key_size;
    for (int64_t t = 7; t < rows; t += 3)
      std::copy_n(keys.begin() + t / 2 * width, width, keys.begin() + t * width);
  }
};

// A row of a step: which position of which inputs it is, in which table it stands, and the cells of
// chunks and states that it goes to.
struct RecurrentRow {
  int64_t input;
  int32_t position, table;
  std::vector<int32_t> write_cells;
  int32_t state_of, next_state;
};

// One step: the rows of some sequences.
class RecurrentStep {
 public:
  RecurrentStep(const RecurrentShape& shape, std::vector<std::vector<int32_t>> tables)
      : shape_(shape), tables_(std::move(tables)) {}

  void add(const RecurrentRow& row) {
    positions_.push_back(row.position);
    table_of_.push_back(row.table);
    inputs_.push_back(row.input);
    write_cells_.insert(write_cells_.end(), row.write_cells.begin(), row.write_cells.end());
    write_begin_.push_back(static_cast<int32_t>(write_cells_.size()));
    state_of_.push_back(row.state_of);
    next_state_.push_back(row.next_state);
  }
  void end_sequence() { sequence_begin_.push_back(static_cast<int32_t>(positions_.size())); }

  // Outputs go to the rows of `out` that the inputs have; gives whether all was finite.
  bool run(const Kernels& kernels, const RecurrentLayer& layer, const RecurrentInputs& inputs,
           const float* skips, std::span<float> out, int parts = 1) {
    const int64_t rows = static_cast<int64_t>(positions_.size());
    const int64_t keys = layer.key_heads * layer.key_size, values = layer.heads * layer.value_size;
    const int64_t decays = layer.heads * layer.channels();
    std::vector<const int32_t*> tables;
    for (const auto& table : tables_) tables.push_back(table.data());
    const RowPlaces places{.rows = rows,
                           .positions = positions_.data(),
                           .table_of = table_of_.data(),
                           .tables = tables.data(),
                           .write_begin = write_begin_.data(),
                           .write_cell = write_cells_.data()};
    const auto gathered = [&](const std::vector<float>& from, int64_t width) {
      std::vector<float> to;
      for (const int64_t i : inputs_)
        to.insert(to.end(), from.begin() + i * width, from.begin() + (i + 1) * width);
      return to;
    };
    const auto q_in = gathered(inputs.queries, keys), k_in = gathered(inputs.keys, keys);
    const auto v = gathered(inputs.values, values), g = gathered(inputs.decays, decays);
    const auto b = gathered(inputs.factors, layer.heads);
    Guarded<char> q(rows * layer.key_heads * layer.padded_key() * size_of(layer.type)), k(q.size());
    Guarded<float> y(rows * values);
    std::vector<unsigned char> non_finite(static_cast<size_t>(rows), 0);
    bool* flags = reinterpret_cast<bool*>(non_finite.data());
    const bool normalises = layer.kind != Recurrence::state_space;
    const RecurrentKeysParams key_params{
        .queries = q_in.data(),
        .keys = k_in.data(),
        .stride = keys,
        .normalises = normalises,
        .eps = 1e-6f,
        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(layer.key_size))),
        .layer = layer,
        .places = places,
        .q = q.data(),
        .k = k.data(),
        .non_finite = flags};
    const RecurrenceParams params{.layer = layer,
                                  .places = places,
                                  .q = q.data(),
                                  .k = k.data(),
                                  .v = v.data(),
                                  .v_stride = values,
                                  .decays = g.data(),
                                  .factors = b.data(),
                                  .skips = skips,
                                  .sequence_begin = sequence_begin_.data(),
                                  .sequences = static_cast<int32_t>(sequence_begin_.size()) - 1,
                                  .state_of = state_of_.data(),
                                  .next_state = next_state_.data(),
                                  .out = y.data(),
                                  .out_stride = values,
                                  .non_finite = flags,
                                  .matmul = kernels.matmul};
    run_in_parts(parts, [&](const Execution& on) { kernels.recurrent_keys(key_params, on); });
    run_in_parts(parts, [&](const Execution& on) { kernels.recurrence(params, on); });
    EXPECT_TRUE(q.guards_are_intact() && k.guards_are_intact() && y.guards_are_intact());
    for (int64_t t = 0; t < rows; ++t)
      std::copy_n(y.data() + t * values, values, out.begin() + inputs_[t] * values);
    return std::ranges::find(non_finite, 1) == non_finite.end();
  }

 private:
  RecurrentShape shape_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> positions_, table_of_, write_begin_ = {0}, write_cells_, state_of_,
                                              next_state_, sequence_begin_ = {0};
  std::vector<int64_t> inputs_;
};

// The row of a plain sequence whose chunks and states lie in cells from `first` on.
inline RecurrentRow plain_row(int64_t position, int32_t first = 0, int32_t table = 0) {
  const int32_t chunk = static_cast<int32_t>(position / kChunkSlots);
  return {.input = position,
          .position = static_cast<int32_t>(position),
          .table = table,
          .write_cells = {first + chunk},
          .state_of = chunk ? first + chunk : -1,
          .next_state = first + chunk + 1};
}
inline std::vector<int32_t> plain_table(int32_t chunks, int32_t first = 0) {
  std::vector<int32_t> table;
  for (int32_t i = 0; i < chunks; ++i) table.push_back(first + i);
  return table;
}

}  // namespace invar
