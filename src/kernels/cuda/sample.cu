// One block samples one row (numerics 6): every thread keeps the best of its tokens, then halves
// meet.
#include <limits>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/operations.h"
#include "numerics/noise.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 512;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Best {
  double score = 0;
  int32_t token = -1;

  __device__ void offer(double other_score, int32_t other) {
    if (other < 0) return;
    if (token < 0 || other_score > score || (other_score == score && other < token)) {
      score = other_score;
      token = other;
    }
  }
};

__global__ __launch_bounds__(kThreads) void sample_kernel(SampleParams p) {
  __shared__ double scores[kThreads];
  __shared__ int32_t ids[kThreads];
  const float* x = p.logits + blockIdx.x * p.vocab;
  const SampledRow row = p.of[blockIdx.x];
  const NoiseKey key = {row.seed, row.position, row.choice};
  const bool is_greedy = row.temperature == 0.0f;
  const int tid = threadIdx.x;
  Best best;
  bool is_number = true;
  for (int64_t token = tid; token < p.vocab; token += kThreads) {
    const float value = is_greedy ? x[token] : x[token] / row.temperature;
    is_number = is_number && value < kInfinity;  // neither NaN nor infinite
    if (value == -kInfinity) continue;
    double score = value;
    if (!is_greedy) {
      // No noise is larger: most tokens need none.
      if (best.token >= 0 && score + kMaxGumbel < best.score) continue;
      score = score + gumbel_of(random_bits(key, static_cast<uint32_t>(token)));
    }
    best.offer(score, static_cast<int32_t>(token));
  }
  is_number = __syncthreads_and(is_number);
  for (int half = kThreads / 2; half >= 1; half /= 2) {
    scores[tid] = best.score;
    ids[tid] = best.token;
    __syncthreads();
    if (tid < half) best.offer(scores[tid + half], ids[tid + half]);
    __syncthreads();
  }
  if (tid != 0) return;
  p.tokens[blockIdx.x] = !is_number       ? kSampledNotANumber
                         : best.token < 0 ? kSampledNothingAllowed
                                          : best.token;
}

}  // namespace

void sample(const SampleParams& p, const Execution& on) {
  if (p.rows == 0) return;
  sample_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("sampling tokens");
}

}  // namespace invar::cuda
