#include "model/shared_prefixes.h"

#include <algorithm>

namespace invar {

namespace {

// Whole splits whose slots both rows see, in the same blocks.
int32_t common_splits(const Placement& placement, std::span<const int32_t> positions, int32_t a,
                      int32_t b, int block_size) {
  const int32_t splits =
                    std::min(positions[static_cast<size_t>(a)], positions[static_cast<size_t>(b)]) /
                    kSplitSlots,
                blocks = splits * (kSplitSlots / block_size);
  const int32_t *const of_a = placement.table(a), *const of_b = placement.table(b);
  const auto same = std::mismatch(of_a, of_a + blocks, of_b).first - of_a;
  return static_cast<int32_t>(same) / (kSplitSlots / block_size);
}

}  // namespace

void SharedPrefixes::find(const Placement& placement, std::span<const int32_t> rows,
                          std::span<const int32_t> positions, int block_size) {
  prefixes_.clear();
  splits_.assign(positions.size(), 0);
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    const int32_t window = rows[begin] / kNeighbours;
    while (end < rows.size() && rows[end] / kNeighbours == window) ++end;
    group(rows.subspan(begin, end - begin), placement, positions, block_size);
    begin = end;
  }
}

// Groups rows that share splits with the first one, so that the most splits need not be read again;
// then the others, likewise.
void SharedPrefixes::group(std::span<const int32_t> rows, const Placement& placement,
                           std::span<const int32_t> positions, int block_size) {
  left_.assign(rows.begin(), rows.end());
  while (std::ssize(left_) >= fewest_rows_) {
    candidates_.clear();
    for (const int32_t row : left_) {
      const int32_t splits = common_splits(placement, positions, left_[0], row, block_size);
      if (splits >= kFewestSplits) candidates_.push_back({row, splits});
    }
    if (std::ssize(candidates_) >= fewest_rows_)
      std::ranges::sort(candidates_, std::greater(), &Candidate::splits);
    size_t best = 0;
    int64_t most = 0;
    for (auto i = static_cast<size_t>(fewest_rows_) - 1; i < candidates_.size(); ++i) {
      const int64_t saved = int64_t{candidates_[i].splits} * static_cast<int64_t>(i);
      if (saved < most) continue;
      most = saved;
      best = i + 1;
    }
    others_.clear();
    if (best > 0) {
      const int32_t first = rows[0] / kNeighbours * kNeighbours;
      SharedPrefix prefix{.first_row = first, .splits = candidates_[best - 1].splits};
      for (size_t i = 0; i < best; ++i) {
        prefix.rows |= uint64_t{1} << (candidates_[i].row - first);
        splits_[static_cast<size_t>(candidates_[i].row)] = prefix.splits;
      }
      prefixes_.push_back(prefix);
    }
    // The first one is in it, or shares with too few.
    for (const int32_t row : left_)
      if (row != left_[0] && splits_[static_cast<size_t>(row)] == 0) others_.push_back(row);
    left_.swap(others_);
  }
}

}  // namespace invar
