// Products of e4m3 numbers (numerics 2.2, 2.5): rows become numbers, and the choice of a kernel.
#include "kernels/cuda/fp8.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/fp8_rows.cuh"
#include "kernels/cuda/int8.h"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 128, kLanes = 16, kAtOnce = 8;  // 16 lanes with 8 elements each: a group
static_assert(kLanes * kAtOnce == orders::kFp8Group);

// The group with scale `slot` of a row: its columns, [first, end), or none.
struct GroupColumns {
  int first, end;

  __device__ GroupColumns(int slot, int run_columns, int runs) : first(0), end(0) {
    constexpr int kGroup = orders::kFp8Group;
    for (int run = 0; run < runs; ++run) {
      const int block = (slot - run) * kGroup, from = run * run_columns, to = from + run_columns;
      if (block + kGroup <= from || block >= to) continue;
      first = max(block, from);
      end = min(block + kGroup, to);
    }
  }
};

__global__ __launch_bounds__(kThreads) void quantise_kernel(QuantiseParams p, int slots) {
  let_next_kernel_start();
  wait_for_kernels_before();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes, t = i / slots;
  if (t >= p.rows) return;  // all lanes of a group
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const GroupColumns group(static_cast<int>(i % slots), static_cast<int>(p.width / p.split_k),
                           p.split_k);
  const int column = group.first + lane * kAtOnce;
  const bool is_mine = column < group.end;
  uint4 v = {0, 0, 0, 0};
  if (is_mine)
    v = *reinterpret_cast<const uint4*>(static_cast<const bf16_t*>(p.x.data) + t * p.x.stride +
                                        column);
  int largest = largest_of(0, v);
  const uint32_t lanes = 0xffffu << (threadIdx.x / kLanes % 2 * kLanes);
#pragma unroll
  for (int apart = kLanes / 2; apart >= 1; apart /= 2)
    largest = max(largest, __shfl_xor_sync(lanes, largest, apart));
  if (!is_mine) return;
  const Fp8Scale scale(largest);
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(p.out.data) + t * p.out.stride + column) = {
      scale.four(v.x, v.y), scale.four(v.z, v.w)};
  if (lane == 0) p.out.scales[i] = {scale.stored(), 0};
}

// By rows: a block a run, eight elements of each thread at a time; pad columns are zeros and stay
// so.
__global__ __launch_bounds__(kThreads) void quantise_rows_kernel(QuantiseParams p) {
  __shared__ int parts[kThreads / kWarp];
  let_next_kernel_start();
  wait_for_kernels_before();
  const int64_t i = blockIdx.x, t = i / p.split_k, length = p.width / p.split_k,
                first = i % p.split_k * length, eights = length / kAtOnce;
  const auto* x =
      reinterpret_cast<const uint4*>(static_cast<const bf16_t*>(p.x.data) + t * p.x.stride + first);
  auto* q = reinterpret_cast<uint2*>(static_cast<uint8_t*>(p.out.data) + t * p.out.stride + first);
  int largest = 0;
  for (int64_t e = threadIdx.x; e < eights; e += kThreads) largest = largest_of(largest, x[e]);
  parts[threadIdx.x / kWarp] = __reduce_max_sync(kAllLanes, largest);
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) largest = max(largest, parts[warp]);
  const Fp8Scale scale(largest);
  for (int64_t e = threadIdx.x; e < eights; e += kThreads) {
    const uint4 v = x[e];
    q[e] = {scale.four(v.x, v.y), scale.four(v.z, v.w)};
  }
  if (threadIdx.x == 0) p.out.scales[i] = {scale.stored(), 0};
}

void check_numbers(const Activation& x, const Matrix& w, int64_t rows, int split_k) {
  const bool becomes = w.type == DType::e4m3_row && x.type == DType::bf16;
  CHECK(is_e4m3(w.type) && (x.type == w.type || (becomes && makes_integers(w, rows, split_k))),
        "a product of e4m3 numbers");
  CHECK(w.layout == WeightLayout::rows, "products of e4m3 numbers take weights in rows");
  CHECK(w.k % orders::kFp8Group == 0 && (split_k == 1 || w.k / split_k % kLeafPad == 0),
        "whole blocks of e4m3 numbers in runs of whole leaves");
}

}  // namespace

void quantise_fp8(const QuantiseParams& p, const Execution& on) {
  CHECK(p.x.type == DType::bf16 && is_e4m3(p.out.type), "what is quantised is bf16");
  CHECK(p.width % orders::kFp8Group == 0, "whole blocks of e4m3 numbers");
  if (p.rows == 0) return;
  if (p.out.type == DType::e4m3_row)
    return launch("quantising rows", quantise_rows_kernel,
                  {.blocks = static_cast<int>(p.rows) * p.split_k,
                   .threads = kThreads,
                   .shared_bytes = 0,
                   .early = true},
                  on, p);
  const auto slots = static_cast<int>(orders::fp8_groups(p.width, p.split_k));
  const int64_t blocks = (p.rows * slots * kLanes + kThreads - 1) / kThreads;
  launch(
      "quantising rows", quantise_kernel,
      {.blocks = static_cast<int>(blocks), .threads = kThreads, .shared_bytes = 0, .early = true},
      on, p, slots);
}

void fp8_matmul(const MatmulParams& p, const Execution& on) {
  check_numbers(p.x, p.w, p.rows, p.split_k);
  if (p.rows == 0) return;
  if (p.w.type == DType::e4m3_row)
    return (p.rows <= kMostFewFp8Rows ? few_fp8_row_matmul : fp8_row_tiles_matmul)(p, on);
  const bool is_few = p.rows <= kMostFewFp8Rows && p.w.k / p.split_k % orders::kFp8Group == 0;
  is_few ? few_fp8_matmul(p, on) : fp8_tiles_matmul(p, on);
}

void fp8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  check_numbers(p.x, p.gate_up, p.rows, 1);
  if (p.rows == 0) return;
  if (p.gate_up.type == DType::e4m3_row)
    return (p.rows <= kMostFewFp8Rows ? few_fp8_row_gated : fp8_row_tiles_gated)(p, on);
  p.rows <= kMostFewFp8Rows ? few_fp8_gated(p, on) : fp8_tiles_gated(p, on);
}

}  // namespace invar::cuda
