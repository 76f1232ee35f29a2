// The functions of one instruction set for recurrent layers (numerics 4.4), over single rows, given
// as plain pointers because files for wide instruction sets include no other header. recurrent.cc
// has the loops around them and the products between them.
#pragma once

#include <cstdint>

namespace invar::cpu {

// Channels [0, count) of one row of a short convolution.
struct ConvRow {
  const void* inputs[8];  // of each tap, or null: before position 0
  const float* weight;    // of tap 0
  int64_t weight_stride;  // from tap to tap
  const float* bias;      // or null
  const float* gate;      // or null
  int taps;
  bool silu, is_bf16, out_is_bf16;  // is_bf16: of inputs
  void* out;
};

// One group of a gated norm.
struct GatedGroup {
  const float *x, *gate, *weight;  // gate, weight: or null
  bool is_sigmoid, gate_first, is_bf16;
  float eps;
  int64_t width;
  void* out;
};

// One head of queries or keys.
struct KeyHead {
  const float* x;
  int64_t size, padded;  // out has zeros from size to padded
  bool normalises, keeps, is_bf16;
  float eps, scale;
  void* out;
};

// Weights of one row in a chunk: exp(sum - sums[s]) * scores[s] for slots s < count.
struct WeightRow {
  const float* scores;  // [64]; or null: they are weights already
  const float* sums;    // [64]
  float sum;
  int count, rounded;  // slots; operand has zeros from slot `rounded` on
  bool is_bf16;
  float* weights;  // [64], zeros from count on
  void* operand;   // [64]
};

// The value that a row leaves: factor * r, r = v or, of a delta rule, v - of the state * decay - of
// earlier stretches, and then less weights[i] * values[i] for the `count` slots before it in its
// stretch.
struct ValueRow {
  const float* v;
  const float* of_state;   // or null: zeros
  const float* of_others;  // or null: zeros
  const float* weights;
  const float* values;  // [count][stride], and the row's own is written behind them
  int64_t stride;       // whole vectors, zero from the size on
  int64_t size;
  int count;
  float decay, factor;
  bool is_delta, is_bf16;
};

// The next state of a head, from the decayed keys' dots with the values.
struct StateStep {
  const float* state;  // or null: zeros
  const float* dots;   // [key_size][dots_stride]
  int64_t dots_stride;
  const float* decays;  // [key_size]
  int64_t key_size, value_size;
  float* next;
  uint16_t* operand;  // or null
};

struct RecurrentFunctions {
  // x, or x * factor, as it is kept; false when it was not finite.
  bool (*keep)(const float* x, const float* factor, int64_t count, void* out, bool is_bf16);
  void (*convolve)(const ConvRow& row, int64_t count);
  // out[i] = softplus(a[i] + bias[i]) within the limits, times rate unless it is null; and its
  // like for the logistic function, doubled or not.
  void (*steps)(const float* a, const float* bias, int64_t count, float least, float most,
                float* out);
  void (*logistic)(const float* z, int64_t count, bool doubles, float* out);
  void (*multiply)(const float* x, const float* rates, int64_t count, float* out);
  bool (*key_head)(const KeyHead& head);
  void (*gated_norm)(const GatedGroup& group);
  // y[i] = exp(a[i] - b[i]), or exp(a[i]) where b is null.
  void (*decays)(const float* a, const float* b, int64_t count, float* y);
  // out = round(x * y): x bf16 or f32, as out.
  void (*decayed)(const void* x, const float* y, int64_t count, bool is_bf16, void* out);
  void (*weigh)(const WeightRow& row);
  // sum64 of (x * y) * k, x and k of a row of keys.
  float (*channel_dot)(const float* x, const float* y, const float* k, int64_t count);
  bool (*value)(const ValueRow& row);
  // A row of values, kept, into its slot of a packed matrix; and back.
  void (*leave)(const float* kept, int64_t size, int slot, bool is_bf16, void* values);
  void (*take)(const void* values, int64_t size, int slot, bool is_bf16, float* kept);
  // out = decay * of_state + of_values, and with a skip skip * v + that.
  void (*output)(const float* of_state, float decay, const float* of_values, const float* skip,
                 const float* v, int64_t size, float* out);
  // Keys of 16 slots, packed, times decays[d * decay_stride + slot]: rows of keys' channels, or
  // where `packs` packed again.
  void (*decayed_keys)(const void* keys, const float* decays, int64_t decay_stride, int64_t size,
                       bool is_bf16, bool packs, void* out, int64_t out_stride);
  void (*step_state)(const StateStep& step);
};

extern const RecurrentFunctions kAvx2Recurrent, kAvx512Recurrent;

}  // namespace invar::cpu
