// What becomes of the finished dots of a matrix product of order `hopper`.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

constexpr int kBlockOutputs = 8;  // of a block of accumulators, and of gate and up in turn

// y[t][n] from the finished dots.
struct PlainEnd {
  static constexpr int kMatrices = 1;
  const float* bias;
  bool accumulate;
  float* y;
  int64_t stride;
  int n, padded;            // padded: so many outputs are to be computed
  bool in_pairs, in_fours;  // rows of y are whole pairs of 8 bytes, whole 16 bytes
  bool in_boxes;            // its outputs, too, as the copy engine writes them

  // The same of one of several experts, whose rows begin there.
  __device__ PlainEnd of(int expert, int64_t row) const {
    PlainEnd end = *this;
    end.y += row * stride;
    if (bias) end.bias += int64_t{expert} * n;
    return end;
  }

  __device__ void one(int64_t t, int output, float dot) const {
    if (output >= n) return;
    float* out = y + t * stride + output;
    *out = finished(output, dot, accumulate ? *out : 0.0f);
  }

  // Four outputs of a row in two steps: what they are added to, and then the result.
  __device__ float4 before(int64_t t, int output) const {
    float4 old = {0, 0, 0, 0};
    if (!accumulate) return old;
    const float* from = y + t * stride + output;
    if (in_fours && output + 3 < n) return *reinterpret_cast<const float4*>(from);
    if (output < n) old.x = from[0];
    if (output + 1 < n) old.y = from[1];
    if (output + 2 < n) old.z = from[2];
    if (output + 3 < n) old.w = from[3];
    return old;
  }
  // The number that is written, or added to the one that is there.
  __device__ float value(int output, float dot) const {
    const float value = dot + 0.0f;
    return bias && output < n ? value + bias[output] : value;
  }
  __device__ float finished(int output, float dot, float old) const {
    return accumulate ? old + value(output, dot) : value(output, dot);
  }
  __device__ void four(int64_t t, int output, float4 dot, float4 old) const {
    const float4 value = {finished(output, dot.x, old.x), finished(output + 1, dot.y, old.y),
                          finished(output + 2, dot.z, old.z), finished(output + 3, dot.w, old.w)};
    float* to = y + t * stride + output;
    if (in_fours && output + 3 < n) {
      *reinterpret_cast<float4*>(to) = value;
      return;
    }
    if (output < n) to[0] = value.x;
    if (output + 1 < n) to[1] = value.y;
    if (output + 2 < n) to[2] = value.z;
    if (output + 3 < n) to[3] = value.w;
  }

  // Brings what outputs of a row are added to near, when it is to be added and is all there.
  __device__ void fetch(int64_t t, int output, int outputs) const {
    if (!accumulate || !in_fours || output + outputs > n) return;
    prefetch_bytes(y + t * stride + output, outputs * 4);
  }

  // The dots of rows t and t + 8 that one lane of a tile holds (wgmma_steps.cuh), the first of them
  // of output `column`; rows from `begin` to `end` are written. Conditions stand outside of the
  // loops: the tensor cores wait for this code.
  template <int kColumns>
  __device__ __forceinline__ void tile(float (&d)[kColumns / 2], int64_t t, int column,
                                       int64_t begin, int64_t end) const {
    constexpr int kPairs = kColumns / 8;
    constexpr int kAtOnce = kPairs % 16 == 0 ? 16 : kPairs % 8 == 0 ? 8 : 6;  // reads of y
    static_assert(kPairs % kAtOnce == 0);
    const bool is_whole = in_pairs && (column | 7) + kColumns - 8 < n;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = t + 8 * half;
      if (row < begin || row >= end) continue;
      if (!is_whole) {
#pragma unroll
        for (int j = 0; j < 2 * kPairs; ++j)
          one(row, column + j / 2 * 8 + j % 2, d[j / 2 * 4 + half * 2 + j % 2]);
        continue;
      }
      float2* out = reinterpret_cast<float2*>(y + row * stride + column);
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
        float& value = d[j / 2 * 4 + half * 2 + j % 2];
        value = value + 0.0f;
      }
      if (bias) {
#pragma unroll
        for (int j = 0; j < 2 * kPairs; ++j) {
          float& value = d[j / 2 * 4 + half * 2 + j % 2];
          value = value + __ldg(bias + column + j / 2 * 8 + j % 2);
        }
      }
      if (accumulate) {
#pragma unroll
        for (int first = 0; first < kPairs; first += kAtOnce) {
          float2 old[kAtOnce];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) old[j] = out[(first + j) * 4];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            const int at = (first + j) * 4 + half * 2;
            d[at] = old[j].x + d[at];
            d[at + 1] = old[j].y + d[at + 1];
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) out[j * 4] = {d[j * 4 + half * 2], d[j * 4 + half * 2 + 1]};
    }
  }
};

// The gated activation of a pair of dots: blocks of 8 outputs of gate and of up take turns.
struct GatedEnd {
  static constexpr int kMatrices = 2;
  const float* gate_bias;
  const float* up_bias;
  bf16_t* out;
  int64_t stride;
  int n, padded;  // outputs from n on are zeros
  Nonlinearity curve;

  __device__ GatedEnd of(int expert, int64_t row) const {
    GatedEnd end = *this;
    end.out += row * stride;
    if (gate_bias) end.gate_bias += int64_t{expert} * n;
    if (up_bias) end.up_bias += int64_t{expert} * n;
    return end;
  }

  __device__ __forceinline__ bf16_t value(int output, float gate, float up) const {
    if (output >= n) return 0;
    gate = gate + 0.0f;
    up = up + 0.0f;
    if (gate_bias) gate = gate + __ldg(gate_bias + output);
    if (up_bias) up = up + __ldg(up_bias + output);
    return f32_to_bf16(gated(curve, gate, up));
  }

  // Rows t, t + 1, t + 8, t + 9, ... below `rows` of one output; a lane's dots lie as
  // wgmma_steps.cuh says, with weights for rows and rows of x for columns.
  template <int kRows>
  __device__ __forceinline__ void column(const float (&d)[kRows / 2], int t, int output,
                                         int rows) const {
    constexpr int kCount = kRows / 4;
    float gate[kCount], up[kCount];
    const bool is_real = output < n;
    const float gate_more = gate_bias && is_real ? __ldg(gate_bias + output) : 0.0f,
                up_more = up_bias && is_real ? __ldg(up_bias + output) : 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i / 2 * 4 + i % 2;
      const bool is_row = t + i / 2 * 8 + i % 2 < rows;  // else whatever lay in shared memory
      gate[i] = is_row ? d[at] + 0.0f : 1.0f;
      up[i] = is_row ? d[at + 2] + 0.0f : 1.0f;
      if (gate_bias) gate[i] = gate[i] + gate_more;
      if (up_bias) up[i] = up[i] + up_more;
    }
    gated_all(curve, gate, up);
    if (output >= padded) return;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int row = t + i * 4;
      const uint32_t pair = is_real ? pack_bf16(gate[i], gate[i + 1]) : 0;
      bf16_t* to = out + row * stride + output;
      if (row < rows) to[0] = static_cast<bf16_t>(pair);
      if (row + 1 < rows) to[stride] = static_cast<bf16_t>(pair >> 16);
    }
  }

  // A lane's outputs of one row of a tile, four at a time. The curve is asked for once: between
  // groups it would keep them from being computed beside each other (2.7 % of the product for a
  // prompt of 512).
  template <bool kSilu, int kColumns>
  __device__ __forceinline__ void plain_row(const float (&d)[kColumns / 2], int half,
                                            bf16_t* to) const {
    constexpr int kCount = kColumns / 8;
    float gate[kCount], up[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i / 2 * 8 + half * 2 + i % 2;
      gate[i] = d[at] + 0.0f;
      up[i] = d[at + 4] + 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      gated_all(kSilu ? Nonlinearity::silu : curve, *reinterpret_cast<float(*)[4]>(gate + i),
                *reinterpret_cast<const float(*)[4]>(up + i));
#pragma unroll
    for (int i = 0; i < kCount; i += 2)
      *reinterpret_cast<uint32_t*>(to + i * 4) = pack_bf16(gate[i], gate[i + 1]);
  }

  // As PlainEnd::tile, of kColumns / 2 outputs. `column` counts outputs and is even.
  template <int kColumns>
  __device__ __forceinline__ void tile(const float (&d)[kColumns / 2], int64_t t, int column,
                                       int64_t begin, int64_t end) const {
    const bool is_plain = !gate_bias && !up_bias && (column | 7) + kColumns / 2 - 8 < n;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = t + 8 * half;
      if (row < begin || row >= end) continue;
      bf16_t* to = out + row * stride + column;
      if (is_plain) {
        curve == Nonlinearity::silu ? plain_row<true, kColumns>(d, half, to)
                                    : plain_row<false, kColumns>(d, half, to);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        const int output = column + j * 8;
        if (output >= padded) continue;
        const float *gate = d + j * 8 + half * 2, *up = gate + 4;
        const uint32_t pair = value(output, gate[0], up[0]) |
                              static_cast<uint32_t>(value(output + 1, gate[1], up[1])) << 16;
        *reinterpret_cast<uint32_t*>(to + j * 8) = pair;
      }
    }
  }
};

}  // namespace invar::cuda
