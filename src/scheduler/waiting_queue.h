// The sequences that wait to be admitted, in two orders: by age behind a rank, and by size, behind
// that rank or whatever it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace invar {

// A sequence that leaves keeps its entries until they come to the head or outnumber the others, so
// that leaving takes as long however many wait.
class WaitingQueue {
 public:
  // Whether sizes are compared among all, and not among those of one rank only.
  explicit WaitingQueue(bool sizes_of_all = false) : sizes_of_all_(sizes_of_all) {}
  // Since when it waits: a time, and its arrival, which differs from that of all others.
  using Age = std::pair<int64_t, int64_t>;
  // `sequence` is a small number that names it. `rows` is what it has to compute.
  void add(int32_t sequence, int64_t rank, int32_t rows, Age age);
  void remove(int32_t sequence);
  void clear();

  int32_t size() const { return size_; }
  // The oldest of those with the smallest rank; the one of the fewest rows of these or of all; -1
  // when nobody waits.
  int32_t oldest();
  int32_t shortest();
  // The first so many by rank and age.
  void first(size_t most, std::vector<int32_t>& sequences) const;

 private:
  struct Entry {
    std::tuple<int64_t, int32_t, Age> order;  // rank, 0 or rows, age
    int64_t ticket;
    int32_t sequence;
    // Whether it comes after the other: the heap's top is the head.
    bool operator<(const Entry& other) const { return order > other.order; }
  };
  using Heap = std::vector<Entry>;

  bool is_stale(const Entry& entry) const { return tickets_[entry.sequence] != entry.ticket; }
  int32_t head(Heap& heap);
  void forget_stale(Heap& heap);

  const bool sizes_of_all_;
  Heap by_age_, by_size_;
  std::vector<int64_t> tickets_;  // by sequence: of its valid entries; 0: it does not wait
  int64_t last_ticket_ = 0;
  int32_t size_ = 0;
};

}  // namespace invar
