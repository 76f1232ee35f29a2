// What a data-parallel rank owns of the optimizer's state: whole tensors that lie one behind the
// other, so that its part of every array is one piece and a sum over a tensor stays one rank's.
// ZeRO's first stage (Rajbhandari et al. 2020): state is cut, weights and gradients are not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "collectives/group.h"
#include "model/parameters.h"

namespace invar {

struct OwnedTensors {
  int64_t begin = 0, end = 0;  // elements of an array in the layout's order
  int64_t count() const { return end - begin; }
};

// One after the other for every rank, together the whole layout. A rank may own nothing.
std::vector<OwnedTensors> share_tensors(const ParameterLayout& layout, int ranks);

// Every rank of the group sends its part `mine` of an array and, unless `all` is null, receives the
// whole array. Goes piece by piece: needs memory for a quarter of a million elements of each rank.
template <typename T>
void exchange_owned(Group& group, const std::vector<OwnedTensors>& shares, const T* mine, T* all,
                    const Execution& on) {
  constexpr int64_t kPiece = 1 << 18;
  int64_t longest = 0;
  for (const OwnedTensors& share : shares) longest = std::max(longest, share.count());
  const int64_t most = std::min(kPiece, longest);
  std::vector<T> sent(static_cast<size_t>(most)), received(sent.size() * shares.size());
  const int64_t own = shares[static_cast<size_t>(group.rank())].count();
  for (int64_t from = 0; from < longest; from += most) {
    if (from < own) std::copy(mine + from, mine + std::min(own, from + most), sent.data());
    group.all_gather(sent.data(), most * static_cast<int64_t>(sizeof(T)), received.data(), on);
    if (!all) continue;
    for (size_t r = 0; r < shares.size(); ++r) {
      const T* piece = received.data() + r * sent.size();
      const int64_t count = std::min(most, shares[r].count() - from);
      if (count > 0) std::copy(piece, piece + count, all + shares[r].begin + from);
    }
  }
}

}  // namespace invar
