// How attention of single rows is shared out among blocks, and its launch.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "kernels/at_once.h"
#include "kernels/cuda/attention_single.cuh"

namespace invar::cuda::single {

inline int64_t units_of(const AttentionParams& p) {
  const int per_group = p.heads / p.kv.kv_heads;
  return p.rows * p.kv.kv_heads * ((per_group + kQueries - 1) / kQueries);
}
// Few rows of short contexts may go together: rotated, in pieces of some splits, and merged by
// whoever ends a row's last piece, they are one kernel instead of three that wait for each other.
constexpr int kFewUnits = 32, kShortPieces = 16;
inline bool may_be_short(const AttentionParams& p) {
  return p.scratch && p.num_shared == 0 && units_of(p) <= kFewUnits && !may_have_many_rows(p);
}
// One block a row and head keeps all multiprocessors busy from so many on.
inline bool has_many_units(const AttentionParams& p, const Execution& on) {
  return units_of(p) >= int64_t{gpu_of(on).multiprocessors()} * 9 / 10;
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, AttentionParams, QkvParams, SingleWork);
template <typename Rows, typename Pieces>
constexpr Kernel kernel_of() {
  if constexpr (Rows::kIsStored)
    return stored_kernel<Rows, Pieces>;
  else
    return single_kernel<Rows, Pieces>;
}

struct SinglePlan {
  SingleWork work;
  Kernel kernel;
  bool merges_apart;
};

// Whether units of rows of about the same length fill `workers` turn by turn.
inline bool fills_turns(int64_t units, int workers) {
  const int64_t turns = (units + workers - 1) / workers;
  return units * 10 >= turns * workers * 9 || turns > 10;
}

// How the rows are shared out. With few units three blocks of two stages share a multiprocessor,
// with some more one block has it to itself, and then two; or three where what is stored is made
// bf16, which takes more warps than waiting for it does, and whole rows fill them.
template <typename Rows>
SinglePlan plan_single(const AttentionParams& p, const Execution& on, bool by_count,
                       bool goes_together) {
  using S = Shape<Rows>;
  constexpr int kRoom = kMaxSharedBytes + (1 << 10), kOfBlock = 1 << 10;  // that each block takes
  const int per_group = p.heads / p.kv.kv_heads,
            query_blocks = (per_group + kQueries - 1) / kQueries;
  const int64_t units = units_of(p);
  const int multiprocessors = gpu_of(on).multiprocessors();
  const bool merges_apart =
                 !has_many_units(p, on) && p.scratch && p.num_shared == 0 && !goes_together,
             has_tiles = may_have_many_rows(p);
  const bool even = p.rows_are_even && !has_tiles,
             fill_three = Rows::kIsStored && even && fills_turns(units, 3 * multiprocessors);
  const int wanted = merges_apart || fill_three || goes_together ? 3
                     : units <= multiprocessors                  ? 1
                                                                 : 2;
  const int stages = std::clamp(
      (kRoom / wanted - kOfBlock - S::bytes(0)) / (S::bytes(1) - S::bytes(0)), kFewestStages, 6);
  const int blocks = goes_together ? static_cast<int>(units) * kShortPieces
                                   : kRoom / (S::bytes(stages) + kOfBlock) * multiprocessors;
  const int chunks = merges_apart ? static_cast<int>((3 * multiprocessors + units - 1) / units) : 1;
  // The costs of pieces beside their splits, in splits, are measured (cuda_bench ragged).
  const SingleWork work = {.query_blocks = query_blocks,
                           .stages = stages,
                           .by_count = by_count,
                           .chunks = chunks,
                           .scale = score_scale(p),
                           .few_rows = has_tiles ? p.few_rows : nullptr,
                           .cuts = {.units = p.kv.kv_heads * query_blocks,
                                    .workers = blocks,
                                    .piece_cost = 1,
                                    .fewest = 2,
                                    .cut_cost = 5},
                           .parts = parts_in(p, p.scratch)};
  SinglePlan plan = {work, kernel_of<Rows, StretchPieces>(), merges_apart};
  if (by_count || (even && (merges_apart || fills_turns(units, blocks)))) {
    plan.kernel = merges_apart ? kernel_of<Rows, ChunkPieces>() : kernel_of<Rows, WholePieces>();
    plan.work.cuts.workers = static_cast<int>(units * chunks);
  } else if (merges_apart) {
    plan.kernel = kernel_of<Rows, OnePiece>();
  }
  return plan;
}

// `rotation` without a product: the queries are in p.q, keys and values in the cache.
template <typename Rows>
void attend(const AttentionParams& p, const QkvParams& rotation, const Execution& on, bool by_count,
            bool goes_together = false) {
  const auto [work, kernel, merges_apart] = plan_single<Rows>(p, on, by_count, goes_together);
  CHECK(work.few_rows || !may_have_many_rows(p), "attention is told which rows are single");
  launch("attending", kernel,
         {.blocks = work.cuts.workers,
          .threads = kThreads,
          .shared_bytes = Shape<Rows>::bytes(work.stages),
          .early = true},
         on, Rows::map(p.kv, p.kv.keys), Rows::map(p.kv, p.kv.values), p, rotation, work);
  if (merges_apart)
    launch("attending", merge_kernel<Rows::kHeadDim>,
           {.blocks = static_cast<int>(p.rows * p.heads),
            .threads = kMergeThreads,
            .shared_bytes = kMergeBytes<Rows::kHeadDim>,
            .early = true},
           on, p, work);
}

}  // namespace invar::cuda::single
