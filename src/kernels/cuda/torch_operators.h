// What PyTorch's operators (python/invar/torch) need of a GPU beside the table of operations.
#pragma once

#include "device/execution.h"
#include "kernels/matrix.h"
#include "numerics/curves.h"

namespace invar::cuda {

// So much of Kernels::attention_scratch is zero before a call, and after it.
constexpr size_t kAttentionZeros = 256 << 10;

// A vector of f32 or bf16.
struct Values {
  const void* data;
  DType type;
};

// out = act(curve(g) * u), bf16.
void gate(const Values& g, const Values& u, int64_t count, Nonlinearity curve, bf16_t* out,
          const Execution& on);
// The gradients of g and u, f32, from that of curve(g) * u (numerics 9); all [count].
struct GateGradients {
  const float *d, *g, *u;
  int64_t count;
  Nonlinearity curve;
  float *dg, *du;
};
void gate_gradients(const GateGradients& p, const Execution& on);
// out = x rounded to bf16, as f32.
void rounded(const Values& x, int64_t count, float* out, const Execution& on);
// out[t] = sum64(x[t]) / width (numerics 3); x [T][width].
void mean(const float* x, int64_t rows, int64_t width, float* out, const Execution& on);
// Where new rows of sequences stand that have some already (AttentionParams): row t is the
// offset[t]-th new one of its sequence, which has `starts` before it and the blocks of a row of
// `tables`.
struct PlacesParams {
  const int32_t* offsets;  // [T]
  const int32_t* table_of;
  const int32_t* starts;  // [S]
  const int32_t* tables;  // [S][width]
  int64_t rows, sequences, width;
  int32_t block_size;
  int32_t* positions;  // [T]
  int32_t* write_block;
  int32_t* write_slot;
  const int32_t** addresses;  // [S], of the rows of `tables`
};
void place_rows(const PlacesParams& p, const Execution& on);
// Sets both ranges to zero, after all that is before it in the stream and before all that follows:
// kernels of the table, which may start early, read nothing before it is done.
void clear_and_wait(void* first, size_t first_bytes, void* second, size_t second_bytes,
                    const Execution& on);

// Where one of the flags is set all `count` elements of `out` become NaN.
void spoil(const bool* flags, int64_t rows, bf16_t* out, int64_t count, const Execution& on);

}  // namespace invar::cuda
