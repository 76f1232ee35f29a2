// Steps of recurrent layers, order hopper, as engines make them: sequences of all lengths, drafts,
// rows beyond what memory holds at a time, and values that are not finite.
#include <fmt/format.h>

#include <functional>
#include <limits>

#include "kernels/select.h"
#include "recurrent_twins.h"

namespace invar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

RecurrentLayer layer_of(Recurrence kind, int32_t key_heads, int32_t heads, int32_t values) {
  return {kind, key_heads, heads, 128, values, DType::bf16, CacheLayout::rows};
}
const RecurrentLayer kDelta = layer_of(Recurrence::delta, 2, 4, 64),
                     kStateSpace = layer_of(Recurrence::state_space, 1, 3, 96);

class RecurrentSteps : public CudaTest {
 protected:
  using Change = std::function<void(RecurrentTwins&)>;

  // Runs the rows on both sides, behind what `prepare` changes; in steps that end at `ends` on the
  // GPU. `spoil` changes the GPU's side alone.
  std::unique_ptr<RecurrentTwins> run(const RecurrentLayer& layer, const RecurrentRows& rows,
                                      const Change& prepare, const Change& spoil,
                                      std::vector<int64_t> ends = {}) {
    Random random(11);
    auto twins = std::make_unique<RecurrentTwins>(gpu(), random, layer, rows);
    twins->fill_memory(random);
    if (prepare) prepare(*twins);
    ends.push_back(rows.size());
    const auto run_steps = [&](const Kernels& kernels, bool on_gpu, const Execution& at) {
      int64_t first = 0;
      for (const int64_t end : ends) {
        twins->run(kernels, on_gpu, first, end, at);
        if (on_gpu) on().stream->wait();
        first = end;
      }
    };
    {
      const ScopedFlushToZero flush;
      run_steps(select_kernels(Order::hopper, "scalar"), false, {});
    }
    if (spoil) spoil(*twins);
    run_steps(cuda::kernels(Order::hopper), true, on());
    return twins;
  }
  // The same bits; and with other decays others, in every row that depends on them.
  void compare(const RecurrentLayer& layer, const RecurrentRows& rows,
               const std::vector<int64_t>& ends = {}) {
    EXPECT_TRUE(run(layer, rows, nullptr, nullptr, ends)->match());
    const auto spoil = [](RecurrentTwins& twins) { twins.spoil_decays(); };
    const auto other = run(layer, rows, nullptr, spoil, ends);
    EXPECT_FALSE(other->match());
    EXPECT_EQ(other->rows_apart(), rows.behind_others());
  }
};

// Long and short ones, from the beginning and from the middle of a chunk, over boundaries.
RecurrentRows sequences_of_all_lengths(bool in_place) {
  RecurrentRows rows;
  rows.add_sequence(40, 110, in_place);
  rows.add_sequence(0, 3, in_place);
  rows.add_sequence(30, 70, in_place);
  rows.add_sequence(63, 64, in_place);
  rows.add_sequence(64, 256, in_place);
  rows.add_sequence(127, 144, in_place);
  rows.add_sequence(60, 76, in_place);
  rows.add_sequence(5, 22, in_place);
  rows.add_sequence(65, 69, in_place);
  rows.add_sequence(190, 194, in_place);
  rows.add_sequence(0, 128, in_place);
  return rows;
}

TEST_F(RecurrentSteps, SequencesOfAllLengths) {
  for (const RecurrentLayer& layer : {kDelta, kStateSpace})
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(fmt::format("kind {}, {}", static_cast<int>(layer.kind), in_place));
      compare(layer, sequences_of_all_lengths(in_place));
    }
}

TEST_F(RecurrentSteps, ValuesOfAllSizes) {
  RecurrentRows rows;
  rows.add_sequence(50, 90);
  rows.add_sequence(62, 66);
  for (const Recurrence kind : {Recurrence::delta, Recurrence::state_space})
    for (const int32_t values : {32, 96, 160, 256}) {
      SCOPED_TRACE(values);
      compare(layer_of(kind, 1, 2, values), rows);
    }
}

// A block has several heads.
TEST_F(RecurrentSteps, ManySequencesOfOneRow) {
  RecurrentRows rows;
  for (int i = 0; i < 256; ++i) rows.add_sequence(i * 7 % 129, i * 7 % 129 + 1, true);
  for (const Recurrence kind : {Recurrence::delta, Recurrence::state_space})
    compare(layer_of(kind, 2, 4, 32), rows);
}

// The weights of so many heads are those of two pieces at a time: the second sequence has its
// chunks in two turns.
TEST_F(RecurrentSteps, PiecesBeyondTheScratchMemory) {
  RecurrentRows rows;
  rows.add_sequence(5, 22);
  rows.add_sequence(60, 78, true);
  compare(layer_of(Recurrence::delta, 1, 1024, 32), rows);
}

// Two paths that part after two rows and cross a boundary: from position 61 on. What is before them
// is a run, each of whose rows is in the chunks of both.
RecurrentRows draft_tree(int64_t path_rows) {
  constexpr int32_t kBefore = 61, kShared = 2;
  RecurrentRows tree;
  tree.tables = {{0, 1}, {2, 3}};
  tree.cells = 4;
  const auto add = [&](int32_t position, int32_t path, bool is_shared) {
    RecurrentRow row = plain_row(position);
    const int32_t chunk = position / kChunkSlots;
    row.table = path;
    row.write_cells = is_shared ? std::vector{2 * path + chunk, 2 * (1 - path) + chunk}
                                : std::vector{2 * path + chunk};
    row.state_of = chunk ? 1 + path : -1, row.next_state = 1 + path;
    tree.rows.push_back(row);
  };
  for (int32_t t = 0; t < kBefore; ++t) add(t, 0, true);
  tree.end_sequence();
  for (int32_t i = 0; i < path_rows; ++i)
    for (int32_t path = 0; path < (i < kShared ? 1 : 2); ++path)
      add(kBefore + i, path, i < kShared);
  tree.end_sequence();
  return tree;
}

TEST_F(RecurrentSteps, DraftTrees) {
  for (const RecurrentLayer& layer : {kDelta, kStateSpace})
    for (const int64_t path_rows : {5, 12}) {  // few rows, and more than a stretch has
      SCOPED_TRACE(fmt::format("kind {}, {}", static_cast<int>(layer.kind), path_rows));
      compare(layer, draft_tree(path_rows), {61});
    }
}

// A long run of rows 0 .. 69 over a boundary behind row 43, and rows 70 .. 75 over one behind 73.
RecurrentRows long_and_short() {
  RecurrentRows rows;
  rows.add_sequence(20, 90, true);
  rows.add_sequence(60, 66);
  return rows;
}

// A row's factor is what arithmetic should not give: in the first stretch of a piece and in later
// ones, at a boundary, and among few rows.
TEST_F(RecurrentSteps, ValuesThatAreNotFinite) {
  const RecurrentRows rows = long_and_short();
  for (const RecurrentLayer& layer : {kDelta, kStateSpace})
    for (const int64_t row : {3, 30, 43, 47, 72, 75})
      for (const float x : {3e38f, -kInfinity, std::nanf("")}) {
        SCOPED_TRACE(fmt::format("kind {}, row {}, {}", static_cast<int>(layer.kind), row, x));
        const auto change = [&](RecurrentTwins& twins) { twins.set_factors(row, x); };
        const auto twins = run(layer, rows, change, nullptr);
        EXPECT_TRUE(twins->match());
        EXPECT_TRUE(std::isfinite(x) || twins->marked() > 0);
        // One is another value and no mark.
        const auto spoil = [&](RecurrentTwins& twins) { twins.set_factors(row, 1.0f); };
        EXPECT_FALSE(run(layer, rows, change, spoil)->match());
      }
}

TEST_F(RecurrentSteps, KeysThatAreNotFinite) {
  const RecurrentRows rows = long_and_short();
  const int64_t width = 4 * 128 + 4 * 64, keys = 2 * 128;
  for (const int64_t row : {10, 72})
    for (const float x : {3e38f, kInfinity}) {
      SCOPED_TRACE(fmt::format("row {}, {}", row, x));
      const auto put = [&](RecurrentTwins& twins, float y) {
        twins.inputs.host[row * width + keys + 5] = y;
        twins.inputs.upload();
      };
      const auto change = [&](RecurrentTwins& twins) { put(twins, x); };
      const auto twins = run(kDelta, rows, change, nullptr);
      EXPECT_TRUE(twins->match());
      EXPECT_EQ(twins->marked() > 0, !std::isfinite(x));
      const auto spoil = [&](RecurrentTwins& twins) { put(twins, 1.0f); };
      EXPECT_FALSE(run(kDelta, rows, change, spoil)->match());
    }
}

}  // namespace
}  // namespace invar
