// Training's sums over rows and over whole tensors: kernels/reference/backward.cc on a GPU.
#include "base/check.h"
#include "kernels/cuda/leaf_chains.cuh"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

namespace {

__global__ __launch_bounds__(kChainThreads) void bias_gradient_kernel(
    const __grid_constant__ BiasGradientParams p) {
  __shared__ Leaves leaves;
  const int64_t i = column_of_cluster<kWideColumns>();
  const bool is_column = i < p.columns.count;
  const int64_t column = is_column ? p.columns.at(i) : 0;
  const bf16_t* dy = static_cast<const bf16_t*>(p.dy.data) + column;
  const float sum = chain<kWideColumns>(
      leaves, is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf, is_column, [&](int64_t leaf) {
        return leaf_of([&](int j) {
          return float2{1.0f, bf16_to_f32(dy[(leaf * kLeaf + j) * p.dy.stride])};
        });
      });
  if (is_column && has_sum<kWideColumns>()) p.gradient[i] = sum;
}

template <int kColumns>
__global__ __launch_bounds__(kChainThreads) void norm_gradient_kernel(
    const __grid_constant__ NormGradientParams p) {
  __shared__ Leaves leaves;
  const int64_t i = column_of_cluster<kColumns>();
  const bool is_column = i < p.width;
  const auto heads = static_cast<uint32_t>(p.heads);
  const float sum = chain<kColumns>(
      leaves, is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf * p.heads, is_column,
      [&](int64_t at) {
        const uint32_t leaf = static_cast<uint32_t>(at) / heads;
        const int64_t t = int64_t{leaf} * kLeaf, h = static_cast<uint32_t>(at) - leaf * heads;
        const float *dy = p.dy + t * p.dy_stride + h * p.width + i,
                    *x = p.x + t * p.x_stride + h * p.width + i, *rs = p.rs + t * p.rs_stride + h;
        return leaf_of([&](int j) {
          return float2{dy[j * p.dy_stride], x[j * p.x_stride] * rs[j * p.rs_stride]};
        });
      });
  if (is_column && has_sum<kColumns>()) p.gradient[i] = sum;
}

__global__ __launch_bounds__(kChainThreads) void layer_norm_gradient_kernel(
    const __grid_constant__ LayerNormGradientParams layer) {
  __shared__ Leaves leaves;
  const NormGradientParams& p = layer.norm;
  const int64_t i = column_of_cluster<kWideColumns>();
  const bool is_column = i < p.width;
  const float weight = chain<kWideColumns>(
      leaves, is_column ? p.gradient[i] : 0.0f, p.rows / kLeaf, is_column, [&](int64_t leaf) {
        return leaf_of([&](int j) {
          const int64_t t = leaf * kLeaf + j;
          return float2{p.dy[t * p.dy_stride + i],
                        (p.x[t * p.x_stride + i] - layer.mean[t]) * p.rs[t]};
        });
      });
  const float bias =
      chain<kWideColumns>(leaves, is_column ? layer.bias_gradient[i] : 0.0f, p.rows / kLeaf,
                          is_column, [&](int64_t leaf) {
                            return leaf_of([&](int j) {
                              return float2{1.0f, p.dy[(leaf * kLeaf + j) * p.dy_stride + i]};
                            });
                          });
  if (!is_column || !has_sum<kWideColumns>()) return;
  p.gradient[i] = weight;
  layer.bias_gradient[i] = bias;
}

// ---- Sums of squares: a block has a tensor. Two warps have the 64 lanes, each of which is one
// chain over the tensor; a third warp fetches pieces of it, several ahead.

constexpr int kPiece = 8192, kPieces = 6, kLanes = 64, kSquareThreads = kLanes + kWarp;
constexpr int kSquareBytes = kPieces * (kPiece * int{sizeof(float)} + 16);

__device__ void fetch_pieces(const float* x, int64_t count, uint32_t to, Ring ring) {
  for (int64_t first = 0; first + kPiece <= count; first += kPiece, ring.next()) {
    barrier_wait(ring.empty_now(), ring.parity ^ 1);
    barrier_expect(ring.full_now(), kPiece * sizeof(float));
    load_bytes(to + ring.stage * kPiece * sizeof(float), x + first, kPiece * sizeof(float),
               ring.full_now());
  }
}

// One lane's chain. What is no whole piece, or not where copies may begin, is read as it lies.
__device__ float square_lane(const float* x, int64_t count, bool has_pieces, const float* pieces,
                             Ring ring) {
  float lane = 0.0f;
  int64_t first = 0;
  for (; has_pieces && first + kPiece <= count; first += kPiece, ring.next()) {
    barrier_wait(ring.full_now(), ring.parity);
    const float* piece = pieces + ring.stage * kPiece + threadIdx.x;
    constexpr int kBatch =
        32;  // elements that are loaded while the chain goes through those before
    float now[kBatch], next[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) now[i] = piece[i * kLanes];
#pragma unroll
    for (int i = kBatch; i <= kPiece / kLanes; i += kBatch) {
#pragma unroll
      for (int j = 0; i < kPiece / kLanes && j < kBatch; ++j) next[j] = piece[(i + j) * kLanes];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) lane = __fmaf_rn(now[j], now[j], lane);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) now[j] = next[j];
    }
    if (threadIdx.x % kWarp == 0) barrier_arrive(ring.empty_now());
  }
#pragma unroll 16
  for (int64_t i = first + threadIdx.x; i < count; i += kLanes) lane = __fmaf_rn(x[i], x[i], lane);
  return lane;
}

__global__ __launch_bounds__(kSquareThreads) void squares_kernel(
    const __grid_constant__ SquaresParams p) {
  extern __shared__ __align__(16) float pieces[];
  __shared__ float lanes[kLanes];
  const float* x = p.tensors[blockIdx.x];
  const int64_t count = p.counts[blockIdx.x];
  const bool has_pieces = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const uint32_t bars = shared_address(pieces + kPieces * kPiece);
  const Ring ring{bars, bars + 8 * kPieces, kPieces};
  if (threadIdx.x == 0) ring.init(kLanes / kWarp);
  __syncthreads();
  if (threadIdx.x < kLanes)
    lanes[threadIdx.x] = square_lane(x, count, has_pieces, pieces, ring);
  else if (threadIdx.x == kLanes && has_pieces)
    fetch_pieces(x, count, shared_address(pieces), ring);
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const float sum = halve64(lanes[threadIdx.x], lanes[threadIdx.x + kWarp]);
  if (threadIdx.x == 0) p.sums[blockIdx.x] = sum;
}

// ---- The embedding's gradient: a block has a token, that of its row if no earlier row has it, and
// adds its rows in their order.

constexpr int kColumnsAtOnce = 8 * kThreads;

__global__ __launch_bounds__(kThreads) void embed_gradient_kernel(
    const __grid_constant__ EmbedGradientParams p) {
  extern __shared__ uint32_t has_token[];  // bit i of word w: row 32 w + i
  const int64_t own = blockIdx.x;
  const int32_t token = p.tokens[own];
  bool is_later = false;
  for (int64_t t = threadIdx.x; t < own; t += kThreads) is_later = is_later || p.tokens[t] == token;
  if (__syncthreads_or(is_later)) return;
  const int64_t words = (p.rows + 31) / 32, first = own / 32;
  for (int64_t w = first + threadIdx.x / kWarp; w < words; w += kWarps) {
    const int64_t t = w * 32 + threadIdx.x % kWarp;
    const uint32_t mask = __ballot_sync(kAllLanes, t >= own && t < p.rows && p.tokens[t] == token);
    if (threadIdx.x % kWarp == 0) has_token[w] = mask;
  }
  __syncthreads();
  float* gradient = p.gradient + int64_t{token} * p.width;
  for (int64_t base = threadIdx.x; base < p.width; base += kColumnsAtOnce) {
    const auto each = [&](const auto& use) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (base + i * kThreads < p.width) use(i, base + i * kThreads);
    };
    float sums[8];
    each([&](int i, int64_t d) { sums[i] = gradient[d]; });
    for (int64_t w = first; w < words; ++w)
      for (uint32_t mask = has_token[w]; mask; mask &= mask - 1) {
        const float* dx = p.dx + (w * 32 + __ffs(mask) - 1) * p.width;
        each([&](int i, int64_t d) { sums[i] = sums[i] + dx[d] * p.scale; });
      }
    each([&](int i, int64_t d) { gradient[d] = sums[i]; });
  }
}

}  // namespace

void bias_gradient(const BiasGradientParams& p, const Execution& on) {
  if (p.columns.count == 0) return;
  launch("a bias's gradient", bias_gradient_kernel, chains(p.columns.count), on, p);
}
void norm_gradient(const NormGradientParams& p, const Execution& on) {
  if (p.width <= kNarrow)
    return launch("a norm's gradient", norm_gradient_kernel<kNarrowColumns>,
                  chains(p.width, kNarrowColumns), on, p);
  launch("a norm's gradient", norm_gradient_kernel<kWideColumns>, chains(p.width), on, p);
}
void layer_norm_gradient(const LayerNormGradientParams& p, const Execution& on) {
  launch("a norm's gradient", layer_norm_gradient_kernel, chains(p.norm.width), on, p);
}
void squares(const SquaresParams& p, const Execution& on) {
  if (p.count == 0) return;
  launch("squares of gradients", squares_kernel,
         {static_cast<int>(p.count), kSquareThreads, kSquareBytes}, on, p);
}
void embed_gradient(const EmbedGradientParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const int64_t bytes = (p.rows + 31) / 32 * int64_t{sizeof(uint32_t)};
  CHECK(bytes <= kMaxSharedBytes, "rows of an embedding's gradient");
  launch("the embedding's gradient", embed_gradient_kernel,
         {static_cast<int>(p.rows), kThreads, static_cast<int>(bytes)}, on, p);
}

}  // namespace invar::cuda
