// Heads with states between a layer's two products, whatever their recurrence is: a short
// convolution over queries, keys and values, then the recurrence (numerics 4.4).
#pragma once

#include <cmath>

#include "model/parts/cells.h"

namespace invar {

struct RecurrentMemory {
  RecurrentLayer layer;
  Cells inputs, before;  // of the convolution
};

struct RecurrentArrays {
  Activation mixed;          // [T][2 K R + H V], behind the convolution; f32
  float* decays = nullptr;   // [T][H], with channels [T][H R]
  float* factors = nullptr;  // [T][H]
  bf16_t* q = nullptr;       // [T][K][round_up(R, 32)]; f32 where all is
  bf16_t* k = nullptr;
  float* out = nullptr;  // [T][H V]
};

// The heads of one rank.
struct RecurrentHeads {
  Recurrence kind = Recurrence::delta;
  int key_heads = 0, heads = 0;      // K, H
  int key_size = 0, value_size = 0;  // R, V
  int taps = 0;                      // of the convolution

  // Widths of a row.
  int64_t keys() const { return int64_t{key_heads} * key_size; }
  int64_t values() const { return int64_t{heads} * value_size; }
  int64_t mixed() const { return 2 * keys() + values(); }
  int64_t channels() const { return kind == Recurrence::channel_delta ? key_size : 1; }

  static constexpr float kKeyEps = 1e-6f;
  float query_scale() const {
    const bool is_delta = kind != Recurrence::state_space;
    return is_delta ? static_cast<float>(1 / std::sqrt(static_cast<double>(key_size))) : 1.0f;
  }

  StateShape state() const;
  RecurrentArrays place(ActivationMemory& memory) const;
  // The layer's cells in this step; chunks that paths share are copied.
  RecurrentMemory begin(const PartPass& p) const;

  // Queries, keys and values [T][x_stride] through a convolution with silu.
  struct Convolution {
    const float* x;
    int64_t x_stride;
    const float* weight;          // [taps][2 K R + H V]
    const float* bias = nullptr;  // [2 K R + H V]
  };
  void convolve(const PartPass& p, const RecurrentArrays& at, const RecurrentMemory& memory,
                const Convolution& convolution) const;
  // The members of RecurrentGatesParams beside the heads' numbers.
  struct Gates {
    const float* a;
    int64_t a_stride;
    const float* z = nullptr;
    int64_t z_stride = 0;
    const float *log_rate, *bias;
    bool doubles = false;
    float least = 0, most = 0;
  };
  void gate(const PartPass& p, const RecurrentArrays& at, const Gates& gates) const;
  RecurrentGatesParams gates_of(int64_t rows, const RecurrentArrays& at, const Gates& gates) const;
  // `skips`: [H], of Mamba 2.
  void recur(const PartPass& p, const RecurrentArrays& at, const RecurrentMemory& memory,
             const float* skips = nullptr) const;

  // ---- Backward, in this order. Gradients go on in the workspace.
  // A product's matrix both ways, and in how many runs the forward cuts its sums.
  struct Product {
    const Matrix &w, &transposed;
    int split_k = 1;
  };
  // From the stream's to that of the gated norm's output, through the product that reads it.
  void output_backward(BackwardPass& b, int layer, const Activation& gated, const Product& o) const;
  // From that of the gated norm's output, in `mixed`.
  void norm_backward(BackwardPass& b, int layer, const GatedNormParams& norm) const;
  // To those of queries, keys and values in `mixed`, and of what decays and factors are made of.
  void recur_backward(BackwardPass& b, int layer, const RecurrentArrays& at, const Gates& gates,
                      const float* skips = nullptr) const;
  void conv_backward(BackwardPass& b, int layer, const Convolution& convolution) const;
  // Goes back through the two first products, to the normed stream. `gates` has factors, where
  // there are such, then decays.
  void inputs_backward(BackwardPass& b, int layer, const Activation& normed, const Product& inputs,
                       const Product& gates) const;

  // Where the gradients of products that decays (a) and factors (z) are made of stand: in `gates`
  // as the second product leaves them; with channels, decays alone in `decays`.
  struct GateGradients {
    float* a;
    int64_t a_stride;
    float* z;
    int64_t z_stride;
  };
  GateGradients gate_gradients(const BackwardWorkspace& ws) const;
  // So many outputs has the second product.
  int64_t gates_width() const;

 private:
  void keys_backward(BackwardPass& b, const RecurrentArrays& at) const;
  void gates_backward(BackwardPass& b, int layer, const RecurrentArrays& at,
                      const Gates& gates) const;
  RecurrentMemory memory_of(CellArrays& chunks, CellArrays& states, DType type) const;
};

}  // namespace invar
