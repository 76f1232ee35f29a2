#include "kv/cell_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

namespace invar {
namespace {

// What a row leaves is a hash of its tokens so far, a state one of all that its chunk's rows left:
// a stale slot, one of another branch and a state of another boundary all differ.
using Mark = uint64_t;
Mark next_mark(Mark before, uint64_t what) {
  return (before ^ (what + 1)) * 0x9E3779B97F4A7C15u + 1;
}

struct History {
  // What the row at a position leaves, and the state behind a chunk, by the tokens alone.
  std::vector<Mark> rows;
  std::vector<Mark> states{0};

  int32_t size() const { return static_cast<int32_t>(rows.size()); }
  void push(int32_t token) {
    rows.push_back(next_mark(rows.empty() ? 7 : rows.back(), static_cast<uint64_t>(token)));
    if (rows.size() % kBoundary != 0) return;
    Mark state = states.back();
    for (size_t p = rows.size() - kBoundary; p < rows.size(); ++p)
      state = next_mark(state, rows[p]);
    states.push_back(state);
  }
};

enum class Fault { none, without_copies, refused_drafts_stay, only_chunks };

// Runs random pieces and draft trees of some sequences, accepts random paths, and compares what
// every row would read with its own history. Returns how many rows differ.
class World {
 public:
  World(uint32_t seed, Fault fault) : random_(seed), fault_(fault) {}

  int run(int steps) {
    sequences_.resize(3);
    for (size_t i = 0; i < sequences_.size(); ++i) cells_.push_back(static_cast<int32_t>(i));
    for (int i = 0; i < steps; ++i) step();
    return wrong_;
  }

 private:
  static constexpr int32_t kFirst = 8;   // of the scratch cells
  static constexpr int32_t kBefore = 3;  // positions that a short convolution looks back

  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

  void step() {
    rows_.clear();
    row_history_.clear();
    std::vector<BatchSequence> batch(sequences_.size());
    for (int32_t s = 0; s < std::ssize(sequences_); ++s) {
      batch[s].cell = cells_[s];
      add_rows(s);
    }
    const ScratchCells needed = scratch_cells_needed(rows_);
    placement_.build(rows_, batch, {kFirst, kFirst});
    compute(needed);
    for (int32_t s = 0; s < std::ssize(sequences_); ++s) accept_one(s);
  }

  // A piece of one row, a few, or several chunks, and often drafts behind it.
  void add_rows(int32_t s) {
    History& history = sequences_[s];
    const int sizes[] = {1, 1, 1, 3, 40, 64, 150};
    const int count = sizes[below(7)];
    for (int i = 0; i < count; ++i) {
      rows_.push_back({.token = below(50), .position = history.size(), .sequence = s});
      history.push(rows_.back().token);
      row_history_.push_back(history);
    }
    const int32_t root = static_cast<int32_t>(rows_.size()) - 1;
    if (below(3) == 0) return;
    for (int i = 0; i < 6; ++i) {
      const int32_t parent = i == 0 ? root : root + below(i + 1);
      History path = row_history_[parent];
      const int32_t token = 100 + below(50);
      path.push(token);
      rows_.push_back({token, rows_[parent].position + 1, s, parent});
      row_history_.push_back(std::move(path));
    }
  }

  // As layers do: copies, then what the rows leave, then what each of them reads, and states.
  void compute(ScratchCells needed) {
    if (fault_ != Fault::without_copies)
      for (const CellCopy& c : placement_.copies()) chunk_[c.to] = chunk_[c.from];
    for (size_t t = 0; t < rows_.size(); ++t)
      for (int32_t w = placement_.write_begin()[t]; w < placement_.write_begin()[t + 1]; ++w) {
        const int32_t cell = placement_.write_cell()[w];
        EXPECT_LT(cell, kFirst + needed.chunks);
        chunk_[cell][rows_[t].position % kBoundary] = row_history_[t].rows[rows_[t].position];
      }
    for (size_t t = 0; t < rows_.size(); ++t) wrong_ += !reads_what_came_before(t);
    for (size_t t = 0; t < rows_.size(); ++t)
      if (const int32_t to = placement_.next_state()[t]; to >= 0)
        for (int32_t j = 1; j <= kBefore; ++j)
          before_[to][static_cast<size_t>(j - 1)] = chunk_[cell_of(t, rows_[t].position)][64 - j];
    for (size_t t = 0; t < rows_.size(); ++t) wrong_ += !reads_its_history(t);
  }

  int32_t cell_of(size_t t, int32_t position) const {
    const int32_t begin = placement_.table_begin()[placement_.table_of()[t]];
    return placement_.table_cells()[begin + position / kBoundary];
  }

  // As short convolutions do.
  bool reads_what_came_before(size_t t) {
    const int32_t position = rows_[t].position, chunk = position / kBoundary * kBoundary;
    const int32_t before = fault_ == Fault::only_chunks ? -1 : placement_.before_of()[t];
    bool is_right = true;
    for (int32_t p = std::max(0, position - kBefore); p < position; ++p) {
      const Mark there = p >= chunk || before < 0
                             ? chunk_[cell_of(t, p)][p % kBoundary]
                             : before_[before][static_cast<size_t>(chunk - p - 1)];
      is_right &= there == row_history_[t].rows[p];
    }
    return is_right;
  }

  bool reads_its_history(size_t t) {
    const int32_t position = rows_[t].position, chunk = position / kBoundary;
    const History& history = row_history_[t];
    const int32_t state_cell = placement_.state_of()[t];
    const Mark before = state_cell < 0 ? 0 : state_[state_cell];
    bool is_right = before == history.states[chunk];
    const int32_t cell = cell_of(t, position);
    Mark next = before;
    for (int32_t p = chunk * kBoundary; p <= position; ++p) {
      const Mark there = chunk_[cell][p % kBoundary];
      is_right &= there == history.rows[p];
      next = next_mark(next, there);
    }
    if (const int32_t to = placement_.next_state()[t]; to >= 0) state_[to] = next;
    return is_right;
  }

  // A random row of the sequence's, its last trunk row or a draft: what is behind it is refused.
  void accept_one(int32_t s) {
    std::vector<int32_t> choices;
    int32_t trunk = -1;
    for (int32_t t = 0; t < std::ssize(rows_); ++t) {
      if (rows_[t].sequence != s) continue;
      if (rows_[t].parent >= 0)
        choices.push_back(t);
      else
        trunk = t;
    }
    choices.push_back(trunk);
    int32_t last = choices[static_cast<size_t>(below(static_cast<int>(choices.size())))];
    std::vector<CellCopy> chunks, states;
    placement_.accept(rows_, last, cells_[s], chunks, states);
    for (const CellCopy& c : chunks) chunk_[c.to] = chunk_[c.from];
    for (const CellCopy& c : states) state_[c.to] = state_[c.from], before_[c.to] = before_[c.from];
    if (fault_ == Fault::refused_drafts_stay) last = choices.front();
    sequences_[s] = row_history_[last];
  }

  std::mt19937 random_;
  const Fault fault_;
  CellPlacement placement_;
  std::vector<History> sequences_;
  std::vector<int32_t> cells_;
  std::vector<BatchRow> rows_;
  std::vector<History> row_history_;
  std::map<int32_t, std::array<Mark, kBoundary>> chunk_;
  std::map<int32_t, Mark> state_;
  std::map<int32_t, std::array<Mark, kBefore>> before_;  // the last one first
  int wrong_ = 0;
};

TEST(CellPlacement, EveryRowReadsItsOwnHistory) {
  for (uint32_t seed = 0; seed < 6; ++seed)
    EXPECT_EQ(World(seed, Fault::none).run(12), 0) << "seed " << seed;
}

TEST(CellPlacement, WithoutCopiesOrWithRefusedDraftsHistoriesDiffer) {
  int without = 0, stay = 0, only_chunks = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    without += World(seed, Fault::without_copies).run(12);
    stay += World(seed, Fault::refused_drafts_stay).run(12);
    only_chunks += World(seed, Fault::only_chunks).run(12);
  }
  EXPECT_GT(without, 0);
  EXPECT_GT(stay, 0);
  EXPECT_GT(only_chunks, 0);
}

TEST(CellPlacement, OneRowAtATimeNeedsNoScratchAndNoCopy) {
  CellPlacement placement;
  for (int32_t position = 0; position < 200; ++position) {
    const std::vector<BatchRow> rows{{.token = 1, .position = position}};
    const ScratchCells needed = scratch_cells_needed(rows);
    EXPECT_EQ(needed.chunks + needed.states, 0);
    placement.build(rows, std::vector{BatchSequence{{}, 5}}, {8, 8});
    EXPECT_TRUE(placement.copies().empty());
    EXPECT_EQ(placement.write_cell()[0], 5);
    EXPECT_EQ(placement.state_of()[0], position < 64 ? -1 : 5);
    EXPECT_EQ(placement.next_state()[0], position % 64 == 63 ? 5 : -1);
  }
}

}  // namespace
}  // namespace invar
