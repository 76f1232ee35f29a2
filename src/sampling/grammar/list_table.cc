#include "sampling/grammar/list_table.h"

#include <algorithm>

namespace invar::grammar {

namespace {

constexpr size_t kFewBuckets = 64;

size_t hash_of(std::span<const int32_t> list) {
  size_t hash = list.size();
  for (const int32_t value : list) {
    hash = (hash ^ static_cast<uint32_t>(value)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

std::pair<int32_t, bool> ListTable::add(std::span<const int32_t> list) {
  if (2 * size() >= buckets_.size()) grow();
  const size_t mask = buckets_.size() - 1;
  size_t at = hash_of(list) & mask;
  for (; buckets_[at] >= 0; at = (at + 1) & mask)
    if (std::ranges::equal((*this)[buckets_[at]], list)) return {buckets_[at], false};
  buckets_[at] = static_cast<int32_t>(size());
  numbers_.insert(numbers_.end(), list.begin(), list.end());
  starts_.push_back(numbers_.size());
  return {buckets_[at], true};
}

void ListTable::grow() {
  buckets_.assign(std::max(kFewBuckets, 2 * buckets_.size()), -1);
  const size_t mask = buckets_.size() - 1;
  for (size_t number = 0; number < size(); ++number) {
    size_t at = hash_of((*this)[static_cast<int32_t>(number)]) & mask;
    while (buckets_[at] >= 0) at = (at + 1) & mask;
    buckets_[at] = static_cast<int32_t>(number);
  }
}

// Room for few lists stays; more is given back.
void ListTable::clear() {
  if (buckets_.size() + numbers_.capacity() > 64 * kFewBuckets) {
    *this = ListTable();
    return;
  }
  numbers_.clear();
  starts_.resize(1);
  std::fill(buckets_.begin(), buckets_.end(), -1);
}

}  // namespace invar::grammar
