#include "kv/placement.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace invar {

namespace {

// The position of the first draft row on the path that ends in a draft row.
int32_t base_of(std::span<const BatchRow> rows, int32_t row) {
  while (is_draft(rows[rows[row].parent])) row = rows[row].parent;
  return rows[row].position;
}

// Scratch blocks of a path of drafts: those that hold `base` and `last` and what is between.
int32_t tail_size(int32_t base, int32_t last, int block_shift) {
  return (last >> block_shift) - (base >> block_shift) + 1;
}

int shift_of(int32_t block_size) {
  CHECK(std::has_single_bit(static_cast<uint32_t>(block_size)), "a block size of a power of two");
  return std::countr_zero(static_cast<uint32_t>(block_size));
}

}  // namespace

int32_t scratch_blocks_needed(std::span<const BatchRow> rows, int32_t block_size) {
  if (std::ranges::none_of(rows, is_draft)) return 0;
  const int shift = shift_of(block_size);
  std::vector<char> has_child(rows.size(), false);
  for (const BatchRow& row : rows)
    if (is_draft(row)) has_child[row.parent] = true;
  int32_t count = 0;
  for (int32_t t = 0; t < std::ssize(rows); ++t)
    if (is_draft(rows[t]) && !has_child[t])
      count += tail_size(base_of(rows, t), rows[t].position, shift);
  return count;
}

void Placement::build(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
                      std::span<const int32_t> scratch_blocks, int32_t block_size) {
  shift_ = shift_of(block_size);
  slot_mask_ = block_size - 1;
  copies_.clear();
  link_rows(rows);
  find_paths(rows, scratch_blocks);

  // The sequences' own tables.
  table_blocks_.clear();
  own_table_.clear();
  for (const BatchSequence& sequence : sequences) {
    own_table_.push_back(static_cast<int32_t>(table_blocks_.size()));
    table_blocks_.insert(table_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
  }
  count_writes(rows);
  place_trunks(rows, sequences);
  for (const Path& path : paths_)
    place_path(rows, path, sequences[rows[path.leaf].sequence].blocks);
  assign_tables(rows);
}

// Fills before_, has_child_ and base_, and checks what build requires of the rows.
void Placement::link_rows(std::span<const BatchRow> rows) {
  before_.resize(rows.size());
  base_.resize(rows.size());
  has_child_.assign(rows.size(), false);
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
    if (!is_draft(row)) {
      trunk = t;
      continue;
    }
    has_child_[row.parent] = true;
    base_[t] = is_draft(rows[row.parent]) ? base_[row.parent] : row.position;
  }
}

// Every path of drafts and its scratch blocks, in the order of the leaves.
void Placement::find_paths(std::span<const BatchRow> rows,
                           std::span<const int32_t> scratch_blocks) {
  paths_.clear();
  size_t used = 0;
  for (int32_t t = 0; t < std::ssize(rows); ++t) {
    if (!is_draft(rows[t]) || has_child_[t]) continue;
    const size_t count = tail_size(base_[t], rows[t].position, shift_);
    CHECK(used + count <= scratch_blocks.size(), "too few scratch blocks for the draft trees");
    paths_.push_back({t, scratch_blocks.subspan(used, count)});
    used += count;
  }
}

// How many slots each row writes: one, or one on each of its paths.
void Placement::count_writes(std::span<const BatchRow> rows) {
  write_begin_.assign(rows.size() + 1, 0);
  for (size_t t = 0; t < rows.size(); ++t) write_begin_[t + 1] = !is_draft(rows[t]);
  for (const Path& path : paths_) {
    const int32_t begin = base_[path.leaf] >> shift_ << shift_;
    for (int32_t t = path.leaf; t >= 0 && rows[t].position >= begin; t = before_[t])
      ++write_begin_[t + 1];
  }
  for (size_t t = 0; t < rows.size(); ++t) write_begin_[t + 1] += write_begin_[t];
  write_block_.resize(write_begin_.back());
  write_slot_.resize(write_begin_.back());
  next_write_.assign(write_begin_.begin(), write_begin_.end() - 1);
}

// Trunk rows write to their sequences' own blocks and read their tables.
void Placement::place_trunks(std::span<const BatchRow> rows,
                             std::span<const BatchSequence> sequences) {
  row_table_.resize(rows.size());
  for (size_t t = 0; t < rows.size(); ++t) {
    row_table_[t] = is_draft(rows[t]) ? -1 : own_table_[rows[t].sequence];
    if (is_draft(rows[t])) continue;
    const std::vector<int32_t>& own = sequences[rows[t].sequence].blocks;
    CHECK(rows[t].position >> shift_ < std::ssize(own), "a row beyond its sequence's blocks");
    write_block_[next_write_[t]] = own[rows[t].position >> shift_];
    write_slot_[next_write_[t]++] = rows[t].position & slot_mask_;
  }
}

// Slots the rows of one path in its tail and makes its table.
void Placement::place_path(std::span<const BatchRow> rows, const Path& path,
                           std::span<const int32_t> own) {
  const std::span<const int32_t> tail = path.tail;
  const int32_t base = base_[path.leaf], first = base >> shift_;
  CHECK(first <= std::ssize(own), "a draft beyond its sequence's blocks");
  if (const int32_t end = base & slot_mask_; end > 0)
    copies_.push_back({.from = own[first], .to = tail[0], .begin = 0, .end = end});

  const int32_t table = static_cast<int32_t>(table_blocks_.size());
  table_blocks_.insert(table_blocks_.end(), own.begin(), own.begin() + first);
  table_blocks_.insert(table_blocks_.end(), tail.begin(), tail.end());

  const int32_t begin = first << shift_;
  for (int32_t t = path.leaf; t >= 0 && rows[t].position >= begin; t = before_[t]) {
    write_block_[next_write_[t]] = tail[(rows[t].position >> shift_) - first];
    write_slot_[next_write_[t]++] = rows[t].position & slot_mask_;
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
  const int32_t end = rows[last].position + 1;
  CHECK((end - 1) >> shift_ < std::ssize(own_blocks), "accepted rows beyond their blocks");
  for (int32_t slot = base_[last]; slot < end;) {
    const int32_t block = slot >> shift_, block_begin = block << shift_;
    const int32_t stop = std::min(end, block_begin + slot_mask_ + 1);
    copies.push_back({.from = table(last)[block],
                      .to = own_blocks[block],
                      .begin = slot - block_begin,
                      .end = stop - block_begin});
    slot = stop;
  }
}

}  // namespace invar
