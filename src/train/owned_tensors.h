// A data-parallel rank owns whole tensors, so that a sum over one stays one rank's. It alone keeps
// their weights, the optimizer's state and a step's gradients, in arrays in which they lie one
// behind the other. ZeRO's third stage (Rajbhandari et al. 2020).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "collectives/group.h"
#include "collectives/team.h"
#include "model/parameters.h"

namespace invar {

class OwnedTensors {
 public:
  // Parts of about as many bytes: the largest tensors first, each to who has least.
  OwnedTensors(const ParameterLayout& layout, int ranks);

  int ranks() const { return static_cast<int>(counts_.size()); }
  int owner(size_t slot) const { return owners_[slot]; }
  // Where a tensor begins in its owner's arrays, in the layout's order there.
  int64_t place(size_t slot) const { return places_[slot]; }
  // Elements of a rank's arrays, gaps included.
  int64_t count(int rank) const { return counts_[static_cast<size_t>(rank)]; }

  // use(rank, place, offset, count) for pieces of tensors that lie together: elements of the layout
  // from `offset` on are elements of a rank's arrays from `place` on. All of [begin, end).
  template <typename Use>
  void for_each_piece(int64_t begin, int64_t end, Use use) const {
    const auto behind = std::ranges::upper_bound(offsets_, begin);
    for (size_t slot = static_cast<size_t>(behind - offsets_.begin()) - 1;
         slot < owners_.size() && offsets_[slot] < end; ++slot) {
      const int64_t from = std::max(begin, offsets_[slot]), to = std::min(end, offsets_[slot + 1]);
      use(owners_[slot], places_[slot] + from - offsets_[slot], from, to - from);
    }
  }

 private:
  std::vector<int64_t> offsets_;  // of the slots, and the layout's size
  std::vector<int> owners_;
  std::vector<int64_t> places_, counts_;
};

// The elements [begin, end) of an array in the layout's order: every rank of the group brings what
// it owns of them and, unless `out` is null, gets all. Needs memory for the range on each rank.
template <typename T>
void gather_range(Group& group, const OwnedTensors& owned, int64_t begin, int64_t end, const T* own,
                  T* out, const Execution& on) {
  const auto size = static_cast<size_t>(end - begin);
  std::vector<T> sent(size), received(size * static_cast<size_t>(group.size()));
  owned.for_each_piece(begin, end, [&](int rank, int64_t place, int64_t offset, int64_t count) {
    if (rank == group.rank()) std::copy_n(own + place, count, &sent[offset - begin]);
  });
  group.all_gather(sent.data(), static_cast<int64_t>(size * sizeof(T)), received.data(), on);
  if (!out) return;
  owned.for_each_piece(begin, end, [&](int rank, int64_t, int64_t offset, int64_t count) {
    std::copy_n(&received[size * static_cast<size_t>(rank) + static_cast<size_t>(offset - begin)],
                count, out + offset - begin);
  });
}

// All of a unit, to every rank. Where its tensors are shared out evenly each sends its part alone;
// goes piece by piece, with memory for a quarter of a million elements of each rank.
template <typename T>
void gather_unit(Group& group, const OwnedTensors& owned, const ParameterLayout::Unit& unit,
                 const T* own, T* out, const Execution& on) {
  constexpr int64_t kPiece = 1 << 18;
  struct Part {
    int64_t begin = 0, end = 0;  // of the rank's arrays
  };
  std::vector<Part> parts(static_cast<size_t>(group.size()));
  owned.for_each_piece(unit.begin, unit.end, [&](int rank, int64_t place, int64_t, int64_t count) {
    Part& part = parts[static_cast<size_t>(rank)];
    if (part.end == 0) part.begin = place;
    part.end = place + count;
  });
  int64_t longest = 0;
  for (const Part& part : parts) longest = std::max(longest, part.end - part.begin);
  const int64_t most = std::min(kPiece, longest);
  std::vector<T> sent(static_cast<size_t>(most)), received(sent.size() * parts.size());
  const Part& mine = parts[static_cast<size_t>(group.rank())];
  for (int64_t from = 0; from < longest; from += most) {
    const int64_t count = std::min(most, mine.end - mine.begin - from);
    if (count > 0)
      team::copy(on, sent.data(), own + mine.begin + from, count * static_cast<int64_t>(sizeof(T)));
    group.all_gather(sent.data(), most * static_cast<int64_t>(sizeof(T)), received.data(), on);
    owned.for_each_piece(
        unit.begin, unit.end, [&](int rank, int64_t place, int64_t offset, int64_t size) {
          const int64_t piece = parts[static_cast<size_t>(rank)].begin + from;
          const int64_t begin = std::max(place, piece), end = std::min(place + size, piece + most);
          if (begin < end)
            team::copy(on, out + offset - unit.begin + begin - place,
                       &received[sent.size() * static_cast<size_t>(rank) +
                                 static_cast<size_t>(begin - piece)],
                       (end - begin) * static_cast<int64_t>(sizeof(T)));
        });
  }
}

}  // namespace invar
