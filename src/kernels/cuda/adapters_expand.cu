// y = y + B act(s A x) of low-rank adapters, from the sums of A x: see adapters.cuh.
#include "kernels/cuda/adapters.cuh"

namespace invar::cuda {

namespace {

using namespace adapters;

struct Expand {
  AdapterTables tables;
  const float* sums;
  int64_t sums_stride;
  float* y;
  int64_t y_stride;

  // Tensors begin with blocks of their own.
  __host__ __device__ int blocks_of_tile() const {
    return (units_of(tables.outputs) + kOutputUnits - 1) / kOutputUnits + kMostAdapterTensors;
  }
  __device__ Work work() const {
    return work_of(tables, blocks_of_tile(), kOutputUnits,
                   [](const AdapterSlot::Tensor& to) { return units_of(to.n); });
  }
  __device__ float u(const Work& work, int row, int r) const {
    const AdapterSlot::Tensor& to = *work.tensor;
    return r < to.rank ? sums[work.rows[row] * sums_stride + to.inner + r] * to.scale : 0.0f;
  }
};

constexpr int kExpandWarps = 4;

// A warp's operands for some units of a tensor's outputs. A lane's dots lie as mma.cuh says.
template <int kEights>
struct Units {
  static constexpr int kUnits = kEights == 1 ? 4 : 1, kValues = kEights * 4;
  PanelStep weights[kUnits];
  float y[kUnits][kValues];

  // Step s of B for the units from `unit` on, those past the last one again.
  __device__ __forceinline__ void load_weights(const AdapterSlot::Tensor& to, int unit, int s) {
    const int64_t padded = round_up(to.rank, kLeafPad);
    const int last = units_of(to.n) - 1;
#pragma unroll
    for (int q = 0; q < kUnits; ++q)
      weights[q] = PanelStep::load(words_of(to.b, min(unit + q, last), padded, 0), s);
  }
};

// B is on its way before the kernels before are done, and y before what is added to it is known.
template <int kEights>
__global__ __launch_bounds__(kExpandWarps* kWarp) void expand_by_steps_kernel(
    const __grid_constant__ Expand p) {
  constexpr int kUnits = Units<kEights>::kUnits, kValues = Units<kEights>::kValues;
  // Rows of u an odd number of 8 words apart, in different banks.
  __shared__ __align__(16) bf16_t u[8 * kEights][kMostRank + 16];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, word = lane % 4;
  let_next_kernel_start();
  const Work work = p.work();
  if (!work.slot) return wait_for_kernels_before();
  const AdapterSlot::Tensor to = *work.tensor;
  const int steps = units_of(to.rank), end = min(work.first + kOutputUnits, units_of(to.n));
  int unit = work.first + warp * kUnits;
  float* rows[2 * kEights];  // of y: rows 2j and 2j + 1 of each eight
#pragma unroll
  for (int e = 0; e < 2 * kEights; ++e)
    rows[e] = p.y + work.rows[min(e / 2 * 8 + 2 * word + e % 2, work.count - 1)] * p.y_stride;
  const auto output_of = [&](int q, int v) { return (unit + q) * kUnit + 2 * i + v / 2 % 2; };
  const auto place_of = [&](int q, int v) {
    return rows[v / 4 * 2 + v % 2] + column_of(to, output_of(q, v));
  };
  const auto is_there = [&](int q, int v) {
    return v / 4 * 8 + 2 * word + v % 2 < work.count && output_of(q, v) < to.n;
  };
  Units<kEights> units;
  const auto load_y = [&] {
#pragma unroll
    for (int q = 0; q < kUnits; ++q)
#pragma unroll
      for (int v = 0; v < kValues; ++v)
        if (is_there(q, v)) units.y[q][v] = *place_of(q, v);
  };
  units.load_weights(to, unit, 0);
  wait_for_kernels_before();
  load_y();
  for (int at = threadIdx.x; at < work.count * steps * 16; at += kExpandWarps * kWarp) {
    const int row = at / (steps * 16), r = at % (steps * 16);
    u[row][r] = f32_to_bf16(p.u(work, row, r));
  }
  __syncthreads();

  while (unit < end) {
    const int next = unit + kExpandWarps * kUnits;
    float d[kUnits][kEights][4] = {};
    for (int s = 0; s < steps; ++s) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const StepRows row = load_row(reinterpret_cast<const uint32_t*>(u[e * 8 + i]), s, lane);
#pragma unroll
        for (int q = 0; q < kUnits; ++q) step(d[q][e], units.weights[q].operands(), row);
      }
      const bool is_last = s + 1 == steps;
      units.load_weights(to, is_last ? next : unit, is_last ? 0 : s + 1);
    }
#pragma unroll
    for (int q = 0; q < kUnits; ++q)
#pragma unroll
      for (int v = 0; v < kValues; ++v)
        if (is_there(q, v)) *place_of(q, v) = units.y[q][v] + (d[q][v / 4][v % 4] + 0.0f);
    unit = next;
    if (unit < end) load_y();
  }
}

// A lane is an output and has the chains of all rows.
template <typename T>
__global__ __launch_bounds__(kThreads) void expand_by_leaves_kernel(
    const __grid_constant__ Expand p) {
  constexpr int kRows = kFewAdapterRows, kPairs = kLeafPad / 2;
  __shared__ __align__(16) T u[kRows][kMostRank];
  const int team = threadIdx.x / kUnit, lane = threadIdx.x % kUnit;
  let_next_kernel_start();
  const Work work = p.work();
  wait_for_kernels_before();
  if (!work.slot) return;
  const AdapterSlot::Tensor to = *work.tensor;
  const int padded = static_cast<int>(round_up(to.rank, static_cast<int>(kLeafPad)));
  for (int at = threadIdx.x; at < kRows * padded; at += kThreads) {
    const int row = at / padded, r = at % padded;
    store({u, sizeof(T) == 2 ? DType::bf16 : DType::f32, 0}, row * kMostRank + r,
          row < work.count ? p.u(work, row, r) : 0.0f);
  }
  __syncthreads();
  const int end = min(work.first + kOutputUnits, units_of(to.n));
  for (int unit = work.first + team; unit < end; unit += kTeams) {
    const T* panel = static_cast<const T*>(to.b) + int64_t{unit} * kUnit * padded;
    float sum[kRows] = {};
    for (int leaf = 0; leaf < padded / kLeafPad; ++leaf) {
      float even[kRows] = {}, odd[kRows] = {};
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float2 weight = weight_pair(panel, leaf * kPairs + j, lane);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float2 value = widened(u[r] + leaf * kLeafPad + 2 * j);
          even[r] = __fmaf_rn(value.x, weight.x, even[r]);
          odd[r] = __fmaf_rn(value.y, weight.y, odd[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] = sum[r] + (even[r] + odd[r]);
    }
    const int n = unit * kUnit + lane;
    if (n >= to.n) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (r < work.count) {
        float* y = p.y + work.rows[r] * p.y_stride + column_of(to, n);
        *y = *y + (sum[r] + 0.0f);
      }
  }
}

}  // namespace

template <Order order>
void adapter_expand(const AdapterParams& p, const Execution& on) {
  if (!has_rows(p)) return;
  check_tables<order>(p);
  const Expand expand{p.tables, p.sums, p.sums_stride, p.y, p.y_stride};
  LaunchShape shape{.blocks = p.tables.num_tiles * expand.blocks_of_tile(),
                    .threads = kThreads,
                    .shared_bytes = 0,
                    .early = true};
  auto* kernel =
      p.x.type == DType::bf16 ? expand_by_leaves_kernel<bf16_t> : expand_by_leaves_kernel<float>;
  if constexpr (order == Order::hopper) {
    kernel = p.tables.tile_rows == kManyAdapterRows ? expand_by_steps_kernel<4>
                                                    : expand_by_steps_kernel<1>;
    shape.threads = kExpandWarps * kWarp;
  }
  launch("multiplying with adapters", kernel, shape, on, expand);
}

template void adapter_expand<Order::portable>(const AdapterParams&, const Execution&);
template void adapter_expand<Order::hopper>(const AdapterParams&, const Execution&);

}  // namespace invar::cuda
