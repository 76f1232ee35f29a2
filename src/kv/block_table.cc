#include "kv/block_table.h"

#include <utility>

#include "base/check.h"

namespace invar {

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_),
      capacity_(std::exchange(other.capacity_, 0)),
      pages_(std::exchange(other.pages_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(capacity_, other.capacity_);
  std::swap(pages_, other.pages_);
  return *this;
}

bool BlockTable::take_pages(int64_t places) {
  const int32_t missing = pool_->pages_for(places) - num_pages();
  if (missing > pool_->free_pages()) return false;
  for (int32_t i = 0; i < missing; ++i) append(pool_->allocate());
  return true;
}

void BlockTable::append(int32_t page) {
  pages_.push_back(page);
  capacity_ += pool_->page_places();
}

void BlockTable::truncate(int64_t places) {
  const int32_t keep = pool_->pages_for(places);
  while (num_pages() > keep) {
    pool_->release(pages_.back());
    pages_.pop_back();
    capacity_ -= pool_->page_places();
  }
}

void BlockTable::share(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    pool_->add_reference(page);
    append(page);
  }
}

void BlockTable::replace(int32_t index, int32_t page) {
  pool_->add_reference(page);
  pool_->release(pages_[index]);
  pages_[index] = page;
}

bool BlockTable::fork(const BlockTable& source, int64_t places, std::vector<PlaceCopy>& copies) {
  CHECK(pages_.empty(), "fork into a table that holds pages");
  CHECK(places <= source.capacity(), "fork of more places than the source has");
  const int32_t full = static_cast<int32_t>(places / pool_->page_places());
  const int32_t rest = static_cast<int32_t>(places % pool_->page_places());
  if (rest > 0 && pool_->free_pages() == 0) return false;
  share(source.pages().first(full));
  if (rest > 0) {
    append(pool_->allocate());
    copies.push_back({.from = source.pages_[full], .to = pages_[full], .begin = 0, .end = rest});
  }
  return true;
}

}  // namespace invar
