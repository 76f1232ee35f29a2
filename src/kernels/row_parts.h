// How the threads of a CPU cut products of many rows.
#pragma once

#include <algorithm>
#include <cstdint>

namespace invar {

// Rows are cut between tiles of so many; and from so many rows on a share is some of the rows: what
// one operation writes the next one finds in its core's cache.
constexpr int64_t kRowGrain = 32, kRowSharesFrom = 256;

// Parts that many rows should not exceed: with fewer rows in each, every thread would read all
// weights for too little. Beyond it weights are cut, too.
constexpr int64_t most_row_parts(int64_t rows, int team) {
  constexpr int64_t kRowsOfAPart = 256;
  if (rows < kRowSharesFrom) return team;
  return std::min<int64_t>(team, std::max<int64_t>(rows / kRowsOfAPart, 2));
}

// The product of q, k and v with what follows it: parts of rows by parts of key/value heads.
struct QkvShares {
  int rows, groups;
};
constexpr QkvShares qkv_shares(int64_t rows, int team) {
  if (rows < kRowSharesFrom) return {1, team};
  int parts = static_cast<int>(most_row_parts(rows, team));
  while (team % parts != 0) --parts;
  return {parts, team / parts};
}

}  // namespace invar
