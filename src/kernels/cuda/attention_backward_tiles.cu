// The backward of attention (numerics 9) in order `hopper`, on the warpgroups' tensor cores: heads
// of 64 and of 128 elements.
//
// A block owns 128 rows of one sequence, 64 for each of two warpgroups, and one warp fetches what
// they meet in tiles of 64 rows. For dk and dv the owned rows are slots, which meet the queries of
// their heads; for dq they are queries, which meet slots. Both compute the weights again: dq's sum
// over slots has one order, which blocks that own slots cannot keep without waiting for each other.
#include "kernels/cuda/attention_backward_sums.cuh"

namespace invar::cuda {

namespace {

using namespace backward_tiles;

// ---- D and the sums of the forward

// A warp has a query of a head.
__global__ __launch_bounds__(256) void row_values_kernel(const __grid_constant__ Backward of) {
  const AttentionParams& f = of.p.forward;
  const int64_t item = int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (item >= f.rows * f.heads) return;
  const int64_t row = item / f.heads;
  const int head = static_cast<int>(item % f.heads), words = f.kv.head_dim / 2;
  const auto at = [&](const Activation& a) {
    return reinterpret_cast<const uint32_t*>(static_cast<const bf16_t*>(a.data) + row * a.stride) +
           int64_t{head} * words;
  };
  const uint32_t *x = at(of.p.d_out), *y = at(f.out);
  // sum64; elements 2 * lane and the next of each 64 are this lane's.
  float even = 0.0f, odd = 0.0f;
  for (int w = lane; w < words; w += kWarp) {
    even = __fmaf_rn(__uint_as_float(x[w] << 16), __uint_as_float(y[w] << 16), even);
    odd = __fmaf_rn(__uint_as_float(x[w] & 0xffff0000), __uint_as_float(y[w] & 0xffff0000), odd);
  }
  const float mean = halve64_of_pairs(even, odd);
  if (lane == 0) *of.row_values(row, head) = {of.p.max[item], 1.0f / of.p.sum[item], mean, 0.0f};
}

// ---- The kernel of both gradients

template <int kHeadDim, Owns owns>
__global__ __launch_bounds__(kThreads,
                             1) void tiles_backward_kernel(const __grid_constant__ Backward of,
                                                           const __grid_constant__ Maps maps) {
  using S = Shape<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t bars = shared_address(shared) + S::kBarsAt;
  const Ring ring{bars, bars + 8 * kStages, kStages},
      tasks{bars + 16 * kStages, bars + 16 * kStages + 8, 1};
  if (threadIdx.x == 0) {
    ring.init(4 * kWarpgroups);
    tasks.init(4 * kWarpgroups);
  }
  __syncthreads();
  if (__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0) == 0) {
    fewer_registers<24>();
    if (threadIdx.x < kWarp) Fetcher<kHeadDim, owns>(of, maps, shared, ring, tasks).run();
  } else {
    more_registers<240>();
    Warpgroup<kHeadDim, owns>(of, shared, ring, tasks).run();
  }
}

// Keys or values, boxes of 64 columns and of a block's slots or of a tile's.
CUtensorMap slots_map(const KvLayer& kv, const bf16_t* data) {
  constexpr uint64_t kAnyBlocks = uint64_t{1} << 31;  // a table names only blocks that exist
  const uint64_t row = static_cast<uint64_t>(kv.row_elements()) * sizeof(bf16_t),
                 slots = static_cast<uint64_t>(kv.block_size);
  const uint32_t count = static_cast<uint32_t>(std::min(kv.block_size, kTile));
  return tensor_map<3>(data, {.sizes = {static_cast<uint64_t>(kv.head_dim), slots, kAnyBlocks},
                              .strides = {row, row * slots},
                              .box = {64, count, 1}});
}

CUtensorMap d_out_map(const AttentionBackwardParams& p) {
  const uint64_t head = static_cast<uint64_t>(p.forward.kv.head_dim) * sizeof(bf16_t);
  return tensor_map<3>(
      p.d_out.data,
      {.sizes = {static_cast<uint64_t>(p.forward.kv.head_dim),
                 static_cast<uint64_t>(p.forward.heads), static_cast<uint64_t>(p.forward.rows)},
       .strides = {head, static_cast<uint64_t>(p.d_out.stride) * sizeof(bf16_t)},
       .box = {64, 1, kTile}});
}

template <int kHeadDim>
void launch_tiles(const Backward& of, const Execution& on) {
  const AttentionParams& f = of.p.forward;
  const Maps maps{tile_queries(f), d_out_map(of.p), slots_map(f.kv, f.kv.keys),
                  slots_map(f.kv, f.kv.values)};
  const LaunchShape of_rows{static_cast<int>((f.rows * f.heads + 7) / 8), 256, 0};
  launch("the sums of attention's backward", row_values_kernel, of_rows, on, of);
  const LaunchShape shape{gpu_of(on).multiprocessors(), kThreads, Shape<kHeadDim>::kBytes};
  launch("the gradients of keys", tiles_backward_kernel<kHeadDim, Owns::slots>, shape, on, of,
         maps);
  launch("the gradients of queries", tiles_backward_kernel<kHeadDim, Owns::queries>, shape, on, of,
         maps);
}

}  // namespace

bool backward_tiles_can(const AttentionBackwardParams& p) {
  const AttentionParams& f = p.forward;
  return (f.kv.head_dim == 64 || f.kv.head_dim == 128) && f.kv.layout == CacheLayout::rows &&
         p.d_qkv_stride % 4 == 0 && p.d_out.stride % 8 == 0;
}

void attention_backward_tiles(const AttentionBackwardParams& p, const Execution& on) {
  const Backward of{p, score_scale(p.forward).factor, gradient_scale(p.forward)};
  p.forward.kv.head_dim == 64 ? launch_tiles<64>(of, on) : launch_tiles<128>(of, on);
}

}  // namespace invar::cuda
