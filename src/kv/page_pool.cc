#include "kv/page_pool.h"

#include <bit>

#include "base/check.h"
#include "base/error.h"

namespace invar {

PagePool::PagePool(int32_t num_pages, int32_t page_places)
    : page_places_(page_places), page_shift_(std::countr_zero(static_cast<uint32_t>(page_places))) {
  if (page_places != 32 && page_places != 64 && page_places != 128)
    fail_usage("a page holds 32, 64 or 128 places, not {}", page_places);
  if (num_pages < 1) fail_usage("the KV cache needs at least one page, not {}", num_pages);
  references_.resize(num_pages, 0);
  is_kept_.resize(num_pages, false);
  free_.reserve(num_pages);
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PagePool::allocate() {
  CHECK(free_pages() > 0, "no free page");
  if (free_.empty()) keeper_->give_up_page();
  CHECK(!free_.empty(), "a keeper that gave nothing up");
  const int32_t page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void PagePool::add_reference(int32_t page) {
  CHECK(references_[page] > 0, "a reference to a free page");
  idle_kept_ -= is_idle_kept(page);
  ++references_[page];
}

void PagePool::release(int32_t page) {
  CHECK(references_[page] > 0, "release of a free page");
  if (--references_[page] == 0) free_.push_back(page);
  idle_kept_ += is_idle_kept(page);
}

void PagePool::keep(int32_t page) {
  CHECK(!is_kept_[page], "a page is kept once");
  add_reference(page);
  is_kept_[page] = true;
}

void PagePool::drop_kept(int32_t page) {
  CHECK(is_kept_[page], "a page that is not kept");
  idle_kept_ -= is_idle_kept(page);
  is_kept_[page] = false;
  release(page);
}

std::string PagePool::check_integrity() const {
  std::vector<bool> is_free(references_.size(), false);
  for (const int32_t page : free_) {
    if (page < 0 || page >= num_pages()) return fmt::format("page {} does not exist", page);
    if (is_free[page]) return fmt::format("page {} is free twice", page);
    is_free[page] = true;
  }
  int32_t idle_kept = 0;
  for (int32_t page = 0; page < num_pages(); ++page) {
    idle_kept += is_idle_kept(page);
    if (is_kept_[page] && is_free[page]) return fmt::format("page {} is free and kept", page);
    if (references_[page] < 0) return fmt::format("page {} has a negative count", page);
    if (is_free[page] && references_[page] > 0)
      return fmt::format("page {} is free and referenced", page);
    if (!is_free[page] && references_[page] == 0)
      return fmt::format("page {} is neither free nor referenced", page);
  }
  if (idle_kept != idle_kept_)
    return fmt::format("{} idle pages are counted but {} are kept", idle_kept_, idle_kept);
  return {};
}

}  // namespace invar
