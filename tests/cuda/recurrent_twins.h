// A recurrent layer's memory and the rows of a step, on the host and on a GPU.
#pragma once

#include <numeric>
#include <span>

#include "../kernels/recurrent_layer.h"
#include "cuda_check.h"
#include "kernels/recurrent.h"

namespace invar {

inline std::vector<int32_t> ascending(int64_t count) {
  std::vector<int32_t> x(static_cast<size_t>(count));
  std::iota(x.begin(), x.end(), 0);
  return x;
}

// Where rows of some sequences stand; cells of chunks and those of states have the same numbers.
struct RecurrentRows {
  std::vector<std::vector<int32_t>> tables;
  std::vector<RecurrentRow> rows;
  std::vector<int32_t> begins = {0};  // of sequences, and the end of the last one
  int cells = 0;

  // Positions [first, last), in cells of their own; the state may move in its place.
  void add_sequence(int64_t first, int64_t last, bool in_place = false) {
    const auto table = static_cast<int32_t>(tables.size());
    const auto chunks = static_cast<int32_t>(last / kChunkSlots) + 1;
    for (int64_t position = first; position < last; ++position) {
      RecurrentRow row = plain_row(position, cells, table);
      if (in_place) row.state_of = row.state_of < 0 ? -1 : cells, row.next_state = cells;
      rows.push_back(row);
    }
    tables.push_back(plain_table(chunks, cells));
    cells += chunks + 1;
    end_sequence();
  }
  void end_sequence() { begins.push_back(static_cast<int32_t>(rows.size())); }
  int64_t size() const { return std::ssize(rows); }
  // Those whose outputs depend on decays.
  int64_t behind_others() const {
    return std::ranges::count_if(rows, [](const RecurrentRow& row) { return row.position > 0; });
  }
  template <typename Of>
  std::vector<int32_t> each(const Of& of) const {
    std::vector<int32_t> x;
    for (const RecurrentRow& row : rows) x.push_back(of(row));
    return x;
  }
};

class RecurrentTwins {
 public:
  RecurrentTwins(Device& gpu, Random& random, const RecurrentLayer& shape, RecurrentRows rows)
      : inputs(gpu, random_floats(random, rows.size() * stride(shape))),
        decays(gpu, decays_of(random, shape, rows.size())),
        factors(gpu, random_floats(random, rows.size() * shape.heads)),
        shape_(shape),
        rows_(std::move(rows)),
        keys_(gpu, zeros(shape.key_heads * shape.key_elements())),
        values_(gpu, zeros(shape.heads * shape.value_elements())),
        sums_(gpu, rows_.cells * shape.heads * shape.sum_elements()),
        states_(gpu, rows_.cells * shape.heads * shape.state_elements()),
        operands_(gpu, std::ssize(states_.host)),
        q_(gpu, rows_.size() * shape.key_heads * shape.padded_key() * words()),
        k_(gpu, std::ssize(q_.host)),
        out_(gpu, rows_.size() * shape.heads * shape.value_size),
        positions_(gpu, rows_.each([](const RecurrentRow& row) { return row.position; })),
        table_of_(gpu, rows_.each([](const RecurrentRow& row) { return row.table; })),
        state_of_(gpu, rows_.each([](const RecurrentRow& row) { return row.state_of; })),
        next_(gpu, rows_.each([](const RecurrentRow& row) { return row.next_state; })),
        write_begin_(gpu, ascending(rows_.size() + 1)),
        write_cell_(gpu, write_cells()),
        tables_(gpu, std::ssize(rows_.tables)),
        device_tables_(gpu, std::ssize(rows_.tables)),
        begins_(gpu, std::ssize(rows_.begins)),
        flags_(gpu, std::vector<unsigned char>(static_cast<size_t>(rows_.size()), 0)),
        scratch_(gpu, cuda::kernels(Order::hopper).attention_scratch, "scratch memory") {
    for (size_t t = 0; t < rows_.rows.size(); ++t)
      write_begin_.host[t + 1] =
          write_begin_.host[t] + static_cast<int32_t>(rows_.rows[t].write_cells.size());
    write_begin_.upload();
    for (size_t i = 0; i < rows_.tables.size(); ++i) {
      table_.push_back(std::make_unique<Twin<int32_t>>(gpu, rows_.tables[i]));
      tables_.host[i] = table_.back()->host.data();
      device_tables_.host[i] = table_.back()->device();
    }
    device_tables_.upload();
  }

  // Cells hold what earlier rows could have left; the layer's sizes need no padding.
  void fill_memory(Random& random) {
    for (Twin<bf16_t>* twin : {&keys_, &values_})
      for (bf16_t& x : twin->host) x = f32_to_bf16(random.uniform());
    for (float& x : sums_.host) x = -std::abs(random.uniform());
    for (float& x : states_.host) x = random.uniform();
    std::ranges::transform(states_.host, operands_.host.begin(), f32_to_bf16);
    keys_.upload(), values_.upload(), sums_.upload(), states_.upload(), operands_.upload();
  }

  // Rows [first, last) on one side, of as many sequences as have rows there.
  void run(const Kernels& kernels, bool on_gpu, int64_t first, int64_t last, const Execution& at) {
    const auto of = [&](auto& twin, int64_t from = 0) {
      return (on_gpu ? twin.device() : twin.host.data()) + from;
    };
    const RecurrentLayer layer = layer_on(on_gpu);
    const RowPlaces places{last - first,
                           of(positions_, first),
                           of(table_of_, first),
                           of(on_gpu ? device_tables_ : tables_),
                           of(write_begin_, first),
                           of(write_cell_)};
    const int32_t sequences = cut_sequences(first, last);
    bool* flags = reinterpret_cast<bool*>(of(flags_, first));
    const int64_t keys = shape_.key_heads * shape_.key_size, width = stride(shape_);
    const float* x = of(inputs, first * width);
    kernels.recurrent_keys({.queries = x,
                            .keys = x + keys,
                            .stride = width,
                            .normalises = shape_.kind != Recurrence::state_space,
                            .eps = 1e-6f,
                            .scale = 0.125f,
                            .layer = layer,
                            .places = places,
                            .q = of(q_),
                            .k = of(k_),
                            .non_finite = flags},
                           at);
    kernels.recurrence({.layer = layer,
                        .places = places,
                        .q = of(q_),
                        .k = of(k_),
                        .v = x + 2 * keys,
                        .v_stride = width,
                        .decays = of(decays, first * shape_.heads * shape_.channels()),
                        .factors = of(factors, first * shape_.heads),
                        .skips = shape_.kind == Recurrence::state_space ? of(factors) : nullptr,
                        .sequence_begin = of(begins_),
                        .sequences = sequences,
                        .state_of = of(state_of_, first),
                        .next_state = of(next_, first),
                        .out = of(out_, first * out_width()),
                        .out_stride = out_width(),
                        .non_finite = flags,
                        .matmul = kernels.matmul,
                        .scratch = on_gpu ? scratch_.data() : nullptr},
                       at);
  }
  // Spoils what runs from here on.
  void spoil_decays() {
    for (float& g : decays.host) g = g - 1.0f;
    decays.upload();
  }
  void set_factors(int64_t row, float x) {
    std::fill_n(factors.host.begin() + row * shape_.heads, shape_.heads, x);
    factors.upload();
  }
  ::testing::AssertionResult match() const {
    if (auto result = flags_.matches(); !result) return result << " (flags)";
    if (auto result = out_.matches(); !result) return result << " (outputs)";
    if (auto result = keys_.matches(); !result) return result << " (keys)";
    if (auto result = values_.matches(); !result) return result << " (values)";
    if (auto result = sums_.matches(); !result) return result << " (sums)";
    if (auto result = states_.matches(); !result) return result << " (states)";
    return shape_.is_f32() ? ::testing::AssertionSuccess() : operands_.matches();
  }
  // Rows whose outputs differ, and rows that the host marked as not finite.
  int64_t rows_apart() const {
    const std::vector<float> found = out_.download();
    int64_t count = 0;
    for (int64_t t = 0; t < rows_.size(); ++t)
      count += !same_bits(std::span(out_.host).subspan(t * out_width(), out_width()),
                          std::span(found).subspan(t * out_width(), out_width()));
    return count;
  }
  int64_t marked() const { return std::ranges::count(flags_.host, 1); }

  Twin<float> inputs, decays, factors;

 private:
  int64_t words() const { return shape_.is_f32() ? 2 : 1; }
  int64_t out_width() const { return shape_.heads * shape_.value_size; }
  static int64_t stride(const RecurrentLayer& shape) {
    return 2 * shape.key_heads * shape.key_size + shape.heads * shape.value_size;
  }
  std::vector<bf16_t> zeros(int64_t elements) const {
    return std::vector<bf16_t>(static_cast<size_t>(rows_.cells * elements * words()), 0);
  }
  static std::vector<float> decays_of(Random& random, const RecurrentLayer& shape, int64_t rows) {
    std::vector<float> g = random_floats(random, rows * shape.heads * shape.channels());
    for (float& x : g) x = -0.2f * x * x;
    return g;
  }
  std::vector<int32_t> write_cells() const {
    std::vector<int32_t> x;
    for (const RecurrentRow& row : rows_.rows)
      x.insert(x.end(), row.write_cells.begin(), row.write_cells.end());
    return x;
  }
  RecurrentLayer layer_on(bool on_gpu) {
    RecurrentLayer layer = shape_;
    const auto cells = [&](auto& twin) {
      return Cells{
          on_gpu ? twin.device() : twin.host.data(),
          static_cast<int64_t>(std::ssize(twin.host) / rows_.cells * sizeof(twin.host[0]))};
    };
    layer.keys = cells(keys_), layer.values = cells(values_), layer.sums = cells(sums_);
    layer.states = cells(states_), layer.operands = cells(operands_);
    return layer;
  }
  int32_t cut_sequences(int64_t first, int64_t last) {
    int32_t sequences = 0;
    begins_.host[0] = 0;
    for (const int32_t end : rows_.begins)
      if (end > first && begins_.host[sequences] < last - first)
        begins_.host[++sequences] = static_cast<int32_t>(std::min<int64_t>(end, last) - first);
    begins_.upload();
    return sequences;
  }

  const RecurrentLayer shape_;
  const RecurrentRows rows_;
  Twin<bf16_t> keys_, values_;
  Twin<float> sums_, states_;
  Twin<bf16_t> operands_, q_, k_;
  Twin<float> out_;
  Twin<int32_t> positions_, table_of_, state_of_, next_, write_begin_, write_cell_;
  std::vector<std::unique_ptr<Twin<int32_t>>> table_;
  Twin<const int32_t*> tables_, device_tables_;
  Twin<int32_t> begins_;
  Twin<unsigned char> flags_;
  DeviceArray<std::byte> scratch_;
};

}  // namespace invar
