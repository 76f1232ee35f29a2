// Samples tokens from rows of logits (numerics 6) and says how likely they were (numerics 3).
//
// A cluster of 8 blocks takes a row and keeps it in its shared memory: block i has segment i of the
// sum that log-probabilities need. Whatever asks for an order of preference (top-k, top-p, the most
// likely tokens) narrows an interval of ranks down to one token: it adds up the weights of its
// tokens in 2048 bins and goes on with the bin where the sum reaches what is looked for. All blocks
// add up all bins, in integers, so each of them finds the same one.
#include "base/check.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/sample_row.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/sample.h"
#include "numerics/noise.h"

namespace invar::cuda {

namespace {

// Steps 1 to 4 of numerics 6.
__device__ void edit(const SampleRowsParams& p, const SampledRow& of, Row& row) {
  if (of.mask >= 0) {
    const uint64_t* mask = p.masks + of.mask * ((p.vocab + 63) / 64);
    row.each([&](float& x, int token) {
      if (!(mask[token / 64] >> token % 64 & 1)) x = kExcluded;
    });
  }
  __syncthreads();
  for (int i = of.bias_begin + threadIdx.x; i < of.bias_end; i += kThreads) {
    const TokenBias b = p.biases[i];
    if (row.has(b.token)) row.at(b.token) = row.at(b.token) + b.bias;
  }
  __syncthreads();
  for (int i = of.count_begin + threadIdx.x; i < of.count_end; i += kThreads) {
    const TokenCount c = p.counts[i];
    if (!row.has(c.token)) continue;
    float x = row.at(c.token);
    x = x > 0.0f ? x / of.repetition_penalty : x * of.repetition_penalty;
    if (c.generated > 0) {
      x = x - of.frequency_penalty * static_cast<float>(c.generated);
      x = x - of.presence_penalty;
    }
    row.at(c.token) = x;
  }
  __syncthreads();
  if (of.temperature != 0.0f) row.each([&](float& x, int) { x = x / of.temperature; });
  __syncthreads();
}

__device__ uint64_t top_p_weight(float below_max) {
  return static_cast<uint64_t>(math::exp(below_max) * 0x1p40f);
}

// Step 5.
__device__ void filter(const SampledRow& of, float max, Row& row) {
  if (of.min_p != 0.0f)
    row.each([&](float& x, int) {
      if (!(math::exp(x - max) >= of.min_p)) x = kExcluded;
    });
  if (of.top_k > 0)
    row.exclude_after(row.rank_where_sum_reaches(of.top_k, max, [](float) { return uint64_t{1}; }));
  if (of.top_p == 1.0) return;
  const auto weight = [&](float x) { return top_p_weight(x - max); };
  uint64_t mine = 0;
  row.each([&](float x, int) { mine += x == kExcluded ? 0 : weight(x); });
  const uint64_t total = row.sum_of_all(mine);
  const uint64_t limit = static_cast<uint64_t>(of.top_p * static_cast<double>(total));
  row.exclude_after(row.rank_where_sum_reaches(limit ? limit : 1, max, weight));
}

// The token whose value and noise are largest together. Noise is -log(-log(u)) <= -log(1 - u), so
// only numbers with 1 - u up to e^-x can lift a token by x: most need no logarithm.
__device__ int sample_token(const SampledRow& of, const Best& largest, Row& row) {
  const NoiseKey key = {of.seed, of.position, of.choice};
  const auto noise = [&](int token) {
    return gumbel_of(random_bits(key, static_cast<uint32_t>(token)));
  };
  Best best{largest.score + noise(largest.token), largest.token};
  const double bar = best.score;
  const float* values = row.values();
  for (int i = 4 * threadIdx.x; i < row.size(); i += 4 * kThreads) {
    float reach[4];  // the largest 1 - u that matters, in units of 2^-32; 0: none
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = i + j < row.size() ? values[i + j] : kExcluded;
      const double needed = bar - static_cast<double>(x);
      reach[j] = x == kExcluded || needed > kMaxGumbel
                     ? 0.0f
                     : __expf(fmaxf(static_cast<float>(-needed), -80.0f)) * 0x1.01p32f + 1.0f;
      any = any || reach[j] > 0.0f;
    }
    if (!any) continue;
    const int token = row.first() + i;
    const auto bits = philox4x32({key.position, static_cast<uint32_t>(token) >> 2, key.choice,
                                  static_cast<uint32_t>(key.purpose)},
                                 key.seed);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (static_cast<float>(~bits[j]) <= reach[j] && reach[j] > 0.0f)
        best.offer(static_cast<double>(values[i + j]) + gumbel_of(bits[j]), token + j);
  }
  return row.best_of_all(best).token;
}

// The row's token, or why there is none; the values become what numerics calls processed.
__device__ int choose(const SampleRowsParams& p, const SampledRow& of, Row& row) {
  edit(p, of, row);
  const Best largest = row.largest();
  if (largest.score == kInfinity) return kSampledNotANumber;
  if (largest.score == kExcluded) return kSampledNothingAllowed;
  if (of.temperature == 0.0f) return of.given < 0 ? largest.token : of.given;
  filter(of, static_cast<float>(largest.score), row);
  __syncthreads();
  return of.given < 0 ? sample_token(of, largest, row) : of.given;
}

// A log-probability is (x - max) - log_sum, and what is shown as a logit (x - 0) - 0.
struct Scale {
  float max = 0.0f, log_sum = 0.0f;
};

// Of the values as they stand; writes the most likely tokens.
__device__ Scale measure(const SampleRowsParams& p, const SampledRow& of, int64_t t, Row& row) {
  const float max = static_cast<float>(row.largest().score);
  Scale scale;
  if (!of.as_logits) scale = {max, row.log_sum(max)};
  const int count = min(of.top, kMostTop);
  if (count > 0)
    row.write_top(row.rank_of_first(count, max), count, scale.max, scale.log_sum,
                  p.top + t * kMostTop);
  return scale;
}

__global__ __cluster_dims__(kBlocks, 1, 1)
    __launch_bounds__(kThreads) void sample_kernel(const SampleRowsParams p) {
  extern __shared__ float values[];
  __shared__ Shared shared;
  const int64_t t = blockIdx.x / kBlocks;
  const SampledRow of = p.of[t];
  Row row(p, values, shared);
  const bool is_number = row.load();
  Scale scale;
  if (is_number && of.top >= 0 && !of.of_processed) scale = measure(p, of, t, row);
  int token = of.given;
  if (!is_number)
    token = kSampledNotANumber;
  else if (token < 0 || of.of_processed)
    token = choose(p, of, row);
  SampledToken sampled{token, 0.0f, 0};
  if (token >= 0 && of.top >= 0) {
    if (of.of_processed) scale = measure(p, of, t, row);
    const float x = of.of_processed ? row.value(token) : row.raw(token);
    sampled.logprob = (x - scale.max) - scale.log_sum;
    sampled.rank = static_cast<int>(row.count_before(token, of.of_processed)) + 1;
  }
  if (row.is_first()) {
    p.tokens[t] = sampled;
    if (p.ids) p.ids[t] = token < 0 ? 0 : token;
  }
  row.sync();  // a block's shared memory is there until all have read it
}

}  // namespace

void sample(const SampleRowsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  CHECK(p.vocab <= kMostVocab, "a vocabulary too large to be sampled on a GPU");
  const int64_t length = 64 * ((p.vocab + 511) / 512);
  launch("sampling tokens", sample_kernel,
         {.blocks = static_cast<int>(p.rows * kBlocks),
          .threads = kThreads,
          .shared_bytes = static_cast<int>(length * sizeof(float))},
         on, p);
}

}  // namespace invar::cuda
