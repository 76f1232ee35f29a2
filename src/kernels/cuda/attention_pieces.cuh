// What each block of attention_single.cu computes: pieces of rows (attention_cuts.h).
#pragma once

#include "kernels/attention_cuts.h"
#include "kernels/cuda/attention_parts.cuh"

namespace invar::cuda {

// What becomes of the splits of a piece: nothing is left to others where pieces are whole units;
// another kernel merges them; or whoever comes to them merges what it can, as it comes.
enum class Merging { none, apart, together };

struct SingleWork {
  int query_blocks;  // of up to 8 heads, of a key/value head
  int stages;
  bool by_count;  // the baseline (numerics 10): rows in `chunks` pieces, each merged before others
  int chunks;
  ScoreScale scale;
  const int32_t* few_rows;  // AttentionParams, or null: all rows are this kernel's
  AttentionCuts cuts;       // without rows and splits, which only the device knows
  Parts parts;
};

// The splits of a row, without those that are computed for several rows at once.
struct Splits {
  int first, count;
};
__device__ __forceinline__ Splits splits_of(const AttentionParams& p, int64_t t) {
  const int first = p.num_shared > 0 ? p.shared_splits[t] : first_slot(p, t) / kSplitSlots;
  return {first, p.positions[t] / kSplitSlots + 1 - first};
}

// The kernel's rows, in their order.
__device__ __forceinline__ int rows_of(const AttentionParams& p, const SingleWork& work) {
  return work.few_rows ? work.few_rows[0] : static_cast<int>(p.rows);
}
__device__ __forceinline__ int64_t row_of(const SingleWork& work, int i) {
  return work.few_rows ? work.few_rows[1 + i] : i;
}

// The sum over the rows [0, end) of some number of a row's splits, by a whole warp.
template <typename Number>
__device__ __forceinline__ int sum_over(const AttentionParams& p, const SingleWork& work, int end,
                                        const Number& number) {
  int sum = 0;
  for (int i = threadIdx.x % kWarp; i < end; i += kWarp)
    sum += number(splits_of(p, row_of(work, i)).count);
  return __reduce_add_sync(kAllLanes, sum);
}
__device__ __forceinline__ int splits_before(const AttentionParams& p, const SingleWork& work,
                                             int end) {
  return sum_over(p, work, end, [](int splits) { return splits; });
}

// All that the cuts depend on, by a whole warp.
__device__ __forceinline__ AttentionCuts cuts_of(const AttentionParams& p, const SingleWork& work) {
  AttentionCuts cuts = work.cuts;
  cuts.rows = rows_of(p, work);
  for (int i = threadIdx.x % kWarp; i < cuts.rows; i += kWarp) {
    const int count = splits_of(p, row_of(work, i)).count;
    cuts.splits += count;
    cuts.longest = max(cuts.longest, count);
  }
  cuts.splits = __reduce_add_sync(kAllLanes, cuts.splits);
  cuts.longest = __reduce_max_sync(kAllLanes, cuts.longest);
  cuts.may_cut = work.parts.has_room(p, cuts);
  return cuts;
}

// The row in which `at` lies on a line of rows, each of which takes `length(its splits)`; how far
// behind its beginning, and the splits of the rows before it. By a whole warp.
struct FoundRow {
  int row, behind, before, splits;
};
template <typename Length>
__device__ __forceinline__ FoundRow find_row(const AttentionParams& p, const SingleWork& work,
                                             int rows, int at, const Length& length) {
  const int lane = threadIdx.x % kWarp;
  int line = 0, before = 0;
  for (int first = 0; first < rows; first += kWarp) {
    const bool is_row = first + lane < rows;
    const int splits = is_row ? splits_of(p, row_of(work, first + lane)).count : 0;
    const int own = is_row ? length(splits) : 0;
    int up_to = own, splits_up_to = splits;  // of this and the lanes before
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const int other = __shfl_up_sync(kAllLanes, up_to, apart),
                other_splits = __shfl_up_sync(kAllLanes, splits_up_to, apart);
      if (lane >= apart) {
        up_to += other;
        splits_up_to += other_splits;
      }
    }
    const uint32_t is_before = __ballot_sync(kAllLanes, at < line + up_to);
    if (is_before) {
      const int l = __ffs(is_before) - 1;
      return {first + l, at - line - __shfl_sync(kAllLanes, up_to - own, l),
              before + __shfl_sync(kAllLanes, splits_up_to - splits, l),
              __shfl_sync(kAllLanes, splits, l)};
    }
    line += __shfl_sync(kAllLanes, up_to, kWarp - 1);
    before += __shfl_sync(kAllLanes, splits_up_to, kWarp - 1);
  }
  return {rows, 0, before, 0};
}

struct Piece {
  int64_t t;       // the row in the batch
  int before;      // splits of the kernel's rows before it
  int unit;        // of all rows
  int of_row;      // the unit among those of the row
  Splits splits;   // of the row
  int begin, end;  // of them
  int chunk = 0;   // the baseline's number

  __device__ bool is_whole() const { return begin == 0 && end == splits.count; }
};

// Where a stretch begins or ends.
struct StretchEnd {
  int row, before;  // of the kernel's rows, and the splits of those before it
  AttentionCuts::Place place;
};

__device__ __forceinline__ StretchEnd find_stretch(const AttentionParams& p, const SingleWork& work,
                                                   const AttentionCuts& cuts, int worker) {
  const FoundRow found = find_row(p, work, cuts.rows, cuts.stretch_at(worker), [&](int splits) {
    return cuts.units * (splits + cuts.piece_cost);
  });
  if (found.row < cuts.rows)
    return {found.row, found.before, cuts.place(found.behind, found.splits)};
  const int of_last = splits_of(p, row_of(work, cuts.rows - 1)).count;
  return {cuts.rows - 1, found.before - of_last, {cuts.units - 1, of_last}};
}

// Whole units, of rows of about the same length: every so many-th. What the other ways to share out
// cost before the first split would be a tenth of such a step.
class WholePieces {
 public:
  static constexpr Merging kMerging = Merging::none;

  // All that is asked of them here.
  __device__ static AttentionCuts cuts_of(const AttentionParams& p, const SingleWork& work) {
    AttentionCuts cuts = work.cuts;
    cuts.rows = rows_of(p, work);
    return cuts;
  }

  __device__ WholePieces(const AttentionParams& p, const SingleWork& work,
                         const AttentionCuts& cuts, int worker)
      : p_(p), work_(work), count_(cuts.rows * cuts.units), unit_(worker) {}

  __device__ bool next(Piece& piece) {
    if (unit_ >= count_) return false;
    const int row = unit_ / work_.cuts.units;
    const int64_t t = row_of(work_, row);
    const Splits splits = splits_of(p_, t);
    piece = {t, 0, unit_, unit_ - row * work_.cuts.units, splits, 0, splits.count};
    unit_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  const AttentionParams& p_;
  const SingleWork& work_;
  const int count_;
  int unit_;
};

// The pieces of a block's stretch, the last one first: where another block has the end of its row
// it finds the beginning merged. Or every so many-th unit. Its functions are for whole warps.
class StretchPieces {
 public:
  static constexpr Merging kMerging = Merging::together;
  __device__ static AttentionCuts cuts_of(const AttentionParams& p, const SingleWork& work) {
    return cuda::cuts_of(p, work);
  }

  __device__ StretchPieces(const AttentionParams& p, const SingleWork& work,
                           const AttentionCuts& cuts, int worker)
      : p_(p), work_(work), workers_(cuts.keeps_units() ? cuts.workers : 0) {
    if (workers_ > 0) {
      to_ = {cuts.rows, 0, {}};
      unit_ = worker;
      row_ = worker / work_.cuts.units;
      if (row_ < cuts.rows) look_at_row();
      return;
    }
    from_ = find_stretch(p, work, cuts, worker);
    to_ = find_stretch(p, work, cuts, worker + 1);
    row_ = to_.row;
    unit_ = to_.place.unit;
    before_ = to_.before;
    look_at_row();
  }

  __device__ bool next(Piece& piece) {
    return workers_ > 0 ? next_whole(piece) : next_of_stretch(piece);
  }

 private:
  // unit_ is one of all rows here.
  __device__ bool next_whole(Piece& piece) {
    if (row_ >= to_.row) return false;
    piece = {t_, 0, unit_, unit_ - row_ * work_.cuts.units, splits_, 0, splits_.count};
    unit_ += workers_;
    row_ = unit_ / work_.cuts.units;
    if (row_ < to_.row) look_at_row();
    return true;
  }

  __device__ bool next_of_stretch(Piece& piece) {
    for (;; --unit_) {
      if (unit_ < (row_ == from_.row ? from_.place.unit : 0)) {
        if (row_ == from_.row) return false;
        --row_;
        look_at_row();
        before_ -= splits_.count;
        unit_ = work_.cuts.units - 1;
      }
      const int begin = is_at(from_) ? from_.place.split : 0,
                end = is_at(to_) ? to_.place.split : splits_.count;
      if (begin >= end) continue;
      piece = {t_, before_, row_ * work_.cuts.units + unit_, unit_, splits_, begin, end};
      --unit_;
      return true;
    }
  }

  __device__ void look_at_row() {
    t_ = row_of(work_, row_);
    splits_ = splits_of(p_, t_);
  }
  __device__ bool is_at(const StretchEnd& end) const {
    return row_ == end.row && unit_ == end.place.unit;
  }

  const AttentionParams& p_;
  const SingleWork& work_;
  const int workers_;  // where units stay whole, else 0
  StretchEnd from_, to_;
  int row_, unit_, before_ = 0;
  int64_t t_;
  Splits splits_;
};

// A piece of one unit, or none.
class OnePiece {
 public:
  static constexpr Merging kMerging = Merging::apart;
  __device__ static AttentionCuts cuts_of(const AttentionParams& p, const SingleWork& work) {
    return cuda::cuts_of(p, work);
  }

  __device__ OnePiece(const AttentionParams& p, const SingleWork& work, const AttentionCuts& cuts,
                      int worker) {
    int longest = cuts.longest;
    if (cuts.may_cut)
      for (longest = max(1, cuts.units * cuts.splits / cuts.workers);; ++longest) {
        const int pieces =
            sum_over(p, work, cuts.rows, [&](int splits) { return pieces_of(splits, longest); });
        if (cuts.units * pieces <= cuts.workers) break;
      }
    const FoundRow found = find_row(p, work, cuts.rows, worker, [&](int splits) {
      return cuts.units * pieces_of(splits, longest);
    });
    if (found.row == cuts.rows) return;
    const int pieces = pieces_of(found.splits, longest), unit = found.behind / pieces,
              number = found.behind % pieces;
    const int64_t t = row_of(work, found.row);
    piece_ = {t,
              found.before,
              found.row * cuts.units + unit,
              unit,
              splits_of(p, t),
              piece_at(number, found.splits, pieces),
              piece_at(number + 1, found.splits, pieces)};
    is_left_ = true;
  }

  __device__ bool next(Piece& piece) {
    if (!is_left_) return false;
    is_left_ = false;
    piece = piece_;
    return true;
  }

 private:
  Piece piece_;
  bool is_left_ = false;
};

// As many pieces of every row: the baseline's, and those of few rows of about the same length.
class ChunkPieces {
 public:
  static constexpr Merging kMerging = Merging::apart;
  __device__ static AttentionCuts cuts_of(const AttentionParams& p, const SingleWork& work) {
    return cuda::cuts_of(p, work);
  }

  __device__ ChunkPieces(const AttentionParams& p, const SingleWork& work,
                         const AttentionCuts& cuts, int worker)
      : p_(p),
        work_(work),
        chunks_(cuts.may_cut ? work.chunks : 1),
        count_(cuts.rows * cuts.units * chunks_),
        index_(worker) {}

  __device__ bool next(Piece& piece) {
    for (; index_ < count_; index_ += gridDim.x) {
      const int chunk = index_ % chunks_, unit = index_ / chunks_, row = unit / work_.cuts.units;
      const int64_t t = row_of(work_, row);
      const Splits splits = splits_of(p_, t);
      const int share = (splits.count + chunks_ - 1) / chunks_, begin = chunk * share;
      if (begin >= splits.count) continue;
      piece = {t,     splits_before(p_, work_, row),    unit, unit % work_.cuts.units, splits,
               begin, min(splits.count, begin + share), chunk};
      index_ += gridDim.x;
      return true;
    }
    return false;
  }

 private:
  const AttentionParams& p_;
  const SingleWork& work_;
  const int chunks_, count_;
  int index_;
};

}  // namespace invar::cuda
