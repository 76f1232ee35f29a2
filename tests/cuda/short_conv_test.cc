// Short convolutions on a GPU against the scalar definition.
#include <fmt/format.h>

#include <limits>

#include "kernels/select.h"
#include "recurrent_twins.h"

namespace invar {
namespace {

// Rows of a step for a convolution; `table` has the cells of each sequence's chunks.
struct ConvRows {
  std::vector<int32_t> position, table_of, write_cell, before_of, next;
  std::vector<std::vector<int32_t>> tables;
  int32_t sequences = 0;
  std::vector<int32_t> write_begin = {};  // empty: each row has one cell

  // Counts the cells of chunks, and of states.
  int32_t cells() const {
    int32_t most = 0;
    for (const auto& table : tables) most = std::max(most, std::ranges::max(table) + 1);
    return most;
  }
  // Positions [first, last), in cells of their own. What came before the first chunk lies beside
  // the state, where the last boundary's inputs go.
  void add_sequence(int32_t first, int32_t last) {
    const std::vector<int32_t> table = plain_table(last / kChunkSlots + 1, cells());
    for (int32_t at = first; at < last; ++at) {
      position.push_back(at);
      table_of.push_back(sequences);
      write_cell.push_back(table[static_cast<size_t>(at / kChunkSlots)]);
      before_of.push_back(at / kChunkSlots == first / kChunkSlots ? sequences : -1);
      next.push_back(at % kChunkSlots == kChunkSlots - 1 ? sequences : -1);
    }
    tables.push_back(table);
    ++sequences;
  }
};

// As many as threads take several of; a thread's rows are those of several sequences.
ConvRows many_rows() {
  ConvRows all;
  all.add_sequence(40, 340);
  all.add_sequence(62, 67);
  all.add_sequence(64, 359);
  return all;
}

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

// Two paths from position 61 on, which part behind 62: each has cells of its own, where the shared
// rows go, too.
ConvRows draft_tree() {
  ConvRows tree{.tables = {{0, 1}, {2, 3}}, .sequences = 1, .write_begin = {0}};
  for (int32_t at = 61; at < 67; ++at)
    for (int32_t path = 0; path < (at < 63 ? 1 : 2); ++path) {
      const int32_t chunk = at / kChunkSlots;
      tree.position.push_back(at);
      tree.table_of.push_back(path);
      tree.write_cell.push_back(2 * path + chunk);
      if (at < 63) tree.write_cell.push_back(2 + chunk);
      tree.write_begin.push_back(static_cast<int32_t>(tree.write_cell.size()));
      tree.before_of.push_back(-1);
      tree.next.push_back(at == 63 ? path : -1);
    }
  return tree;
}

class Convolution {
 public:
  Convolution(Device& gpu, const ConvRows& rows, int64_t width, int taps, bool has_gates,
              DType out_type = DType::f32)
      : random_(5),
        sequences_(rows.sequences),
        rows_(std::ssize(rows.position)),
        width_(width),
        taps_(taps),
        has_gates_(has_gates),
        out_type_(out_type),
        weight(gpu, random_floats(random_, taps * width)),
        x(gpu, random_floats(random_, rows_ * width)),
        more_(gpu, random_floats(random_, rows_ * width)),
        inputs_(gpu, std::vector<bf16_t>(static_cast<size_t>(rows.cells() * cell()))),
        before_(gpu, std::vector<bf16_t>(static_cast<size_t>(rows.cells() * cell()))),
        out_(gpu, rows_ * round_up(width, kLeafPad)),
        rounded_(gpu, std::ssize(out_.host)),
        positions_(gpu, rows.position),
        table_of_(gpu, rows.table_of),
        write_begin_(gpu, rows.write_begin.empty() ? ascending(rows_ + 1) : rows.write_begin),
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
    // Cells hold what earlier rows have left.
    for (auto* array : {&inputs_, &before_}) {
      for (bf16_t& value : array->host) value = f32_to_bf16(random_.uniform());
      array->upload();
    }
  }

  void run(const Kernels& kernels, bool on_gpu, const Execution& at) {
    const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
    ShortConvParams p{.x = of(x), .x_stride = width_};
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
    void* out = out_type_ == DType::f32 ? static_cast<void*>(of(out_)) : of(rounded_);
    p.out = {out, out_type_, round_up(width_, kLeafPad)};
    p.non_finite = reinterpret_cast<bool*>(of(flags_));
    kernels.short_conv(p, at);
  }
  ::testing::AssertionResult match() const {
    if (auto result = flags_.matches(); !result) return result << " (flags)";
    if (auto result = out_.matches(); !result) return result << " (outputs)";
    if (auto result = rounded_.matches(); !result) return result << " (rounded outputs)";
    if (auto result = inputs_.matches(); !result) return result << " (inputs)";
    return before_.matches();
  }
  bool is_marked(size_t row) const { return flags_.host[row] == 1; }

 private:
  int64_t cell() const { return kChunkSlots * round_up(width_, 8); }

  Random random_;
  const int32_t sequences_;
  const int64_t rows_, width_;
  const int taps_;
  const bool has_gates_;
  const DType out_type_;

 public:
  Twin<float> weight, x;

 private:
  Twin<float> more_;
  Twin<bf16_t> inputs_, before_;
  Twin<float> out_;
  Twin<bf16_t> rounded_;
  Twin<int32_t> positions_, table_of_, write_begin_, write_cell_, before_of_, next_;
  Twin<unsigned char> flags_;
  std::vector<std::unique_ptr<Twin<int32_t>>> cells_;
  std::unique_ptr<Twin<const int32_t*>> host_tables_, tables_;
};

class ShortConvOnGpu : public CudaTest {
 protected:
  void run_on_host(Convolution& convolution) const {
    const ScopedFlushToZero flush;
    convolution.run(select_kernels(Order::portable, "scalar"), false, {});
  }
  void run(Convolution& convolution) const {
    convolution.run(cuda::kernels(Order::portable), true, on());
    on().stream->wait();
  }
  void compare(Convolution& convolution) const {
    run_on_host(convolution);
    run(convolution);
    EXPECT_TRUE(convolution.match());
    // Another weight is another output.
    convolution.weight.host[0] += 1;
    convolution.weight.upload();
    run(convolution);
    EXPECT_FALSE(convolution.match());
  }
};

TEST_F(ShortConvOnGpu, ShortConvolutions) {
  for (const ConvRows& rows : {run_of_rows(100), run_of_rows(21), rows_alone()})
    for (const int64_t width : {70, 96, 1088})
      for (const int taps : {2, 3, 4, 7})
        for (const bool has_gates : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{} rows, {} channels, {} taps", rows.position.size(), width, taps));
          Convolution convolution(gpu(), rows, width, taps, has_gates);
          compare(convolution);
        }
}

TEST_F(ShortConvOnGpu, StepsAndRoundedOutputs) {
  for (const ConvRows& rows : {many_rows(), rows_alone(), draft_tree()})
    for (const int64_t width : {70, 96})
      for (const int taps : {2, 3, 4})
        for (const DType type : {DType::f32, DType::bf16}) {
          SCOPED_TRACE(fmt::format("{} rows, {} channels, {} taps, {}", rows.position.size(), width,
                                   taps, name_of(type)));
          Convolution convolution(gpu(), rows, width, taps, taps == 3, type);
          compare(convolution);
        }
}

TEST_F(ShortConvOnGpu, InputsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const ConvRows& rows : {many_rows(), run_of_rows(100), rows_alone()})
    for (const int64_t width : {70, 96})
      for (const float x : {infinity, -std::nanf("")}) {
        SCOPED_TRACE(fmt::format("{} rows, {} channels, {}", rows.position.size(), width, x));
        const auto put = [&](Convolution& convolution, float y) {
          convolution.x.host[static_cast<size_t>(width + 3)] = y;
          convolution.x.upload();
        };
        Convolution convolution(gpu(), rows, width, 4, false);
        put(convolution, x);
        run_on_host(convolution);
        EXPECT_TRUE(convolution.is_marked(1));
        run(convolution);
        EXPECT_TRUE(convolution.match());
        // One is another value and no mark.
        Convolution other(gpu(), rows, width, 4, false);
        put(other, x);
        run_on_host(other);
        put(other, 1.0f);
        run(other);
        EXPECT_FALSE(other.match());
      }
}

}  // namespace
}  // namespace invar
