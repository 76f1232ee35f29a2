// A x of low-rank adapters: see adapters.cuh.
#include "kernels/cuda/adapters.cuh"
#include "kernels/cuda/product.cuh"

namespace invar::cuda {

namespace {

using namespace adapters;

struct Shrink {
  AdapterTables tables;
  Activation x;
  float* sums;
  int64_t sums_stride;
  int split_k;

  __device__ Work work() const {
    return work_of(tables, tables.inner_units, 1,
                   [](const AdapterSlot::Tensor& to) { return units_of(to.rank); });
  }
  // The elements of a run, which is whole leaves.
  __device__ int64_t run_elements() const { return round_up(tables.k / split_k, kLeafPad); }
  __device__ float* sum_at(const Work& work, int row, int output) const {
    return sums + work.rows[row] * sums_stride + work.tensor->inner + work.first * kUnit + output;
  }
};

constexpr int kShrinkWarps = 8;

// The operands of some steps, in registers: memory is asked for all of them at once.
template <int kEights, int kSteps>
struct Piece {
  PanelStep weights[kSteps];
  uint2 rows[kEights][kSteps];

  // `a` and `x` at the lane's words; of `steps`, from `first` on.
  __device__ __forceinline__ void load_weights(const uint32_t* a, int first, int steps) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) weights[s] = PanelStep::load(a, min(first + s, steps - 1));
  }
  __device__ __forceinline__ void load_rows(const bf16_t* const (&x)[kEights], int first,
                                            int steps) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        rows[e][s] = *reinterpret_cast<const uint2*>(x[e] + min(first + s, steps - 1) * 16);
  }
  __device__ __forceinline__ void add_to(float (&d)[kEights][4], int count) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s >= count) break;
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        step(d[e], weights[s].operands(), {{rows[e][s].x, rows[e][s].y}});
    }
  }
};

// A chain that several warps have in turn, a piece each: while one adds its own, the others' are on
// their way from memory.
template <int kValues>
struct Relay {
  float* at;  // [kShrinkWarps][kValues][kWarp]: what a warp goes on from
  int team, teams;

  static __device__ __forceinline__ int name_of(int warp) { return 1 + warp; }
  __device__ __forceinline__ float* place(int warp) const {
    return at + warp * kValues * kWarp + threadIdx.x % kWarp;
  }
  __device__ __forceinline__ void take(float (&d)[kValues]) const {
    const int warp = threadIdx.x / kWarp;
    named_sync(name_of(warp), 2 * kWarp);
#pragma unroll
    for (int v = 0; v < kValues; ++v) d[v] = place(warp)[v * kWarp];
  }
  __device__ __forceinline__ void give(const float (&d)[kValues]) const {
    const int warp = threadIdx.x / kWarp, to = warp - team + (team + 1) % teams;
#pragma unroll
    for (int v = 0; v < kValues; ++v) place(to)[v * kWarp] = d[v];
    named_arrive(name_of(to), 2 * kWarp);
  }
};

// Warps have a run of the dots of 16 outputs and up to 8 * kEights rows, as mma.cuh lays them out;
// the runs share the warps out.
template <int kEights>
__global__ __launch_bounds__(kShrinkWarps* kWarp) void shrink_by_steps_kernel(
    const __grid_constant__ Shrink p) {
  constexpr int kSteps = kEights == 1 ? 32 : 16, kValues = kEights * 4;
  __shared__ float kept[kShrinkWarps * kValues * kWarp];
  const int lane = threadIdx.x % kWarp, teams = kShrinkWarps / p.split_k,
            run = threadIdx.x / kWarp / teams, i = lane / 4, word = lane % 4;
  const Relay<kValues> relay{kept, static_cast<int>(threadIdx.x) / kWarp % teams, teams};
  let_next_kernel_start();
  const Work work = p.work();
  if (!work.slot) return wait_for_kernels_before();
  const int64_t padded = round_up(p.tables.k, kLeafPad), of_run = p.run_elements();
  const uint32_t* a =
      words_of(work.slot->a, work.tensor->inner / kUnit + work.first, padded, run * of_run / 2);
  const bf16_t* x[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e)
    x[e] = static_cast<const bf16_t*>(p.x.data) +
           work.rows[min(e * 8 + i, work.count - 1)] * p.x.stride + run * of_run + word * 4;

  const int steps = static_cast<int>(of_run / 16), pieces = (steps + kSteps - 1) / kSteps;
  Piece<kEights, kSteps> piece;
  piece.load_weights(a, relay.team * kSteps, steps);
  wait_for_kernels_before();
  float d[kEights][4] = {};
  float(&sum)[kValues] = reinterpret_cast<float(&)[kValues]>(d);
  for (int at = relay.team; at < pieces; at += teams) {
    if (at > relay.team) piece.load_weights(a, at * kSteps, steps);
    piece.load_rows(x, at * kSteps, steps);
    if (at > 0 && teams > 1) relay.take(sum);
    piece.add_to(d, steps - at * kSteps);
    if (at + 1 < pieces && teams > 1) relay.give(sum);
  }

  const bool has_run = relay.team == (pieces - 1) % teams;
  if (p.split_k > 1) {
    __syncthreads();  // all has been taken
    if (has_run)
#pragma unroll
      for (int v = 0; v < kValues; ++v) kept[(run * kValues + v) * kWarp + lane] = sum[v];
    __syncthreads();
    if (threadIdx.x >= kWarp) return;
    RunTree<kValues> tree;
    for (int r = 0; r < p.split_k; ++r) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) sum[v] = kept[(r * kValues + v) * kWarp + lane];
      tree.add(r, sum);
    }
  } else if (!has_run) {
    return;
  }
#pragma unroll
  for (int v = 0; v < kValues; ++v)
    if (const int row = v / 4 * 8 + 2 * word + v % 2; row < work.count)
      *p.sum_at(work, row, 2 * i + v / 2 % 2) = sum[v] + 0.0f;
}

// Leaves are chains of their own: teams take one each, then they are added one after the other.
template <typename T>
__global__ __launch_bounds__(kThreads) void shrink_by_leaves_kernel(
    const __grid_constant__ Shrink p) {
  constexpr int kRows = kFewAdapterRows, kPairs = kLeafPad / 2;
  __shared__ float leaves[kTeams][kRows][kUnit];
  const int team = threadIdx.x / kUnit, output = threadIdx.x % kUnit;
  let_next_kernel_start();
  const Work work = p.work();
  wait_for_kernels_before();
  if (!work.slot) return;
  const int64_t padded = round_up(p.tables.k, kLeafPad);
  const T* panel = static_cast<const T*>(work.slot->a) +
                   (work.tensor->inner / kUnit + work.first) * kUnit * padded;
  const T* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    x[r] = static_cast<const T*>(p.x.data) + work.rows[min(r, work.count - 1)] * p.x.stride;

  const int of_run = static_cast<int>(p.run_elements() / kLeafPad), all = of_run * p.split_k;
  RunTree<1> tree;
  float sum[1] = {0.0f};
  int run = 0, left = of_run;
  for (int first = 0; first < all; first += kTeams) {
    if (first + team < all) {
      float even[kRows] = {}, odd[kRows] = {};
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int64_t pair = int64_t{first + team} * kPairs + j;
        const float2 weight = weight_pair(panel, pair, output);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float2 value = widened(x[r] + 2 * pair);
          even[r] = __fmaf_rn(value.x, weight.x, even[r]);
          odd[r] = __fmaf_rn(value.y, weight.y, odd[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) leaves[team][r][output] = even[r] + odd[r];
    }
    __syncthreads();
    if (team < kRows)
      for (int leaf = 0; leaf < min(kTeams, all - first); ++leaf) {
        if (left == 0) sum[0] = 0.0f, left = of_run;
        sum[0] = sum[0] + leaves[leaf][team][output];
        if (--left == 0) tree.add(run++, sum);
      }
    __syncthreads();
  }
  if (team < work.count) *p.sum_at(work, team, output) = sum[0] + 0.0f;
}

}  // namespace

template <Order order>
void adapter_shrink(const AdapterParams& p, const Execution& on) {
  if (!has_rows(p)) return;
  check_tables<order>(p);
  const Shrink shrink{p.tables, p.x, p.sums, p.sums_stride, p.split_k};
  LaunchShape shape{.blocks = p.tables.num_tiles * p.tables.inner_units,
                    .threads = kThreads,
                    .shared_bytes = 0,
                    .early = true};
  auto* kernel =
      p.x.type == DType::bf16 ? shrink_by_leaves_kernel<bf16_t> : shrink_by_leaves_kernel<float>;
  if constexpr (order == Order::hopper) {
    kernel = p.tables.tile_rows == kManyAdapterRows ? shrink_by_steps_kernel<4>
                                                    : shrink_by_steps_kernel<1>;
    shape.threads = kShrinkWarps * kWarp;
  }
  launch("multiplying with adapters", kernel, shape, on, shrink);
}

template void adapter_shrink<Order::portable>(const AdapterParams&, const Execution&);
template void adapter_shrink<Order::hopper>(const AdapterParams&, const Execution&);

}  // namespace invar::cuda
