// Products of e4m3 numbers (numerics 2.2): rows become numbers, and the choice of a kernel.
#include "kernels/cuda/fp8.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/int8_rows.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

namespace {

constexpr int kThreads = 128, kLanes = 16, kAtOnce = 8;  // 16 lanes with 8 elements each: a group
static_assert(kLanes * kAtOnce == orders::kFp8Group);

// Four numbers to nearest, ties to even, as bytes.
__device__ __forceinline__ uint32_t four_e4m3(uint2 elements, float inverse) {
  const auto pair = [&](uint32_t word) {
    const float low = __uint_as_float(word << 16) * inverse,
                high = __uint_as_float(word & 0xffff0000) * inverse;
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return static_cast<uint32_t>(both);
  };
  return pair(elements.x) | pair(elements.y) << 16;
}

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
  const bool is_finite = largest < 0x7f80;
  float scale = __fdiv_rn(bf16_to_f32(static_cast<bf16_t>(largest)), 448.0f);
  if (scale == 0.0f) scale = 1.0f;
  const float inverse = 1.0f / scale;
  uint2 q = {0, 0};
  if (is_finite) q = {four_e4m3({v.x, v.y}, inverse), four_e4m3({v.z, v.w}, inverse)};
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(p.out.data) + t * p.out.stride + column) = q;
  if (lane == 0) p.out.scales[i] = {is_finite ? scale : __uint_as_float(0x7fffffff), 0};
}

void check_numbers(const Activation& x, const Matrix& w, int split_k) {
  CHECK(w.type == DType::e4m3 && x.type == DType::e4m3, "a product of e4m3 numbers");
  CHECK(w.layout == WeightLayout::rows, "products of e4m3 numbers take weights in rows");
  CHECK(w.k % orders::kFp8Group == 0 && (split_k == 1 || w.k / split_k % kLeafPad == 0),
        "whole blocks of e4m3 numbers in runs of whole leaves");
}

}  // namespace

void quantise_fp8(const QuantiseParams& p, const Execution& on) {
  CHECK(p.x.type == DType::bf16 && p.out.type == DType::e4m3, "what is quantised is bf16");
  CHECK(p.width % orders::kFp8Group == 0, "whole blocks of e4m3 numbers");
  if (p.rows == 0) return;
  const auto slots = static_cast<int>(orders::fp8_groups(p.width, p.split_k));
  const int64_t blocks = (p.rows * slots * kLanes + kThreads - 1) / kThreads;
  launch(
      "quantising rows", quantise_kernel,
      {.blocks = static_cast<int>(blocks), .threads = kThreads, .shared_bytes = 0, .early = true},
      on, p, slots);
}

void fp8_matmul(const MatmulParams& p, const Execution& on) {
  check_numbers(p.x, p.w, p.split_k);
  if (p.rows == 0) return;
  const bool is_few = p.rows <= kMostFewFp8Rows && p.w.k / p.split_k % orders::kFp8Group == 0;
  is_few ? few_fp8_matmul(p, on) : fp8_tiles_matmul(p, on);
}

void fp8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  check_numbers(p.x, p.gate_up, 1);
  if (p.rows == 0) return;
  p.rows <= kMostFewFp8Rows ? few_fp8_gated(p, on) : fp8_tiles_gated(p, on);
}

}  // namespace invar::cuda
