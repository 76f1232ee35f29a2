// Latent attention (numerics 4.3) but for its products of order `hopper`: kernels/reference/
// latent.cc on a GPU.
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256;

// A block has a row and a head: a query's, behind them the key's, then the value's.
__global__ __launch_bounds__(kThreads) void place_latent_kernel(const PlaceLatentParams p) {
  const int64_t t = blockIdx.x / (p.heads + 2), h = blockIdx.x % (p.heads + 2);
  const int64_t e = p.rank + p.turning;
  const int64_t half = e / 2, pairs = p.turning / 2, low = half - pairs;
  let_next_kernel_start();
  wait_for_kernels_before();
  const float* latent = p.latents + t * p.latent_stride;
  const float* turning = latent + p.rank;
  if (h < p.heads) {
    latent = p.queries + (t * p.heads + h) * p.rank;
    turning = p.turning_queries + t * p.turning_stride + h * p.turning;
  }
  float* out = p.out + (t * (p.heads + 2) + h) * e;
  for (int64_t i = threadIdx.x; i < e; i += kThreads) {
    if (h > p.heads) {
      out[i] = i < p.rank ? latent[i] : 0.0f;
      continue;
    }
    const bool is_high = i >= half;
    const int64_t at = is_high ? i - half : i;
    out[i] = at < pairs ? turning[at + is_high * pairs] : latent[at - pairs + is_high * low];
  }
}

}  // namespace

void place_latent(const PlaceLatentParams& p, const Execution& on) {
  if (p.rows == 0) return;
  launch("placing latents", place_latent_kernel,
         {.blocks = static_cast<int>(p.rows * (p.heads + 2)),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

// One head after the other.
void portable_heads_matmul(const HeadsMatmulParams& p, const Execution& on) {
  if (p.each.rows == 0) return;
  for (int64_t h = 0; h < p.each.w.count; ++h) {
    MatmulParams one = p.each;
    one.x.data = static_cast<char*>(p.each.x.data) + h * p.x_step * size_of(p.each.x.type);
    one.w = p.each.w.part(h, 1);
    one.y = p.each.y + h * p.each.w.n;
    p.matmul(one, on);
  }
}

}  // namespace invar::cuda
