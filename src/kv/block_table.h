// The pages of one sequence: page i holds places [i * page_places, (i + 1) * page_places).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layout.h"
#include "kv/page_pool.h"

namespace invar {

// Holds one reference to each of its pages and drops them when it is destroyed. Pages that are
// shared with other tables are full and lie before every place that this sequence still writes.
class BlockTable {
 public:
  explicit BlockTable(PagePool& pool) : pool_(&pool) {}
  ~BlockTable() { clear(); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  std::span<const int32_t> pages() const { return pages_; }
  int32_t num_pages() const { return static_cast<int32_t>(pages_.size()); }
  // Places that the pages have room for.
  int64_t capacity() const { return capacity_; }

  // Makes room in the table, so that it can grow to so many places without taking memory.
  void reserve(int64_t places) { pages_.reserve(pool_->pages_for(places)); }
  // Takes pages until there is room for `places` places; takes none and returns false when too few
  // are free.
  bool grow(int64_t places) { return places <= capacity_ || take_pages(places); }
  // Gives back the pages past the first `places` places.
  void truncate(int64_t places);
  void clear() { truncate(0); }

  // Appends pages that others hold, with a reference of its own to each.
  void share(std::span<const int32_t> pages);
  // Page `index` becomes `page`, which others hold and which has the same contents.
  void replace(int32_t index, int32_t page);
  // Becomes a copy of the first `places` places of `source`: full pages are shared, the last one,
  // when it is partial, is a page of its own that `copies` fills. Returns false and stays empty
  // when a page is needed and none is free. REQUIRES: this table is empty.
  bool fork(const BlockTable& source, int64_t places, std::vector<PlaceCopy>& copies);

 private:
  bool take_pages(int64_t places);
  void append(int32_t page);

  PagePool* pool_;
  int64_t capacity_ = 0;
  std::vector<int32_t> pages_;
};

}  // namespace invar
