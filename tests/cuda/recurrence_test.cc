// Recurrent layers' operations, of both orders, against the scalar definition.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "cuda_check.h"
#include "kernels/recurrent.h"
#include "kernels/select.h"

namespace invar {
namespace {

constexpr int kChunks = 3;

// A layer's memory and rows of one sequence on both sides.
class Twins {
 public:
  Twins(Device& gpu, Random& random, const RecurrentLayer& shape, int64_t rows)
      : shape_(shape),
        rows_(rows),
        keys_(gpu, zeros(kChunks * shape.key_heads * shape.key_elements())),
        values_(gpu, zeros(kChunks * shape.heads * shape.value_elements())),
        sums_(gpu, kChunks * shape.heads * shape.sum_elements()),
        states_(gpu, (kChunks + 1) * shape.heads * shape.state_elements()),
        operands_(gpu, (kChunks + 1) * shape.heads * shape.state_elements()),
        q_(gpu, rows * shape.key_heads * shape.padded_key() * words()),
        k_(gpu, std::ssize(q_.host)),
        inputs_(gpu, random_floats(random, rows * stride())),
        decays_(gpu, decays(random)),
        factors_(gpu, random_floats(random, rows * shape.heads)),
        out_(gpu, rows * shape.heads * shape.value_size),
        positions_(gpu, ascending(rows)),
        zeros_(gpu, std::vector<int32_t>(static_cast<size_t>(rows), 0)),
        begin_(gpu, ascending(rows + 1)),
        cells_(gpu, per_chunk(rows, 0)),
        state_of_(gpu, per_chunk(rows, -1)),
        next_(gpu, per_chunk(rows, 0)),
        table_(gpu, ascending(kChunks)),
        tables_(gpu, 1),
        device_tables_(gpu, std::vector<const int32_t*>{table_.device()}),
        sequence_(gpu, std::vector<int32_t>{0, 0}),
        flags_(gpu, std::vector<unsigned char>(static_cast<size_t>(rows), 0)),
        scratch_(gpu, cuda::kernels(Order::hopper).attention_scratch, "scratch memory") {
    tables_.host[0] = table_.host.data();
  }

  // Rows [first, last) on one side.
  void run(const Kernels& kernels, bool on_gpu, int64_t first, int64_t last, const Execution& at) {
    const auto of = [&](auto& twin, int64_t from = 0) {
      return (on_gpu ? twin.device() : twin.host.data()) + from;
    };
    RecurrentLayer layer = shape_;
    const auto cells = [&](auto& twin, int count) {
      return Cells{of(twin),
                   static_cast<int64_t>(std::ssize(twin.host) / count * sizeof(twin.host[0]))};
    };
    layer.keys = cells(keys_, kChunks), layer.values = cells(values_, kChunks);
    layer.sums = cells(sums_, kChunks);
    layer.states = cells(states_, kChunks + 1), layer.operands = cells(operands_, kChunks + 1);
    const RowPlaces places{
        last - first,      of(positions_, first),
        of(zeros_, first), on_gpu ? device_tables_.device() : tables_.host.data(),
        of(begin_),        of(cells_, first)};
    sequence_.host[1] = static_cast<int32_t>(last - first);
    sequence_.upload();
    bool* flags = reinterpret_cast<bool*>(of(flags_, first));
    const int64_t keys = shape_.key_heads * shape_.key_size, width = first * stride();
    const float* x = of(inputs_, width);
    kernels.recurrent_keys({.queries = x,
                            .keys = x + keys,
                            .stride = stride(),
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
                        .v_stride = stride(),
                        .decays = of(decays_, first * shape_.heads * shape_.channels()),
                        .factors = of(factors_, first * shape_.heads),
                        .skips = shape_.kind == Recurrence::state_space ? of(factors_) : nullptr,
                        .sequence_begin = of(sequence_),
                        .sequences = 1,
                        .state_of = of(state_of_, first),
                        .next_state = of(next_, first),
                        .out = of(out_, first * shape_.heads * shape_.value_size),
                        .out_stride = shape_.heads * shape_.value_size,
                        .non_finite = flags,
                        .matmul = kernels.matmul,
                        .scratch = on_gpu ? scratch_.data() : nullptr},
                       at);
  }
  // Of the GPU's side.
  void spoil_decays() {
    for (float& g : decays_.host) g = g - 1.0f;
    decays_.upload();
  }
  ::testing::AssertionResult match() const {
    if (auto result = out_.matches(); !result) return result << " (outputs)";
    if (auto result = keys_.matches(); !result) return result << " (keys)";
    if (auto result = values_.matches(); !result) return result << " (values)";
    if (auto result = sums_.matches(); !result) return result << " (sums)";
    if (auto result = states_.matches(); !result) return result << " (states)";
    return shape_.is_f32() ? ::testing::AssertionSuccess() : operands_.matches();
  }

 private:
  int64_t words() const { return shape_.is_f32() ? 2 : 1; }
  int64_t stride() const {
    return 2 * shape_.key_heads * shape_.key_size + shape_.heads * shape_.value_size;
  }
  std::vector<bf16_t> zeros(int64_t elements) const {
    return std::vector<bf16_t>(static_cast<size_t>(elements * words()), 0);
  }
  std::vector<float> decays(Random& random) const {
    std::vector<float> g = random_floats(random, rows_ * shape_.heads * shape_.channels());
    for (float& x : g) x = -0.2f * x * x;
    return g;
  }
  static std::vector<int32_t> ascending(int64_t count) {
    std::vector<int32_t> x(static_cast<size_t>(count));
    std::iota(x.begin(), x.end(), 0);
    return x;
  }
  static std::vector<int32_t> per_chunk(int64_t rows, int32_t more) {
    std::vector<int32_t> x;
    for (int64_t t = 0; t < rows; ++t) x.push_back(static_cast<int32_t>(t / kChunkSlots) + more);
    return x;
  }

  const RecurrentLayer shape_;
  const int64_t rows_;
  Twin<bf16_t> keys_, values_;
  Twin<float> sums_, states_;
  Twin<bf16_t> operands_, q_, k_;
  Twin<float> inputs_, decays_, factors_, out_;
  Twin<int32_t> positions_, zeros_, begin_, cells_, state_of_, next_, table_;
  Twin<const int32_t*> tables_, device_tables_;
  Twin<int32_t> sequence_;
  Twin<unsigned char> flags_;
  DeviceArray<std::byte> scratch_;
};

using RecurrentOnGpu = CudaTest;

TEST_F(RecurrentOnGpu, RecurrencesInPieces) {
  struct Case {
    Order order;
    DType type;
  };
  for (const Case& c : {Case{Order::portable, DType::bf16}, Case{Order::portable, DType::f32},
                        Case{Order::hopper, DType::bf16}})
    for (const RecurrentLayer& shape : {RecurrentLayer{Recurrence::delta, 2, 4, 128, 128},
                                        RecurrentLayer{Recurrence::delta, 1, 1, 96, 192},
                                        RecurrentLayer{Recurrence::delta, 1, 2, 33, 17},
                                        RecurrentLayer{Recurrence::channel_delta, 2, 2, 128, 128},
                                        RecurrentLayer{Recurrence::channel_delta, 1, 1, 40, 20},
                                        RecurrentLayer{Recurrence::state_space, 1, 3, 128, 64}})
      for (const int most : {50, 150}) {
        RecurrentLayer layer = shape;
        layer.type = c.type;
        layer.layout = c.order == Order::hopper ? CacheLayout::rows : CacheLayout::panels;
        SCOPED_TRACE(fmt::format("kind {}, {} x {}, {}, {}, up to {} rows",
                                 static_cast<int>(layer.kind), layer.key_size, layer.value_size,
                                 name_of(c.order), name_of(c.type), most));
        constexpr int64_t kRows = 150;
        Random random(7);
        Twins twins(gpu(), random, layer, kRows);
        {
          const ScopedFlushToZero flush;
          twins.run(select_kernels(c.order, "scalar"), false, 0, kRows, {});
        }
        for (int64_t first = 0, last; first < kRows; first = last) {
          last = std::min<int64_t>(kRows, first + 1 + random.below(static_cast<uint64_t>(most)));
          twins.run(cuda::kernels(c.order), true, first, last, on());
          on().stream->wait();
        }
        EXPECT_TRUE(twins.match());
        // Other decays are another result.
        twins.spoil_decays();
        twins.run(cuda::kernels(c.order), true, 0, 2, on());
        on().stream->wait();
        EXPECT_FALSE(twins.match());
      }
}

// Rows of a step for a convolution; `table` has the cells of each sequence's chunks.
struct ConvRows {
  std::vector<int32_t> position, table_of, write_cell, before_of, next;
  std::vector<std::vector<int32_t>> tables;
  int32_t sequences;
};

// One sequence from position 40 on, over two boundaries: chunks in cells 1, 2 and 0, the state in
// cell 0.
ConvRows run_of_rows(int32_t rows) {
  ConvRows all{.tables = {{1, 2, 0}}, .sequences = 1};
  for (int32_t position = 40; position < 40 + rows; ++position) {
    all.position.push_back(position);
    all.table_of.push_back(0);
    all.write_cell.push_back(all.tables[0][static_cast<size_t>(position / kChunkSlots)]);
    all.before_of.push_back(-1);
    all.next.push_back(position % kChunkSlots == kChunkSlots - 1 ? 0 : -1);
  }
  return all;
}
// A row of each of three sequences: at the beginning, at the end of a chunk, behind a boundary.
ConvRows rows_alone() {
  return {.position = {1, 63, 65},
          .table_of = {0, 1, 2},
          .write_cell = {0, 1, 2},
          .before_of = {-1, -1, 2},
          .next = {-1, 1, -1},
          .tables = {{0}, {1}, {2, 2}},
          .sequences = 3};
}

class Convolution {
 public:
  Convolution(Device& gpu, const ConvRows& rows, int64_t width, int taps, bool has_gates)
      : random_(5),
        sequences_(rows.sequences),
        rows_(std::ssize(rows.position)),
        width_(width),
        taps_(taps),
        has_gates_(has_gates),
        weight(gpu, random_floats(random_, taps * width)),
        x_(gpu, random_floats(random_, rows_ * width)),
        more_(gpu, random_floats(random_, rows_ * width)),
        inputs_(gpu, std::vector<bf16_t>(static_cast<size_t>(3 * cell()))),
        before_(gpu, std::vector<bf16_t>(static_cast<size_t>(3 * cell()))),
        out_(gpu, rows_ * round_up(width, kLeafPad)),
        positions_(gpu, rows.position),
        table_of_(gpu, rows.table_of),
        write_begin_(gpu, ascending(rows_ + 1)),
        write_cell_(gpu, rows.write_cell),
        before_of_(gpu, rows.before_of),
        next_(gpu, rows.next),
        flags_(gpu, std::vector<unsigned char>(static_cast<size_t>(rows_), 0)) {
    std::vector<const int32_t*> of_host, of_gpu;
    for (const auto& table : rows.tables) {
      cells_.push_back(std::make_unique<Twin<int32_t>>(gpu, table));
      of_host.push_back(cells_.back()->host.data());
      of_gpu.push_back(cells_.back()->device());
    }
    host_tables_ = std::make_unique<Twin<const int32_t*>>(gpu, of_host);
    tables_ = std::make_unique<Twin<const int32_t*>>(gpu, of_gpu);
    // What earlier rows have left.
    for (auto* array : {&inputs_, &before_}) {
      for (bf16_t& value : array->host) value = f32_to_bf16(random_.uniform());
      array->upload();
    }
  }

  void run(const Kernels& kernels, bool on_gpu, const Execution& at) {
    const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
    ShortConvParams p{.x = of(x_), .x_stride = width_};
    if (has_gates_) {
      p.factor = of(more_), p.factor_stride = width_;
      p.gate = of(more_), p.gate_stride = width_;
    }
    p.places = {rows_,
                of(positions_),
                of(table_of_),
                on_gpu ? tables_->device() : host_tables_->host.data(),
                of(write_begin_),
                of(write_cell_)};
    p.sequences = sequences_;
    p.channels = width_, p.taps = taps_, p.weight = of(weight), p.silu = !has_gates_;
    p.inputs = {of(inputs_), cell() * 2}, p.before = {of(before_), cell() * 2};
    p.type = DType::bf16, p.before_of = of(before_of_), p.next_state = of(next_);
    p.out = {of(out_), DType::f32, round_up(width_, kLeafPad)};
    p.non_finite = reinterpret_cast<bool*>(of(flags_));
    kernels.short_conv(p, at);
  }
  ::testing::AssertionResult match() const {
    if (auto result = out_.matches(); !result) return result << " (outputs)";
    if (auto result = inputs_.matches(); !result) return result << " (inputs)";
    return before_.matches();
  }

 private:
  int64_t cell() const { return kChunkSlots * round_up(width_, 8); }
  static std::vector<int32_t> ascending(int64_t count) {
    std::vector<int32_t> x(static_cast<size_t>(count));
    std::iota(x.begin(), x.end(), 0);
    return x;
  }

  Random random_;
  const int32_t sequences_;
  const int64_t rows_, width_;
  const int taps_;
  const bool has_gates_;

 public:
  Twin<float> weight;

 private:
  Twin<float> x_, more_;
  Twin<bf16_t> inputs_, before_;
  Twin<float> out_;
  Twin<int32_t> positions_, table_of_, write_begin_, write_cell_, before_of_, next_;
  Twin<unsigned char> flags_;
  std::vector<std::unique_ptr<Twin<int32_t>>> cells_;
  std::unique_ptr<Twin<const int32_t*>> host_tables_, tables_;
};

TEST_F(RecurrentOnGpu, ShortConvolutions) {
  for (const ConvRows& rows : {run_of_rows(100), run_of_rows(21), rows_alone()})
    for (const int64_t width : {70, 96, 1088})
      for (const int taps : {2, 3, 4, 7})
        for (const bool has_gates : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{} rows, {} channels, {} taps", rows.position.size(), width, taps));
          Convolution convolution(gpu(), rows, width, taps, has_gates);
          {
            const ScopedFlushToZero flush;
            convolution.run(select_kernels(Order::portable, "scalar"), false, {});
          }
          convolution.run(cuda::kernels(Order::portable), true, on());
          on().stream->wait();
          EXPECT_TRUE(convolution.match());
          // Another weight is another output.
          convolution.weight.host[0] += 1;
          convolution.weight.upload();
          convolution.run(cuda::kernels(Order::portable), true, on());
          on().stream->wait();
          EXPECT_FALSE(convolution.match());
        }
}

TEST_F(RecurrentOnGpu, DecaysAndGatedNorms) {
  constexpr int64_t kRows = 5, kHeads = 6, kChannels = 24, kWidth = kHeads * kChannels;
  Random random(9);
  Twin<float> a(gpu(), random_floats(random, kRows * kWidth)),
      z(gpu(), random_floats(random, kRows * kWidth)), bias(gpu(), random_floats(random, kWidth)),
      log_rate(gpu(), random_floats(random, kHeads));
  for (const Recurrence kind :
       {Recurrence::delta, Recurrence::channel_delta, Recurrence::state_space}) {
    const int64_t channels = kind == Recurrence::channel_delta ? kChannels : 1;
    Twin<float> decays(gpu(), kRows * kHeads * channels), factors(gpu(), kRows * kHeads);
    Twin<float> out(gpu(), kRows * (kWidth + 16));
    const auto run = [&](const Kernels& kernels, bool on_gpu, const Execution& at) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      kernels.recurrent_gates({.kind = kind,
                               .a = of(a),
                               .a_stride = kWidth,
                               .z = of(z),
                               .z_stride = kWidth,
                               .log_rate = of(log_rate),
                               .bias = of(bias),
                               .rows = kRows,
                               .heads = kHeads,
                               .channels = channels,
                               .doubles = true,
                               .least = 0.1f,
                               .most = 1.0f,
                               .decays = of(decays),
                               .factors = of(factors)},
                              at);
      kernels.gated_norm({.x = of(a),
                          .x_stride = kWidth,
                          .gate = of(z),
                          .gate_stride = kWidth,
                          .weight = of(bias),
                          .own_weights = kind == Recurrence::state_space,
                          .is_sigmoid = kind == Recurrence::channel_delta,
                          .gate_first = kind == Recurrence::state_space,
                          .eps = 1e-6f,
                          .rows = kRows,
                          .groups = kHeads,
                          .width = kChannels,
                          .out = {of(out), DType::f32, kWidth + 16}},
                         at);
    };
    {
      const ScopedFlushToZero flush;
      run(select_kernels(Order::portable, "scalar"), false, {});
    }
    run(cuda::kernels(Order::portable), true, on());
    on().stream->wait();
    EXPECT_TRUE(decays.matches());
    EXPECT_TRUE(factors.matches());
    EXPECT_TRUE(out.matches());
  }
}

// Groups as layers have them, whose results are operands of products.
TEST_F(RecurrentOnGpu, GatedNormsOfHeads) {
  constexpr int64_t kRows = 3, kGroups = 5;
  Random random(4);
  for (const int64_t width : {64, 128, 192})
    for (const bool is_sigmoid : {false, true}) {
      SCOPED_TRACE(width);
      const int64_t all = kGroups * width;
      Twin<float> x(gpu(), random_floats(random, kRows * all)),
          z(gpu(), random_floats(random, kRows * all)), weight(gpu(), random_floats(random, width));
      // Gates that are not tame.
      z.host[1] = -200.0f, z.host[2] = 0.0f, z.host[3] = 1e30f;
      z.upload();
      Twin<bf16_t> out(gpu(), kRows * all);
      const auto run = [&](const Kernels& kernels, bool on_gpu, const Execution& at) {
        const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
        kernels.gated_norm({.x = of(x),
                            .x_stride = all,
                            .gate = of(z),
                            .gate_stride = all,
                            .weight = of(weight),
                            .own_weights = false,
                            .is_sigmoid = is_sigmoid,
                            .gate_first = false,
                            .eps = 1e-6f,
                            .rows = kRows,
                            .groups = kGroups,
                            .width = width,
                            .out = {of(out), DType::bf16, all}},
                           at);
      };
      {
        const ScopedFlushToZero flush;
        run(select_kernels(Order::portable, "scalar"), false, {});
      }
      run(cuda::kernels(Order::hopper), true, on());
      on().stream->wait();
      EXPECT_TRUE(out.matches());
      // Other weights are another output.
      weight.host[0] += 1;
      weight.upload();
      run(cuda::kernels(Order::hopper), true, on());
      on().stream->wait();
      EXPECT_FALSE(out.matches());
    }
}

TEST_F(RecurrentOnGpu, CopiesOfCells) {
  constexpr int64_t kCell = 96;
  Random random(2);
  Twin<float> cells(gpu(), random_floats(random, 4 * kCell));
  Twin<CellCopy> copies(gpu(), std::vector<CellCopy>{{0, 3}, {2, 1}});
  cuda::kernels(Order::portable)
      .copy_cells({{cells.device(), kCell * 4}, copies.device(), 2}, on());
  on().stream->wait();
  EXPECT_FALSE(cells.matches());
  select_kernels(Order::portable, "scalar")
      .copy_cells({{cells.host.data(), kCell * 4}, copies.host.data(), 2}, {});
  EXPECT_TRUE(cells.matches());
}

}  // namespace
}  // namespace invar
