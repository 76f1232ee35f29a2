// Attention to the keys and values of a sequence: its weights, what it computes on its way, and
// what it does. The forward is in attention.cc, the backward in attention_backward.cc.
#pragma once

#include "model/parts/attend.h"

namespace invar {

struct AttentionWeights : PartWeights {
  Matrix qkv;  // [(H + 2G) * E][D]: q, then k, then v, as far as the layer makes them
  std::vector<Matrix> qkv_others;    // its last tensors, where these are stored in other blocks
  Matrix v;                          // [G * V][D], where values are placed; else it is in qkv
  Matrix gate;                       // [H * E][D] of outputs, or none
  Matrix o;                          // [D][H * E]
  const float* norm = nullptr;       // [D] or null
  const float* norm_bias = nullptr;  // [D] or null: of LayerNorm
  const float* q_norm = nullptr;     // [E] or null; [H * E] of a joint norm, k's [G * E]
  const float* k_norm = nullptr;
  const float* out_norm = nullptr;  // [D] or null
  const float* qkv_bias = nullptr;  // [(H + 2G) * E] or null
  const float* o_bias = nullptr;    // [D] or null
  const float* sinks = nullptr;     // [H] or null
  const float* ones = nullptr;      // [E] or null: of a norm of heads without weights
};

struct AttentionActivations : PartActivations {
  float* stream = nullptr;    // [T][D] the residual stream before it, or null
  Activation normed;          // [T][D]
  float* qkv = nullptr;       // [T][(H + 2G) * E] the product where it is kept, or null
  float* products = nullptr;  // the same where it is not
  bf16_t* q = nullptr;        // [T][H][round_up(E, 32)]; f32 where the cache is
  float* max = nullptr;       // [T][H] or null; see PartialAttentionParams
  float* sum = nullptr;
  float* values = nullptr;  // [T][G * V], where values are placed
  Activation attended;      // [T][H * E]
  Activation ungated;       // [T][H * E] the same before the output gate, where it is kept
  Activation narrow;        // [T][H * V] of it, where values are narrower
  float* gates = nullptr;   // [T][H * E] or null
  float* added = nullptr;   // [T][D] what it adds, before the norm behind it, or null
};

class Attention final : public PartOf<AttentionWeights, AttentionActivations> {
 public:
  explicit Attention(const PartPlace& place)
      : PartOf(place), spec_(*layer_spec_.attention()), share_(heads_of(model_, spec_, shard_)) {}

  bool is_read_later() const override {
    return layer_spec_.ffn() && layer_spec_.ffn()->is_parallel;
  }
  StateShape state() const override { return {.kv_heads = own_kv_heads(), .head_dim = head_dim()}; }
  const char* refusal() const override;

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.qkv; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  void gate_output(const PartPass& p, const Weights& w, const Activations& at) const;
  float* products_of(const PartPass& p, const Activations& at) const;
  bool goes_by_heads(const PartPass& p, const Weights& w, const Activations& at) const;
  void qkv_product(const PartPass& p, const Weights& w, const Activations& at,
                   float* products) const;
  void value_product(const PartPass& p, const Weights& w, const Activations& at, float* out) const;
  void make_values(const PartPass& p, const Weights& w, float* products) const;
  void narrow(const PartPass& p, const Activations& at) const;
  QkvParams make_qkv(const PartPass& p, const Weights& w, const Activations& at,
                     const Attend& attend) const;
  void norm_joint_heads(const PartPass& p, const Weights& w, const Activations& at) const;
  void turn(const PartPass& p, const Activations& at, const RopeTable& rope, int heads) const;
  // Whether the rotation stands before the norms of heads.
  bool turns_early() const { return model_.late_qk_norm || spec_.has_unit_heads; }

  int head_dim() const { return model_.head_dim_of(spec_); }
  // The heads whose keys and values it makes itself.
  int own_kv_heads() const { return spec_.shares_keys ? 0 : share_.kv_heads; }
  int value_dim() const { return spec_.value_dim ? spec_.value_dim : head_dim(); }
  bool is_narrow() const { return value_dim() < head_dim(); }
  // Whether values are a product of their own, which is put in its place.
  bool places_values() const { return is_narrow() || spec_.value_scale != 1; }
  // Whether values are anything else than their part of the product of q, k and v.
  bool makes_values() const { return spec_.keys_are_values || spec_.has_value_norm; }
  int64_t query_width() const { return int64_t{share_.heads} * head_dim(); }
  int64_t qkv_width() const { return int64_t{share_.heads + 2 * own_kv_heads()} * head_dim(); }
  void head_norm_gradient(BackwardPass& b, const Kept& kept, TensorRole role, int64_t first,
                          int64_t heads) const;
  Activation qkv_backward(BackwardPass& b, const Kept& kept) const;
  void output_gate_backward(BackwardPass& b, const Activations& at) const;

  const AttentionSpec spec_;
  const HeadShare share_;
};

}  // namespace invar
