#include "scheduler/waiting_queue.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

void WaitingQueue::add(int32_t sequence, int64_t rank, int32_t rows, Age age) {
  if (std::ssize(tickets_) <= sequence) tickets_.resize(static_cast<size_t>(sequence) + 1, 0);
  CHECK(tickets_[sequence] == 0, "a sequence that waits already");
  tickets_[sequence] = ++last_ticket_;
  ++size_;
  by_age_.push_back({{rank, 0, age}, last_ticket_, sequence});
  std::push_heap(by_age_.begin(), by_age_.end());
  by_size_.push_back({{sizes_of_all_ ? 0 : rank, rows, age}, last_ticket_, sequence});
  std::push_heap(by_size_.begin(), by_size_.end());
}

void WaitingQueue::remove(int32_t sequence) {
  CHECK(tickets_[sequence] != 0, "a sequence that does not wait");
  tickets_[sequence] = 0;
  --size_;
  forget_stale(by_age_);
  forget_stale(by_size_);
}

void WaitingQueue::clear() {
  std::ranges::fill(tickets_, 0);
  by_age_.clear();
  by_size_.clear();
  size_ = 0;
}

int32_t WaitingQueue::oldest() {
  return head(by_age_);
}

int32_t WaitingQueue::shortest() {
  return head(by_size_);
}

void WaitingQueue::first(size_t most, std::vector<int32_t>& sequences) const {
  std::vector<const Entry*> entries;
  for (const Entry& entry : by_age_)
    if (!is_stale(entry)) entries.push_back(&entry);
  most = std::min(most, entries.size());
  std::ranges::partial_sort(entries, entries.begin() + static_cast<std::ptrdiff_t>(most), {},
                            [](const Entry* entry) { return entry->order; });
  sequences.clear();
  for (size_t i = 0; i < most; ++i) sequences.push_back(entries[i]->sequence);
}

int32_t WaitingQueue::head(Heap& heap) {
  while (!heap.empty() && is_stale(heap.front())) {
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
  }
  return heap.empty() ? -1 : heap.front().sequence;
}

// When they are more than the rest, so that each costs its removal once.
void WaitingQueue::forget_stale(Heap& heap) {
  if (std::ssize(heap) <= 2 * int64_t{size_} + 64) return;
  std::erase_if(heap, [&](const Entry& entry) { return is_stale(entry); });
  std::make_heap(heap.begin(), heap.end());
}

}  // namespace invar
