// Attention of single rows over a cache of bf16 (attention_single.cuh).
#include "kernels/cuda/attention_single_plan.cuh"

#include "kernels/cuda/at_once.h"
#include "kernels/cuda/operations.h"

namespace invar::cuda {

namespace {

// `rotation` without a product: the queries are in p.q, keys and values in the cache.
void attend(const AttentionParams& p, const QkvParams& rotation, const Execution& on,
            bool by_count = false, bool goes_together = false) {
  using single::CachedRows;
  const auto as = [&](auto rows) {
    single::attend<decltype(rows)>(p, rotation, on, by_count, goes_together);
  };
  switch (p.kv.head_dim) {
    case 64:
      return as(CachedRows<64>());
    case 80:
      return as(CachedRows<80>());
    case 96:
      return as(CachedRows<96>());
    case 256:
      return as(CachedRows<256>());
    default:
      return as(CachedRows<128>());
  }
}

}  // namespace

bool single_can(int head_dim) {
  return tiles_can(head_dim);
}
void attend_single(const AttentionParams& p, const Execution& on) {
  single_reads_stored(p.kv) ? attend_single_stored(p, on) : attend(p, {}, on);
}
bool single_rotates(const AttentionParams& p, const Execution& on) {
  return single::has_many_units(p, on);
}
void attend_single_rotated(const RotatedAttentionParams& p, const Execution& on) {
  attend(p.of, p.rotation, on);
}
void short_attention(const RotatedAttentionParams& p, const Execution& on) {
  const AttentionParams of = without_shared(p.of);
  if (of.rows == 0) return;
  if (of.out.type != DType::bf16 || !single_can(of.kv.head_dim) || of.kv.stored.data ||
      !single::may_be_short(of))
    return rotated_attention(p, on);
  attend(of, p.rotation, on, false, true);
}
void attend_single_by_count(const AttentionParams& p, const Execution& on) {
  attend(without_shared(p), {}, on, true);
}

}  // namespace invar::cuda
