// Who holds which page of the KV cache: reference counts and a free list. Pure bookkeeping; the
// memory is in kv_storage.h. A page is free or referenced, never both. A page that only a cache
// holds is as good as free: the pool takes it back when it has no other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace invar {

// Whoever keeps pages that nobody uses now.
class PageKeeper {
 public:
  virtual ~PageKeeper() = default;
  // Gives up one kept page that nobody else holds (PagePool::drop_kept). There is one.
  virtual void give_up_page() = 0;
};

class PagePool {
 public:
  // `page_places` is 32, 64 or 128: whole leaves of values, never more than a split of attention
  // (numerics 1.1, 4). Throws UsageError for any other size and for a pool without pages.
  PagePool(int32_t num_pages, int32_t page_places);

  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t page_places() const { return page_places_; }
  // Pages that can be allocated, idle kept ones among them.
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()) + idle_kept_; }
  // Pages that an admission leaves free, so that the admitted can grow: 1 %.
  int32_t watermark() const { return num_pages() / 100; }
  // Pages that hold `places` places.
  int32_t pages_for(int64_t places) const {
    return static_cast<int32_t>((places + page_places_ - 1) >> page_shift_);
  }

  // A free page, now with one reference. Which one depends on the calls so far alone. REQUIRES:
  // free_pages() > 0.
  int32_t allocate();
  void add_reference(int32_t page);
  // Drops one reference; the last one frees the page.
  void release(int32_t page);
  int32_t references(int32_t page) const { return references_[page]; }

  // At most one keeper, or null. It keeps a page by a reference of its own.
  void set_keeper(PageKeeper* keeper) { keeper_ = keeper; }
  void keep(int32_t page);
  void drop_kept(int32_t page);
  // Kept and held by nobody else.
  bool is_idle_kept(int32_t page) const { return is_kept_[page] && references_[page] == 1; }

  // Empty when every page is either free, once, or referenced; else what is wrong. For tests and
  // debugging: takes time proportional to the pool.
  std::string check_integrity() const;

 private:
  int32_t page_places_, page_shift_;
  std::vector<int32_t> references_;  // per page
  std::vector<int32_t> free_;        // a stack
  std::vector<bool> is_kept_;
  int32_t idle_kept_ = 0;
  PageKeeper* keeper_ = nullptr;
};

}  // namespace invar
