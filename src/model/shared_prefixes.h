// Which rows of a step read the same blocks first, so that a device may read those once for all of
// them (AttentionParams::shared): sequences that decode behind one prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/inference.h"
#include "kv/placement.h"

namespace invar {

class SharedPrefixes {
 public:
  static constexpr int32_t kNeighbours = 64;  // rows that a SharedPrefix may name
  static constexpr int32_t kFewestRows = 16, kFewestSplits = 2;  // that are worth one

  // So many rows, at least kFewestRows: reading again what is shared costs the less the narrower
  // keys are (elements of a slot), computing it for all does not.
  static constexpr int32_t fewest_rows(int64_t key_width) {
    return static_cast<int32_t>(std::max<int64_t>(kFewestRows, 24 * 1024 / key_width));
  }
  explicit SharedPrefixes(int32_t fewest_rows = kFewestRows) : fewest_rows_(fewest_rows) {}

  // `rows`: those of tables without many rows, ascending; `positions` of all rows. Allocates only
  // for more rows than ever before.
  void find(const Placement& placement, std::span<const int32_t> rows,
            std::span<const int32_t> positions, int block_size);

  // Valid until the next find.
  std::span<const SharedPrefix> prefixes() const { return prefixes_; }
  // For each row, how many leading splits are computed with other rows'.
  std::span<const int32_t> splits() const { return splits_; }
  static size_t most_prefixes(size_t rows) { return rows / kFewestRows; }

 private:
  void group(std::span<const int32_t> rows, const Placement& placement,
             std::span<const int32_t> positions, int block_size);

  int32_t fewest_rows_;
  std::vector<SharedPrefix> prefixes_;
  std::vector<int32_t> splits_;
  struct Candidate {
    int32_t row, splits;
  };
  std::vector<Candidate> candidates_;
  std::vector<int32_t> left_, others_;
};

}  // namespace invar
