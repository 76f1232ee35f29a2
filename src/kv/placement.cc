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

// The pages of a sequence that a path replaces by scratch: [first, first + count).
struct Tail {
  int32_t first, count;
};
Tail tail_of(std::span<const BatchRow> rows, int32_t leaf, int32_t page_places) {
  const int32_t first = base_of(rows, leaf) / page_places;
  return {first, rows[leaf].position / page_places - first + 1};
}

// Calls visit(leaf row, its scratch pages) for every path, in the order of their leaves.
template <typename Visit>
void for_each_path(std::span<const BatchRow> rows, std::span<const int32_t> scratch_pages,
                   int32_t page_places, Visit visit) {
  size_t used = 0;
  for (int32_t t = 0; t < std::ssize(rows); ++t) {
    if (!is_draft(rows[t]) || !is_leaf(rows, t)) continue;
    const size_t count = tail_of(rows, t, page_places).count;
    CHECK(used + count <= scratch_pages.size(), "too few scratch pages for the draft trees");
    visit(t, scratch_pages.subspan(used, count));
    used += count;
  }
}

}  // namespace

int32_t scratch_pages_needed(std::span<const BatchRow> rows, int32_t page_places) {
  int32_t count = 0;
  for (int32_t t = 0; t < std::ssize(rows); ++t)
    if (is_draft(rows[t]) && is_leaf(rows, t)) count += tail_of(rows, t, page_places).count;
  return count;
}

void Placement::build(std::span<const BatchRow> rows, std::span<const BatchSequence> sequences,
                      std::span<const int32_t> scratch_pages, int32_t page_places) {
  page_places_ = page_places;
  copies_.clear();
  link_rows(rows);

  // The sequences' own tables, and their places for the trunk rows.
  table_pages_.clear();
  own_table_.clear();
  for (const BatchSequence& sequence : sequences) {
    own_table_.push_back(static_cast<int32_t>(table_pages_.size()));
    table_pages_.insert(table_pages_.end(), sequence.pages.begin(), sequence.pages.end());
  }
  row_table_.resize(rows.size());
  for (size_t t = 0; t < rows.size(); ++t)
    row_table_[t] = is_draft(rows[t]) ? -1 : own_table_[rows[t].sequence];

  // How many places each row writes, then which.
  const auto count_path = [&](int32_t leaf, std::span<const int32_t> tail) {
    const int32_t begin = (rows[leaf].position / page_places + 1 - std::ssize(tail)) * page_places;
    for (int32_t t = leaf; t >= 0 && rows[t].position >= begin; t = before_[t])
      ++write_begin_[t + 1];
  };
  write_begin_.assign(rows.size() + 1, 0);
  for (size_t t = 0; t < rows.size(); ++t) write_begin_[t + 1] = !is_draft(rows[t]);
  for_each_path(rows, scratch_pages, page_places, count_path);
  for (size_t t = 0; t < rows.size(); ++t) write_begin_[t + 1] += write_begin_[t];
  write_page_.resize(write_begin_.back());
  write_place_.resize(write_begin_.back());
  next_write_.assign(write_begin_.begin(), write_begin_.end() - 1);

  for (size_t t = 0; t < rows.size(); ++t) {
    if (is_draft(rows[t])) continue;
    const std::vector<int32_t>& own = sequences[rows[t].sequence].pages;
    CHECK(rows[t].position / page_places < std::ssize(own), "a row beyond its sequence's pages");
    write_page_[next_write_[t]] = own[rows[t].position / page_places];
    write_place_[next_write_[t]++] = rows[t].position % page_places;
  }
  for_each_path(rows, scratch_pages, page_places, [&](int32_t leaf, std::span<const int32_t> tail) {
    place_path(rows, leaf, sequences[rows[leaf].sequence].pages, tail);
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

// Places the rows of one path in its tail and makes its table.
void Placement::place_path(std::span<const BatchRow> rows, int32_t leaf,
                           std::span<const int32_t> own, std::span<const int32_t> tail) {
  const int32_t base = base_of(rows, leaf), first = base / page_places_;
  CHECK(first <= std::ssize(own), "a draft beyond its sequence's pages");
  if (base % page_places_ > 0)
    copies_.push_back({.from = own[first], .to = tail[0], .begin = 0, .end = base % page_places_});

  const int32_t table = static_cast<int32_t>(table_pages_.size());
  table_pages_.insert(table_pages_.end(), own.begin(), own.begin() + first);
  table_pages_.insert(table_pages_.end(), tail.begin(), tail.end());

  for (int32_t t = leaf; t >= 0 && rows[t].position >= first * page_places_; t = before_[t]) {
    write_page_[next_write_[t]] = tail[rows[t].position / page_places_ - first];
    write_place_[next_write_[t]++] = rows[t].position % page_places_;
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
                       std::span<const int32_t> own_pages, std::vector<PlaceCopy>& copies) const {
  if (!is_draft(rows[last])) return;
  const int32_t base = base_of(rows, last), end = rows[last].position + 1;
  CHECK((end - 1) / page_places_ < std::ssize(own_pages), "accepted rows beyond their pages");
  for (int32_t place = base; place < end;) {
    const int32_t page = place / page_places_, page_begin = page * page_places_;
    const int32_t stop = std::min(end, page_begin + page_places_);
    copies.push_back({.from = table(last)[page],
                      .to = own_pages[page],
                      .begin = place - page_begin,
                      .end = stop - page_begin});
    place = stop;
  }
}

}  // namespace invar
