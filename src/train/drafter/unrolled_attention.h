// Attention of a layer that is unrolled on its own outputs (the training-time test of EAGLE-3).
// Row p of step s attends, as when it drafts, to what the target's features gave up to position
// p - s (step 0) and to what the drafter itself said since (steps 1 .. s at positions p - s + 1 ..
// p): p + 1 slots in all, slot j being row j of step max(0, j - (p - s)). Rows before position s
// have no such past; they get zeros.
//
// Plain f32 in one order: a dot is 8 lanes by fma, halved; all sums over slots ascend.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "model/batch.h"

namespace invar {

struct UnrolledShape {
  int heads, kv_heads, head_dim;  // head_dim a multiple of 8

  int64_t query_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  int64_t width() const { return query_width() + 2 * kv_width(); }
};

// out [T][H * E] of step qkv.size() - 1; qkv: by step [T][(H + 2G) * E], queries and keys rotated.
void unrolled_attention(const UnrolledShape& shape, const Batch& batch,
                        std::span<const float* const> qkv, float* out, ThreadPool& pool);

// From the gradient of `out` to those of qkv: sets that of the last step's queries, adds to those
// of keys and values of every step. A sequence's key/value head is one thread's: its queries' heads
// ascending, within a head rows ascending.
void unrolled_attention_backward(const UnrolledShape& shape, const Batch& batch,
                                 std::span<const float* const> qkv, const float* d_out,
                                 std::span<float* const> d_qkv, ThreadPool& pool);

}  // namespace invar
