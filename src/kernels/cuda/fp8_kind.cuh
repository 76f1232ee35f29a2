// What products of e4m3 numbers (numerics 2.2) of few and of many rows share: groups of columns,
// operands for TMA, scales, and the promotion of a group's chain.
#pragma once

#include <utility>

#include "kernels/cuda/fp8.h"
#include "kernels/cuda/product_kinds.cuh"
#include "kernels/cuda/wgmma_e4m3.cuh"

namespace invar::cuda {

// The groups of a row, in order: parts of blocks of 128 columns, cut where a run ends.
struct Fp8Group {
  int first = 0, run = 0;

  __device__ __forceinline__ int block() const { return first / kLineBytes; }
  __device__ __forceinline__ int x_scale() const { return block() + run; }
  // Its columns, in steps of 32.
  __device__ __forceinline__ int steps(int run_columns) const {
    return (end(run_columns) - first) / 32;
  }
  // On to the next group; where runs are whole blocks, so are groups.
  template <bool kWhole>
  __device__ __forceinline__ void next(int run_columns) {
    first = kWhole ? first + kLineBytes : end(run_columns);
    if (first == (run + 1) * run_columns) ++run;
  }
  // The same `count` times, but not past the end of `runs` runs.
  template <bool kWhole>
  __device__ __forceinline__ void skip(int count, int run_columns, int runs) {
    for (int i = 0; i < count && run < runs; ++i) next<kWhole>(run_columns);
  }

 private:
  __device__ __forceinline__ int end(int run_columns) const {
    return min((block() + 1) * kLineBytes, (run + 1) * run_columns);
  }
};

// The operands of a product but what TMA brings.
struct Fp8Kind {
  const RunScale* x;  // [row][slot]
  const char* w;      // the scales of row 0 of the weights
  int64_t unit_bytes, all_rows;
  int n, k, runs, slots;

  template <typename Params>
  Fp8Kind(const Params& p, const Matrix& m)
      : x(p.x.scales),
        w(static_cast<const char*>(m.data) + m.scales_at()),
        unit_bytes(m.unit_bytes()),
        all_rows(m.all_rows()),
        n(static_cast<int>(m.n)),
        k(static_cast<int>(m.k)),
        runs(split_k_of(p)),
        slots(static_cast<int>(scales_of_row(DType::e4m3, m.k, split_k_of(p)))) {}

  __device__ __host__ int run_columns() const { return k / runs; }
  // Rows as they are, not cut into runs: a box begins where a group does.
  static ProductMaps maps(const MatmulParams& p, int x_rows, int w_rows) {
    return {int8_rows_map(p.x.data, p.w.k, p.rows, p.x.stride, 1, x_rows, 1),
            int8_rows_map(p.w.data, p.w.k, p.w.n, p.w.unit_bytes(), 1, w_rows, 1)};
  }
  static ProductMaps maps(const GatedMatmulParams& p, int x_rows, int w_rows) {
    return Int8Kind::maps(p, x_rows, w_rows);
  }

  // The scales of an output of matrix m of the stack, one for each block; an output that does not
  // exist has those of the last one.
  __device__ __forceinline__ const float* weight_scales(int output, int m) const {
    return reinterpret_cast<const float*>(w + (m * all_rows + min(output, n - 1)) * unit_bytes);
  }
  // Those of a row of a tile of weights that begins with row `first`.
  template <int kMatrices>
  __device__ __forceinline__ const float* row_scales(int first, int row) const {
    if constexpr (kMatrices == 1) return weight_scales(first + row, 0);
    return weight_scales(first / 2 + row / 16 * 8 + row % 8, row / 8 % 2);
  }
  __device__ __forceinline__ const RunScale* x_scales(int64_t row) const { return x + row * slots; }
};

// Operands of a step, as wgmma_steps.cuh describes them.
struct Operands {
  uint64_t a, b;
};

// Of few rows and runs of whole blocks: weights are the instruction's rows, kTokens rows of x its
// columns. A block has the scales of its rows in shared memory, [run of the block][group][row].
template <int kTokens>
struct Fp8FewKind : Fp8Kind {
  using Sum = float;
  static constexpr bool kMakesRows = false, kMakes = true, kPromotes = true;
  static constexpr int kLine = kLineBytes;
  static constexpr int kAtOnce = 64 / kTokens;  // groups

  int made_at = 0;

  using Fp8Kind::Fp8Kind;
  using Fp8Kind::maps;
  static ProductMaps maps_in_parts(const MatmulParams& p, int x_rows, int w_rows, int parts) {
    return Int8Kind::maps_in_parts(p, x_rows, w_rows, parts);
  }

  static int bytes(int64_t k, int split_k, int of) {
    return static_cast<int>(k / split_k / kLineBytes * of * kTokens * sizeof(float));
  }
  void place(int at, int) { made_at = at; }
  __device__ __forceinline__ int groups() const { return run_columns() / kLineBytes; }

  // Fetches the scales of `rows` rows of weights from `first` on near, by as many threads.
  template <int kMatrices>
  __device__ __forceinline__ void expect(int first, int rows, int thread) const {
    if (thread < rows)
      prefetch_bytes(row_scales<kMatrices>(first, thread), static_cast<uint32_t>(unit_bytes - k));
  }
  // By so many warps: `of` runs from `first` on.
  __device__ void make(unsigned char* shared, int warps, int rows, int first, int of) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    float* to = reinterpret_cast<float*>(shared + made_at);
    for (int i = warp * kWarp + static_cast<int>(threadIdx.x) % kWarp; i < of * groups() * kTokens;
         i += warps * kWarp) {
      const int t = i % kTokens, group = i / kTokens, run = first + group / groups();
      to[i] = t < rows ? x_scales(t)[first * groups() + group + run].scale : 0.0f;
    }
  }

  // The scales of a lane's rows `row` and row + 8 of a tile of weights that begins with row
  // `first`, of run `run`. Of eight groups a lane has two in turn.
  struct WeightScales {
    const float *low, *high;
    float2 next[2];

    __device__ __forceinline__ float2 at(int group, int groups) const {
      group = min(group, groups - 1);
      return {__ldg(low + group), __ldg(high + group)};
    }
    __device__ __forceinline__ void fetch(int group, int groups) {
      const int q = static_cast<int>(threadIdx.x) % 4;
      next[0] = at(group + q, groups);
      next[1] = at(group + 4 + q, groups);
    }
  };
  template <int kMatrices>
  __device__ __forceinline__ WeightScales weight_scales_of(int first, int row, int run) const {
    WeightScales scales{row_scales<kMatrices>(first, row) + run * groups(),
                        row_scales<kMatrices>(first, row + 8) + run * groups()};
    scales.fetch(0, groups());
    return scales;
  }

  // The sums of a run, the block's `own`. `operands` are those of a stage.
  template <typename Stage>
  __device__ __forceinline__ void sum_run(float (&sum)[kTokens / 2], Ring& ring,
                                          WeightScales w_scales, int own,
                                          const Stage& operands) const {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int all = groups();
    const float* x_scale = reinterpret_cast<const float*>(shared + made_at) + own * all * kTokens +
                           threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sum[i] = 0.0f;
    for (int group = 0; group < all; group += 8) {
      const float2 w_scale[2] = {w_scales.next[0], w_scales.next[1]};
      if (group + 8 < all) w_scales.fetch(group + 8, all);
      const int count = min(all - group, 8);
      for (int i = 0; i < count;) {
        const int left = min(count - i, ring.stages);
        const float* x = x_scale + (group + i) * kTokens;
        if (left >= kAtOnce)
          i += add_groups<kAtOnce>(sum, ring, i, w_scale, x, operands);
        else if (kAtOnce > 2 && left >= kAtOnce / 2)
          i += add_groups<(kAtOnce > 2 ? kAtOnce / 2 : 1)>(sum, ring, i, w_scale, x, operands);
        else
          i += add_groups<1>(sum, ring, i, w_scale, x, operands);
      }
    }
  }

 private:
  // kCount groups, which it returns, number `first` and after of eight, whose scales the lanes of a
  // four have.
  template <int kCount, typename Stage>
  static __device__ __forceinline__ int add_groups(float (&sum)[kTokens / 2], Ring& ring, int first,
                                                   const float2 (&w_scale)[2], const float* x_scale,
                                                   const Stage& operands) {
    float chain[kCount][kTokens / 2];
    int stage[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j, ring.next()) {
      barrier_wait(ring.full_now(), ring.parity);
      stage[j] = ring.stage;
      const Operands of = operands(ring.stage);
      steps_begin();
#pragma unroll
      for (int i = 0; i < kLineBytes / 32; ++i)
        e4m3_step<kTokens>(chain[j], of.a + 2 * i, of.b + 2 * i, i != 0);
      steps_commit();
    }
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    [&]<int... j>(std::integer_sequence<int, j...>) {
      (
          [&] {
            steps_wait<kCount - 1 - j>();
            values_stay(chain[j]);
            if (lane == 0) barrier_arrive(ring.empty + 8 * stage[j]);
            const int from = lane / 4 * 4 + (first + j) % 4;
            const float2 mine = first + j < 4 ? w_scale[0] : w_scale[1];
            const float low = __shfl_sync(kAllLanes, mine.x, from),
                        high = __shfl_sync(kAllLanes, mine.y, from);
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) {
              const float both =
                  x_scale[j * kTokens + i / 4 * 8 + i % 2] * (i / 2 % 2 ? high : low);
              sum[i] = __fmaf_rn(chain[j][i], both, sum[i]);
            }
          }(),
          ...);
    }
    (std::make_integer_sequence<int, kCount>());
    return kCount;
  }
};

}  // namespace invar::cuda
