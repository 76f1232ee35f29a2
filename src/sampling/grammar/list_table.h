// Lists of numbers, each kept once under a number of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace invar::grammar {

class ListTable {
 public:
  ListTable() : starts_{0} {}

  // The list's number, and whether it is new. Numbers count from 0.
  std::pair<int32_t, bool> add(std::span<const int32_t> list);
  // Valid until the next add.
  std::span<const int32_t> operator[](int32_t number) const {
    return std::span(numbers_).subspan(starts_[number], starts_[number + 1] - starts_[number]);
  }
  size_t size() const { return starts_.size() - 1; }
  size_t bytes() const {
    return sizeof(int32_t) * (numbers_.capacity() + buckets_.capacity()) +
           sizeof(size_t) * starts_.capacity();
  }
  void clear();

 private:
  void grow();

  std::vector<int32_t> numbers_;
  std::vector<size_t> starts_;
  std::vector<int32_t> buckets_;  // by hash, then the next free one; -1: none
};

}  // namespace invar::grammar
