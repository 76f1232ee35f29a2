// Attention of weight mode exact (numerics 0.1, 4): queries, keys, values and probabilities are
// f32. A block takes one query head of one row and walks over its splits: a thread has a slot's
// score, then head elements of the output. Simple rather than fast.
#include <limits>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_f32.h"
#include "kernels/cuda/elementwise.cuh"

namespace invar::cuda {

namespace {

constexpr int kMaxHeadDim = 576, kThreads = kSplitSlots;  // as the largest of any attention
constexpr int kElements = (kMaxHeadDim + kThreads - 1) / kThreads, kLeaf = 32;

struct Shared {
  float q[kMaxHeadDim];
  float weights[kSplitSlots];  // scores, then probabilities
  float max, sum;              // m_s and l_s
};

// The chain of one leaf, after `sum`; what x meets lies kPanelWidth elements apart.
__device__ __forceinline__ float add_leaf(float sum, const float* x, const float* panel) {
  float even = 0.0f, odd = 0.0f;
#pragma unroll
  for (int i = 0; i < kLeaf; i += 2) {
    even = __fmaf_rn(x[i], __ldg(panel + i * kPanelWidth), even);
    odd = __fmaf_rn(x[i + 1], __ldg(panel + (i + 1) * kPanelWidth), odd);
  }
  return sum + (even + odd);
}

__device__ float score(const KvLayer& kv, const Shared& shared, int64_t block, int group,
                       int64_t slot) {
  const float* key =
      reinterpret_cast<const float*>(kv.keys) + kv.key_index(block, group, slot % kv.block_size, 0);
  float sum = 0.0f;
  for (int i = 0; i < kv.head_dim; i += kLeaf)
    sum = add_leaf(sum, shared.q + i, key + i * kPanelWidth);
  return sum + 0.0f;
}

// Probabilities of the split at `base`, of slots [first, last], by one warp: a lane has slots lane,
// lane + 32, ...
__device__ void probabilities(Shared& shared, int64_t base, int64_t first, int64_t last,
                              ScoreScale scale) {
  const int lane = threadIdx.x;
  float d[4], p[4] = {}, top = -std::numeric_limits<float>::infinity();
  const auto is_valid = [&](int i) {
    const int64_t slot = base + lane + 32 * i;
    return slot >= first && slot <= last;
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    d[i] = shared.weights[lane + 32 * i];
    if (!is_valid(i)) continue;
    if (scale.inner > 0) d[i] = math::half_tanh(d[i] * scale.inner);
    top = top < d[i] ? d[i] : top;
  }
  const float max = warp_max(top) * scale.factor;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (is_valid(i)) p[i] = math::exp2(__fmaf_rn(d[i], scale.factor, -max));
#pragma unroll
  for (int i = 0; i < 4; ++i) shared.weights[lane + 32 * i] = p[i];
  const float sum = halve64(p[0] + p[2], p[1] + p[3]);
  if (lane == 0) shared.max = max, shared.sum = sum;
}

// Element e of o_s; leaves without a valid slot would add +0.
__device__ float output(const AttentionParams& p, const Shared& shared, const int32_t* table,
                        int group, int64_t base, int64_t first, int64_t last, int e) {
  float sum = 0.0f;
  for (int64_t slot = base; slot < base + kSplitSlots && slot <= last; slot += kLeaf) {
    if (slot + kLeaf <= first) continue;
    const int64_t block = table[slot / p.kv.block_size];
    const float* values = reinterpret_cast<const float*>(p.kv.values) +
                          p.kv.value_index(block, group, slot % p.kv.block_size, e);
    sum = add_leaf(sum, shared.weights + (slot - base), values);
  }
  return sum + 0.0f;
}

// M, L and O of numerics 4, step 4; every thread has M and L, and its elements of O.
struct State {
  bool is_set = false;
  float max = 0, sum = 0, out[kElements] = {};

  __device__ void join(float split_max, float split_sum, const float (&split)[kElements]) {
    const float both = max < split_max ? split_max : max;
    const float a = math::exp2(max - both), b = math::exp2(split_max - both);
#pragma unroll
    for (int n = 0; n < kElements; ++n)
      out[n] = is_set ? __fmaf_rn(out[n], a, split[n] * b) : split[n];
    sum = is_set ? __fmaf_rn(sum, a, split_sum * b) : split_sum;
    max = is_set ? both : split_max;
    is_set = true;
  }
};

__global__ __launch_bounds__(kThreads) void attention_f32_kernel(AttentionParams p,
                                                                 ScoreScale scale) {
  __shared__ Shared shared;
  const int64_t t = blockIdx.x;
  const int h = blockIdx.y, tid = threadIdx.x, head_dim = p.kv.head_dim;
  const int group = h / (p.heads / p.kv.kv_heads);
  const int32_t* table = p.tables[p.table_of[t]];
  const int64_t last = p.positions[t], begin = first_slot(p, t);
  const int padded = static_cast<int>(round_up(head_dim, kLeafPad));
  const float* q = reinterpret_cast<const float*>(p.q) + (t * p.heads + h) * padded;
  for (int e = tid; e < padded; e += kThreads) shared.q[e] = q[e];
  __syncthreads();
  State state;
  for (int64_t base = begin / kSplitSlots * kSplitSlots; base <= last; base += kSplitSlots) {
    const int64_t slot = base + tid, first = begin > base ? begin : base;
    shared.weights[tid] = slot >= first && slot <= last
                              ? score(p.kv, shared, table[slot / p.kv.block_size], group, slot)
                              : 0.0f;
    __syncthreads();
    if (tid < kWarp) probabilities(shared, base, first, last, scale);
    __syncthreads();
    float split[kElements] = {};
#pragma unroll
    for (int n = 0; n < kElements; ++n)
      if (const int e = n * kThreads + tid; e < head_dim)
        split[n] = output(p, shared, table, group, base, first, last, e);
    state.join(shared.max, shared.sum, split);
    __syncthreads();
  }
  constexpr float kNothing[kElements] = {};  // a sink's values
  if (p.sinks) state.join(p.sinks[h] * math::constants::kLog2eHigh, 1.0f, kNothing);
#pragma unroll
  for (int n = 0; n < kElements; ++n)
    if (const int e = n * kThreads + tid; e < head_dim)
      store(p.out, t * p.out.stride + h * head_dim + e, state.out[n] / state.sum);
  const int64_t width = int64_t{p.heads} * head_dim;
  for (int64_t i = width + tid; h == 0 && i < round_up(width, kLeafPad); i += kThreads)
    store(p.out, t * p.out.stride + i, 0.0f);
}

}  // namespace

void attention_f32(const AttentionParams& p, const Execution& on) {
  if (p.rows == 0) return;
  attention_f32_kernel<<<dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.heads)),
                         kThreads, 0, stream_of(on)>>>(p, score_scale(p));
  cuda_launched("attending in f32");
}

}  // namespace invar::cuda
