// From the residual stream of very few rows to what their experts read (order `hopper`): the norm,
// the router's product, the choice and the order of the rows in one kernel, a cluster of blocks.
// Every block normalises the rows for itself and has some of the router's outputs; the first one
// gets all logits and chooses. Apart these are four kernels that wait for each other.
#include "kernels/cuda/at_once.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/experts_few.cuh"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/product_thin.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = kRowThreads, kWarps = kThreads / kWarp, kMostBlocks = 8, kMostRows = 4;

template <int kEach>
using Choices = FewChoices<kEach, kWarps>;

__device__ __forceinline__ void store_in_cluster(uint32_t to, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

// Where things lie in shared memory: weights, rows, logits, what is chosen.
struct RouterRoom {
  int outputs;  // of a block, whole 16
  int rows_at, logits_at, choices_at, logits_stride;

  RouterRoom(const MatmulParams& p) {
    const int k = static_cast<int>(p.w.row_elements()), rows = static_cast<int>(p.rows);
    outputs = ceil_div(p.w.n, kMostBlocks * thin::kOutputs) * thin::kOutputs;
    logits_stride = static_cast<int>(round_up(p.w.n, 4));
    rows_at = outputs * (k + thin::kWeightPad) * static_cast<int>(sizeof(bf16_t));
    logits_at = rows_at + rows * (k + thin::kRowPad) * static_cast<int>(sizeof(bf16_t));
    choices_at = static_cast<int>(
        round_up(logits_at + rows * logits_stride * static_cast<int>(sizeof(float)), 16));
  }
  int blocks(const MatmulParams& p) const { return ceil_div(p.w.n, outputs); }
};

// The normed rows in shared memory, and by one block where others read them.
template <int kPer>
__device__ __forceinline__ void norm_rows(const RmsNormParams& p, const float (&weight)[kPer],
                                          bf16_t* rows, int stride, bool writes) {
  __shared__ float lanes[2][64];
  const int width = static_cast<int>(p.width), padded = static_cast<int>(round_up(width, kLeafPad));
  for (int t = 0; t < p.rows; ++t) {
    float x[kPer];
    load_row(p.x + t * p.x_stride, width, x);
    const float rs = inverse_rms(x, static_cast<float>(width), p.eps, lanes[t % 2]);
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = (x[j] * rs) * weight[j];
    write_row(x, rows + t * stride, padded);
    if (writes) write_row(x, static_cast<bf16_t*>(p.out.data) + t * p.out.stride, padded);
  }
}

// This block's logits, to where they are asked for and into the first block's shared memory.
__device__ __forceinline__ void multiply(const PlainEnd& end, const RouterRoom& room,
                                         const bf16_t* weights, const bf16_t* x, int rows, int k,
                                         uint32_t logits) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warp * thin::kOutputs >= room.outputs) return;
  float d[4];
  thin::dots(weights + warp * thin::kOutputs * (k + thin::kWeightPad), x, rows, k, d);
  const int first = static_cast<int>(cluster_rank()) * room.outputs + warp * thin::kOutputs;
  const uint32_t to = address_in(0, logits);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int t = lane % 4 * 2 + j % 2, output = first + lane / 4 * 2 + j / 2;
    if (t >= rows || output >= end.n) continue;
    const float value = end.finished(output, d[j], 0.0f);
    end.y[t * end.stride + output] = value;
    store_in_cluster(to + (t * room.logits_stride + output) * static_cast<int>(sizeof(float)),
                     value);
  }
}

// Row rows_of[place] at every place of the experts that are here; a warp takes a row.
__device__ __forceinline__ void gather(const ChooseExpertsParams& p, const int32_t* places,
                                       const int32_t* rows_of, const bf16_t* rows, int stride) {
  const GatherRowsParams& g = p.gather;
  const int pairs = static_cast<int>(p.sort.rows) * p.sort.chosen,
            first = static_cast<int>(g.begin - p.sort.begin), begin = below(places, pairs, first),
            end = below(places, pairs, first + g.experts),
            count = static_cast<int>(round_up(g.width, kLeafPad) * sizeof(bf16_t) / sizeof(uint4));
  for (int place = begin + static_cast<int>(threadIdx.x) / kWarp; place < end; place += kWarps) {
    const auto* from = reinterpret_cast<const uint4*>(rows + rows_of[place] * stride);
    auto* to = reinterpret_cast<uint4*>(static_cast<bf16_t*>(g.out.data) + place * g.out.stride);
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x) % kWarp; i < count; i += kWarp) to[i] = from[i];
  }
}

template <int kPer, int kEach>
__global__ __launch_bounds__(kThreads) void router_kernel(const RouteExpertsParams p,
                                                          const PlainEnd end,
                                                          const RouterRoom room) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int k = static_cast<int>(p.router.w.row_elements()), rows = static_cast<int>(p.router.rows),
            stride = k + thin::kRowPad, rank = static_cast<int>(cluster_rank());
  bf16_t *weights = reinterpret_cast<bf16_t*>(shared),
         *x = reinterpret_cast<bf16_t*>(shared + room.rows_at);
  cluster_arrive();  // that this block runs; awaited before others write into its memory
  thin::copy_weights(weights, p.router.w, rank * room.outputs, room.outputs);
  float weight[kPer];
  load_row(p.norm.weight, static_cast<int>(p.norm.width), weight);
  wait_for_kernels_before();
  norm_rows(p.norm, weight, x, stride, rank == static_cast<int>(gridDim.x) - 1);
  thin::wait_for_copies();
  __syncthreads();
  cluster_wait();
  multiply(end, room, weights, x, rows, k, shared_address(shared + room.logits_at));
  let_next_kernel_start();  // not before, as in experts_rows.cu
  __syncwarp();
  cluster_arrive();
  if (rank > 0) return;
  cluster_wait();
  Choices<kEach>& choices = *reinterpret_cast<Choices<kEach>*>(shared + room.choices_at);
  RouteParams route = p.choose.route;
  route.logits = reinterpret_cast<const float*>(shared + room.logits_at);
  route.stride = room.logits_stride;
  choose_few(route, p.choose.sort, choices, true);
  gather(p.choose, choices.places, choices.rows_of, x, stride);
}

bool takes(const RouteExpertsParams& p, int shared_bytes) {
  return p.router.rows <= kMostRows && p.router.split_k == 1 && p.router.w.type == DType::bf16 &&
         p.norm.width <= 4096 && p.choose.route.how.experts <= 8 * kWarp &&
         p.norm.out.type == DType::bf16 && shared_bytes <= kMaxSharedBytes;
}

template <int kPer, int kEach>
void launch_router(const RouteExpertsParams& p, const RouterRoom& room, const Execution& on) {
  launch("routing", router_kernel<kPer, kEach>,
         {.blocks = room.blocks(p.router),
          .threads = kThreads,
          .shared_bytes = room.choices_at + static_cast<int>(sizeof(Choices<kEach>)),
          .cluster = room.blocks(p.router),
          .early = true},
         on, p, end_of(p.router), room);
}

}  // namespace

void route_experts(const RouteExpertsParams& p, const Execution& on) {
  if (p.norm.rows == 0) return;
  const RouterRoom room(p.router);
  if (!takes(p, room.choices_at + static_cast<int>(sizeof(Choices<8>)))) {
    rms_norm(p.norm, on);
    kernels(Order::hopper).matmul(p.router, on);
    return choose_experts(p.choose, on);
  }
  const bool is_narrow = p.norm.width <= 2048, are_few = p.choose.route.how.experts <= 4 * kWarp;
  const auto launch_it = is_narrow ? are_few ? launch_router<8, 4> : launch_router<8, 8>
                         : are_few ? launch_router<16, 4>
                                   : launch_router<16, 8>;
  launch_it(p, room, on);
}

}  // namespace invar::cuda
