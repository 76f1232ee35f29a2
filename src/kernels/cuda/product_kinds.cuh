// The step, the operands for TMA and the end of a run's sums, which differ between products of few
// rows by bf16, by integers (numerics 2.1) and by e4m3 numbers by rows (2.5). A row of a stage is
// 128 bytes of any. e4m3 numbers in groups have theirs in fp8_kind.cuh.
#pragma once

#include "kernels/cuda/fp8_rows.cuh"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/row_in_block.cuh"
#include "kernels/cuda/wgmma_e4m3.cuh"
#include "kernels/cuda/wgmma_integers.cuh"

namespace invar::cuda {

constexpr int kLineBytes = 128;

struct Bf16Kind {
  using Sum = float;
  static constexpr bool kMakesRows = false, kMakes = kMakesRows, kPromotes = false;
  static constexpr int kLine = kSlice;  // elements of a row of a stage

  template <typename Params>
  explicit Bf16Kind(const Params&, const Matrix&) {}
  template <typename Params>
  static ProductMaps maps(const Params& p, int x_rows, int w_rows) {
    return maps_of(p, x_rows, w_rows);
  }
  static ProductMaps maps_in_parts(const MatmulParams& p, int x_rows, int w_rows, int parts) {
    return maps_of(p, x_rows, w_rows, parts);
  }
  template <int kColumns>
  static __device__ __forceinline__ void step(float (&d)[kColumns / 2], uint64_t a, uint64_t b,
                                              int keep) {
    product_step<kColumns>(d, a, b, keep);
  }
  template <int kTokens, int kMatrices>
  __device__ __forceinline__ void finish(const float (&sum)[kTokens / 2], int, int, int, int,
                                         float (&d)[kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) d[i] = sum[i];
  }
};

// The same of one row that each block makes itself, a norm. In its shared memory the row lies as
// TMA would bring eight, of which the others are whatever is there.
struct NormedBf16Kind : Bf16Kind {
  static constexpr bool kMakesRows = true, kMakes = kMakesRows;
  static constexpr int kRows = 8;

  RowNorm norm;
  int made_at = 0, staged_at = 0;

  template <typename Params>
  NormedBf16Kind(const Params& p, const Matrix& m, const RowNorm& of) : Bf16Kind(p, m), norm(of) {}

  static int bytes(int64_t k, int, int) { return ceil_div(k, kLine) * kRows * kLineBytes; }
  void place(int at, int) {
    made_at = at;
    staged_at = at + bytes(norm.width, 1, 1);
  }
  __device__ __forceinline__ int line_at(int, int line) const {
    return made_at + line * kRows * kLineBytes;
  }
  __device__ void make(unsigned char* shared, int warps, int, int, int) const {
    norm_row(norm, reinterpret_cast<float*>(shared + staged_at), static_cast<int>(threadIdx.x),
             warps * kWarp, [&](int e, uint2 four) {
               *reinterpret_cast<uint2*>(shared + line_at(0, e / kLine) + e % kLine * 2) = four;
             });
  }
};

// Rows of `bytes` of integers, `stride` apart, cut into runs: as bf16 of which each holds two.
inline CUtensorMap int8_rows_map(const void* data, int64_t bytes, int64_t rows, int64_t stride,
                                 int runs, int box_rows, int box_runs) {
  const auto run = static_cast<uint64_t>(bytes / runs);
  return tensor_map<3>(
      data,
      {.sizes = {run / 2, static_cast<uint64_t>(rows), static_cast<uint64_t>(runs)},
       .strides = {static_cast<uint64_t>(stride), runs == 1 ? static_cast<uint64_t>(stride) : run},
       .box = {kSlice, static_cast<uint32_t>(box_rows), static_cast<uint32_t>(box_runs)}});
}

// Integers and e4m3 numbers: what a run's steps add up to, and how a run of bf16 becomes them.
struct Integers {
  using Sum = int;
  using Scale = RowScale;

  template <int kColumns>
  static __device__ __forceinline__ void step(int (&d)[kColumns / 2], uint64_t a, uint64_t b,
                                              int keep) {
    integer_step<kColumns>(d, a, b, keep);
  }
  static __device__ __forceinline__ float value(int sum) { return __int2float_rn(sum); }
};
struct E4m3Numbers {
  using Sum = float;
  using Scale = Fp8Scale;

  template <int kColumns>
  static __device__ __forceinline__ void step(float (&d)[kColumns / 2], uint64_t a, uint64_t b,
                                              int keep) {
    e4m3_step<kColumns>(d, a, b, keep);
  }
  static __device__ __forceinline__ float value(float sum) { return sum; }
};

// Numbers of a byte with a scale for each output, and for each run of a row of x.
template <typename Of>
struct ByteKind {
  using Numbers = Of;
  using Sum = typename Of::Sum;
  static constexpr bool kMakesRows = false, kMakes = kMakesRows, kPromotes = false;
  static constexpr int kLine = kLineBytes;

  const RunScale* x;  // [row][run]
  const char* w;      // the scale of row 0 of the weights
  int64_t unit_bytes, all_rows;
  int n, runs;

  template <typename Params>
  ByteKind(const Params& p, const Matrix& m)
      : x(p.x.scales),
        w(static_cast<const char*>(m.data) + m.scales_at()),
        unit_bytes(m.unit_bytes()),
        all_rows(m.all_rows()),
        n(static_cast<int>(m.n)),
        runs(split_k_of(p)) {}

  static ProductMaps maps(const MatmulParams& p, int x_rows, int w_rows) {
    return maps_in_parts(p, x_rows, w_rows, 1);
  }
  static ProductMaps maps_in_parts(const MatmulParams& p, int x_rows, int w_rows, int parts) {
    const int64_t bytes = p.w.row_elements();
    return {int8_rows_map(p.x.data, bytes, p.rows, p.x.stride, p.split_k, x_rows, 1),
            int8_rows_map(p.w.data, bytes, p.w.n, p.w.unit_bytes(), p.split_k, w_rows, parts)};
  }
  static ProductMaps maps(const GatedMatmulParams& p, int x_rows, int w_rows) {
    const Matrix& m = p.gate_up;
    const int64_t bytes = m.row_elements();
    const auto row = static_cast<uint64_t>(m.unit_bytes());
    const uint64_t blocks = static_cast<uint64_t>(m.all_rows()) / kBlockOutputs;
    return {int8_rows_map(p.x.data, bytes, p.rows, p.x.stride, 1, x_rows, 1),
            tensor_map<4>(m.data,
                          {.sizes = {static_cast<uint64_t>(bytes) / 2, kBlockOutputs, 2, blocks},
                           .strides = {row, blocks * kBlockOutputs * row, kBlockOutputs * row},
                           .box = {kSlice, kBlockOutputs, 2,
                                   static_cast<uint32_t>(w_rows / (2 * kBlockOutputs))}})};
  }

  template <int kColumns>
  static __device__ __forceinline__ void step(Sum (&d)[kColumns / 2], uint64_t a, uint64_t b,
                                              int keep) {
    Of::template step<kColumns>(d, a, b, keep);
  }
  // Of an output of the only matrix, or of a pair's second.
  __device__ __forceinline__ float weight_scale(int output, int matrix = 0) const {
    if (output >= n) return 0.0f;
    return __ldg(reinterpret_cast<const float*>(w + (matrix * all_rows + output) * unit_bytes));
  }
  // What a run's sums stand for, where weights are rows: those of `output` and the one 8 after, or
  // of a pair; a lane's rows of x are columns (wgmma_steps.cuh), `rows` of them real.
  template <int kTokens, int kMatrices>
  __device__ __forceinline__ void finish(const Sum (&sum)[kTokens / 2], int output, int run, int,
                                         int rows, float (&d)[kTokens / 2]) const {
    scale_sums<kTokens, kMatrices>(
        sum, output, [&](int t) { return t < rows ? x[t * runs + run].scale : 0.0f; }, d);
  }

 protected:
  // `scale` is that of a row of x.
  template <int kTokens, int kMatrices, typename Scale>
  __device__ __forceinline__ void scale_sums(const Sum (&sum)[kTokens / 2], int output,
                                             const Scale& scale, float (&d)[kTokens / 2]) const {
    const float first = weight_scale(output),
                second = kMatrices == 2 ? weight_scale(output, 1) : weight_scale(output + 8);
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int t = i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      d[i] = Of::value(sum[i]) * (scale(t) * (i / 2 % 2 ? second : first));
    }
  }
};
using Int8Kind = ByteKind<Integers>;
using Fp8RowKind = ByteKind<E4m3Numbers>;

// The same of up to eight rows of bf16, of which each block makes the numbers itself: in its shared
// memory they lie as TMA would bring them, [run of the block][line][row], and then a scale for each
// [run][row].
template <typename Of>
struct MadeByteKind : ByteKind<Of> {
  using Base = ByteKind<Of>;
  using Sum = typename Of::Sum;
  static constexpr bool kMakesRows = true, kMakes = kMakesRows;
  static constexpr int kRows = 8, kLine = kLineBytes;

  const bf16_t* elements;
  int64_t stride;
  int run_elements, lines;  // of a run
  RowNorm norm;             // of which the only row of bf16 is
  int made_at = 0, scales_at = 0, staged_at = 0;

  template <typename Params>
  MadeByteKind(const Params& p, const Matrix& m, const RowNorm& of = {})
      : Base(p, m),
        norm(of),
        elements(static_cast<const bf16_t*>(p.x.data)),
        stride(p.x.stride),
        run_elements(static_cast<int>(m.k / split_k_of(p))),
        lines(ceil_div(run_elements, kLine)) {}

  // Of the weights; there are no rows to be brought.
  template <typename Params>
  static ProductMaps maps(Params p, int, int w_rows) {
    p.x.stride = round_up(inner_size(p), 16);
    return Base::maps(p, 1, w_rows);
  }
  static ProductMaps maps_in_parts(MatmulParams p, int, int w_rows, int parts) {
    p.x.stride = round_up(p.w.k, 16);
    return Base::maps_in_parts(p, 1, w_rows, parts);
  }

  static int bytes(int64_t k, int split_k, int runs) {
    return runs * kRows *
           (ceil_div(k / split_k, kLine) * kLineBytes + static_cast<int>(sizeof(float)));
  }
  // `of` runs of a block, from a multiple of 1024 on.
  void place(int at, int of) {
    made_at = at;
    scales_at = at + of * kRows * lines * kLineBytes;
    staged_at = round_up(scales_at + of * kRows * static_cast<int>(sizeof(float)), 16);
  }

  // Where a line of a run's rows lies.
  __device__ __forceinline__ int line_at(int run, int line) const {
    return made_at + (run * lines + line) * kRows * kLineBytes;
  }
  // By so many warps: `of` runs from `first` on. Warps share out a run's numbers, but not its
  // maximum. Lines are filled up with zeros: what is there may be no number of e4m3.
  __device__ void make(unsigned char* shared, int warps, int rows, int first, int of) const {
    const bf16_t* x = elements;
    if (norm.x) {
      bf16_t* row = reinterpret_cast<bf16_t*>(shared + staged_at + norm_bytes(norm.width));
      norm_row(norm, reinterpret_cast<float*>(shared + staged_at), static_cast<int>(threadIdx.x),
               warps * kWarp,
               [&](int e, uint2 four) { *reinterpret_cast<uint2*>(row + e) = four; });
      named_sync(1, warps * kWarp);
      x = row;
    } else {
      wait_for_kernels_before();
    }
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    const int pairs = rows * of, team = max(1, warps / pairs);
    const int padded = (run_elements + 31) / 32 * 32;
    for (int pair = warp / team; pair < pairs; pair += warps / team) {
      const int row = pair % rows, run = pair / rows;
      const auto* from =
          reinterpret_cast<const uint4*>(x + row * stride + int64_t{first + run} * run_elements);
      int largest = 0;
#pragma unroll 8
      for (int i = lane; i < padded / 8; i += 32) largest = largest_of(largest, from[i]);
      const typename Of::Scale scale(__reduce_max_sync(kAllLanes, largest));
      const int member = warp % team;
      for (int i = member * 32 + lane; i < lines * kLineBytes / 16; i += team * 32) {
        const bool is_real = i < padded / 16;
        const uint4 a = is_real ? from[2 * i] : uint4{}, b = is_real ? from[2 * i + 1] : uint4{};
        const int line = line_at(run, i / 8) + row * kLineBytes;
        *reinterpret_cast<uint4*>(shared + line + (i % 8 ^ row) * 16) = {
            scale.four(a.x, a.y), scale.four(a.z, a.w), scale.four(b.x, b.y), scale.four(b.z, b.w)};
      }
      if (member == 0 && lane == 0)
        reinterpret_cast<float*>(shared + scales_at)[run * kRows + row] = scale.stored();
    }
  }

  template <int kTokens, int kMatrices>
  __device__ __forceinline__ void finish(const Sum (&sum)[kTokens / 2], int output, int, int run,
                                         int rows, float (&d)[kTokens / 2]) const {
    extern __shared__ __align__(1024) unsigned char shared[];
    const float* scales = reinterpret_cast<const float*>(shared + scales_at) + run * kRows;
    this->template scale_sums<kTokens, kMatrices>(
        sum, output, [&](int t) { return t < rows ? scales[t] : 0.0f; }, d);
  }
};
using MadeInt8Kind = MadeByteKind<Integers>;
using MadeFp8RowKind = MadeByteKind<E4m3Numbers>;

}  // namespace invar::cuda
