// The backward of recurrent layers (numerics 9): what its operations take. Letters as in
// recurrent.h. A batch has whole sequences, from position 0 on, and their rows stand side by side;
// what is kept is bf16. d_x is the gradient of x.
#pragma once

#include "kernels/recurrent.h"

namespace invar {

// The backward of some channels of a ShortConvParams. The forward's columns, and those of its
// gradients, begin at these addresses. Shares are channels.
struct ShortConvBackwardParams {
  const float* x;  // [T][channels]
  int64_t x_stride;
  const float* factor;  // or null
  int64_t factor_stride;
  const int32_t* positions;  // [T]
  int64_t rows, channels;
  int32_t taps;
  const float* weight;  // [taps][channels]
  int64_t weight_stride;
  const float* bias;  // [channels] or null
  bool silu;
  const float* gate;  // or null
  int64_t gate_stride;
  const float* d_out;  // [T][channels]
  int64_t d_out_stride;
  float* d_sum;  // [T][channels], memory: the gradient of what the taps sum up
  int64_t d_sum_stride;
  float *dx, *d_factor, *d_gate;  // [T][channels]; the last two null where the forward has none
  int64_t dx_stride;              // of all three
  float* d_weight;                // [taps][channels], chains that go on; null: of a frozen weight
  int64_t d_weight_stride;
  float* d_bias;  // [channels] or null
};

// From the gradient of the gated norm's output to those of its input and its gates, and what the
// gradient of its weight is the sum of. As GatedNormParams, with a weight and gates.
struct GatedNormBackwardParams {
  GatedNormParams forward;  // out is not read
  const float* d_out;       // [T][groups * N]
  float* dx;                // [T][groups * N]
  float* d_gate;            // [T][groups * N]
  int64_t d_gate_stride;
  float* d_normed;  // [T][groups * N]: the gradient of the norm's output
  float* normed;    // [T][groups * N]: its input, behind the gates where these come first
  float* rs;        // [T][groups]
};

// From the gradients of decays and factors to those of the products a and z they are made of.
struct RecurrentGatesBackwardParams {
  RecurrentGatesParams forward;  // with decays and factors as they were made
  const float* d_decays;         // [T][H * channels]
  const float* d_factors;        // [T][H]
  float* d_rates;  // [T][H]: with channels, what A_log's gradient is the sum of; or null
  float* da;       // [T][H * channels]; may be d_decays
  int64_t da_stride;
  float* dz;  // [T][H]; null for state_space
  int64_t dz_stride;
};

// From the gradients of the keys and queries of `recurrence` to those of what they are made of, in
// their place.
struct RecurrentKeysBackwardParams {
  const float* x;  // [T][heads * R]: queries or keys
  int64_t x_stride;
  float* d;  // [T][heads * R]
  int64_t d_stride;
  int64_t rows;
  int32_t heads, key_size;
  float eps, scale;
};

// The backward of a RecurrenceParams: sequences are whole, and the forward's results are made once
// more of its inputs. Shares are key heads of sequences.
struct RecurrenceBackwardParams {
  Recurrence kind;
  int32_t key_heads, heads, key_size, value_size;
  const bf16_t* q;  // as RecurrenceParams
  const bf16_t* k;
  const float* v;
  int64_t v_stride;
  const float* decays;
  const float* factors;
  const float* skips;
  const int32_t* sequence_begin;  // [sequences + 1]
  int32_t sequences;
  const float* d_out;  // [T][H * V]
  int64_t d_out_stride;
  float* dq;           // [T][K * R]
  float* dk;           // [T][K * R]
  float* dv;           // [T][H * V]
  int64_t d_stride;    // of all three
  float* d_decays;     // [T][H * channels]
  float* d_factors;    // [T][H]
  float* d_skips;      // [T][H], of each row; null without skips
  std::byte* scratch;  // TrainingKernels::recurrence_scratch bytes for each share
  int64_t scratch_stride, max_positions;
  Operation<MatmulParams> matmul;  // of the same table as the forward's
};

// gradient[i] += x[t][i] * y[t][i] over rows, or x[t][i] where y is null.
struct RowSumsParams {
  const float* x;  // [T][count]
  int64_t x_stride;
  const float* y;  // [T][count] or null
  int64_t y_stride;
  int64_t rows, count;
  float* gradient;
};

// The backward of an OutputGateParams, from the gradient of what it leaves.
struct OutputGateBackwardParams {
  Activation x;       // [T][width]: before the gate, bf16
  const float* gate;  // [T][width]
  const float* d;     // [T][width]
  int64_t rows, width;
  float* dx;      // [T][width]; may be d
  float* d_gate;  // [T][width]
};

}  // namespace invar
