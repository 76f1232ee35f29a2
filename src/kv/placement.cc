#include "kv/placement.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {

bool is_draft(const BatchRow& row) {
  return row.parent >= 0;
}

bool is_leaf(std::span<const BatchRow> rows, int32_t row) {
  for (size_t i = row + 1; i < rows.size() && rows[i].sequence == rows[row].sequence; ++i)
    if (rows[i].parent == row) return false;
  return true;
}

// The position of the first draft row on the path that ends in a draft row.
int32_t base_of(std::span<const BatchRow> rows, int32_t row) {
  while (is_draft(rows[rows[row].parent])) row = rows[row].parent;
  return rows[row].position;
}

// The blocks of a sequence that a path replaces by scratch: [first, first + count).
struct Tail {
  int32_t first, count;
};
Tail tail_of(std::span<const BatchRow> rows, int32_t leaf, int32_t block_size) {
  const int32_t first = base_of(rows, leaf) / block_size;
  return {first, rows[leaf].position / block_size - first + 1};
}

// Calls visit(leaf row, its scratch blocks) for every path, in the order of their leaves.
template <typename Visit>
void for_each_path(std::span<const BatchRow> rows, std::span<const int32_t> scratch_blocks,
                   int32_t block_size, Visit visit) {
  size_t used = 0;
  for (int32_t t = 0; t < std::ssize(rows); ++t) {
    if (!is_draft(rows[t]) || !is_leaf(rows, t)) continue;
    const size_t count = tail_of(rows, t, block_size).count;
    CHECK(used + count <= scratch_blocks.size(), "too few scratch blocks for the draft trees");
    visit(t, scratch_blocks.subspan(used, count));
    used += count;
  }
}

}  // namespace

int32_t scratch_blocks_needed(std::span<const BatchRow> rows, int32_t block_size) {
  int32_t count = 0;
  for (int32_t t = 0; t < std::ssize(rows); ++t)
    if (is_draft(rows[t]) && is_leaf(rows, t)) count += tail_of(rows, t, block_size).count;
  return count;
}

void Placement::build(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
                      std::span<const int32_t> scratch_blocks, int32_t block_size) {
  block_size_ = block_size;
  copies_.clear();
  link_rows(rows);

  // The sequences' own tables, and their slots for the trunk rows.
  table_blocks_.clear();
  own_table_.clear();
  for (const BatchSequence& sequence : sequences) {
    own_table_.push_back(static_cast<int32_t>(table_blocks_.size()));
    table_blocks_.insert(table_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
  }
  row_table_.resize(rows.size());
  for (size_t t = 0; t < rows.size(); ++t)
    row_table_[t] = is_draft(rows[t]) ? -1 : own_table_[rows[t].sequence];

  // How many slots each row writes, then which.
  const auto count_path = [&](int32_t leaf, std::span<const int32_t> tail) {
    const int32_t begin = (rows[leaf].position / block_size + 1 - std::ssize(tail)) * block_size;
    for (int32_t t = leaf; t >= 0 && rows[t].position >= begin; t = before_[t])
      ++write_begin_[t + 1];
  };
  write_begin_.assign(rows.size() + 1, 0);
  for (size_t t = 0; t < rows.size(); ++t) write_begin_[t + 1] = !is_draft(rows[t]);
  for_each_path(rows, scratch_blocks, block_size, count_path);
  for (size_t t = 0; t < rows.size(); ++t) write_begin_[t + 1] += write_begin_[t];
  write_block_.resize(write_begin_.back());
  write_slot_.resize(write_begin_.back());
  next_write_.assign(write_begin_.begin(), write_begin_.end() - 1);

  for (size_t t = 0; t < rows.size(); ++t) {
    if (is_draft(rows[t])) continue;
    const std::vector<int32_t>& own = sequences[rows[t].sequence].blocks;
    CHECK(rows[t].position / block_size < std::ssize(own), "a row beyond its sequence's blocks");
    write_block_[next_write_[t]] = own[rows[t].position / block_size];
    write_slot_[next_write_[t]++] = rows[t].position % block_size;
  }
  for_each_path(rows, scratch_blocks, block_size, [&](int32_t leaf, std::span<const int32_t> tail) {
    place_path(rows, leaf, sequences[rows[leaf].sequence].blocks, tail);
  });
  assign_tables(rows);
}

// Fills before_ and checks what build requires of the rows.
void Placement::link_rows(std::span<const BatchRow> rows) {
  before_.resize(rows.size());
  int32_t trunk = -1;  // the last trunk row of the current sequence
  for (int32_t t = 0; t < std::ssize(rows); ++t) {
    const BatchRow& row = rows[t];
    if (t > 0 && rows[t - 1].sequence != row.sequence) trunk = -1;
    CHECK(row.parent < t, "a parent after its child");
    before_[t] = is_draft(row) ? row.parent : trunk;
    if (before_[t] >= 0)
      CHECK(rows[before_[t]].sequence == row.sequence &&
                rows[before_[t]].position + 1 == row.position,
            "a row that does not follow the row before it");
    if (!is_draft(row)) trunk = t;
  }
}

// Slots the rows of one path in its tail and makes its table.
void Placement::place_path(std::span<const BatchRow> rows, int32_t leaf,
                           std::span<const int32_t> own, std::span<const int32_t> tail) {
  const int32_t base = base_of(rows, leaf), first = base / block_size_;
  CHECK(first <= std::ssize(own), "a draft beyond its sequence's blocks");
  if (base % block_size_ > 0)
    copies_.push_back({.from = own[first], .to = tail[0], .begin = 0, .end = base % block_size_});

  const int32_t table = static_cast<int32_t>(table_blocks_.size());
  table_blocks_.insert(table_blocks_.end(), own.begin(), own.begin() + first);
  table_blocks_.insert(table_blocks_.end(), tail.begin(), tail.end());

  for (int32_t t = leaf; t >= 0 && rows[t].position >= first * block_size_; t = before_[t]) {
    write_block_[next_write_[t]] = tail[rows[t].position / block_size_ - first];
    write_slot_[next_write_[t]++] = rows[t].position % block_size_;
    if (row_table_[t] < 0) row_table_[t] = table;  // a shared row reads the first of its paths
  }
}

// Numbers the tables so that the rows of one number stand together, whatever the order of a tree.
void Placement::assign_tables(std::span<const BatchRow> rows) {
  table_of_.resize(rows.size());
  table_begin_.clear();
  for (size_t t = 0; t < rows.size(); ++t) {
    if (t == 0 || row_table_[t] != row_table_[t - 1] || rows[t].sequence != rows[t - 1].sequence)
      table_begin_.push_back(row_table_[t]);
    table_of_[t] = static_cast<int32_t>(table_begin_.size()) - 1;
  }
}

void Placement::accept(std::span<const BatchRow> rows, int32_t last,
                       std::span<const int32_t> own_blocks, std::vector<SlotCopy>& copies) const {
  if (!is_draft(rows[last])) return;
  const int32_t base = base_of(rows, last), end = rows[last].position + 1;
  CHECK((end - 1) / block_size_ < std::ssize(own_blocks), "accepted rows beyond their blocks");
  for (int32_t slot = base; slot < end;) {
    const int32_t block = slot / block_size_, block_begin = block * block_size_;
    const int32_t stop = std::min(end, block_begin + block_size_);
    copies.push_back({.from = table(last)[block],
                      .to = own_blocks[block],
                      .begin = slot - block_begin,
                      .end = stop - block_begin});
    slot = stop;
  }
}

}  // namespace invar
