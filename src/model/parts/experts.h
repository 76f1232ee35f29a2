// A layer's experts: see experts.cc.
#pragma once

#include "model/parts/part_of.h"

namespace invar {

struct ExpertsWeights : PartWeights {
  const float* norm = nullptr;          // [D]
  const float* router_norm = nullptr;   // [D] or null, as the next three: beside a dense network
  const float* expert_scale = nullptr;  // [experts]
  const float* out_norm = nullptr;      // [D]
  const float* sum_norm = nullptr;      // [D]
  Matrix router;                        // [experts (+ the shared one's gate)][D]
  Matrix gate_up;                       // [F of an expert][D], a stack of pairs; or of ups alone
  Matrix down;                          // [D][F of an expert], a stack
  Matrix latent_down;                   // [L][D], where experts read a latent, as the next one
  Matrix latent_up;                     // [D][L]
  Matrix shared_gate_up;                // [F of the shared expert][D], a pair
  Matrix shared_down;                   // [D][F of the shared expert]
  const float* choice_bias = nullptr;   // [experts] or null, as the next one
  const float* router_bias = nullptr;
  const float* gate_bias = nullptr;  // [experts that are here][F] or null, as the next one
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // [experts that are here][D] or null
  const int32_t* places = nullptr;   // [experts][2], or null: as they are numbered
};

// A row chooses C experts.
struct ExpertsActivations : PartActivations {
  float* stream = nullptr;    // [T][D] the residual stream before it, or null
  Activation normed;          // [T][D]
  Activation routed;          // [T][D] what the router reads, where that is something else
  float* sum = nullptr;       // [T][D] of a row's experts, or null
  float* router = nullptr;    // [T][experts (+ 1)] logits
  int32_t* chosen = nullptr;  // [T][C]
  float* weights = nullptr;   // [T][C]
  int32_t* begin = nullptr;   // [experts + 1]; see SortRowsParams
  int32_t* place = nullptr;   // [T][C]
  int32_t* rows = nullptr;    // [T * C]
  Activation latent;          // [T][L] what experts read, then the sum of what they give
  float* narrow = nullptr;    // [T][L] the same before it is rounded
  float* wide = nullptr;      // [T][D] that sum times latent_up
  Activation inputs;          // [T * C][D], here and in the next three lines L where it is there
  float* ups = nullptr;       // [T * C][F of an expert] or [T][F of the shared one], or null
  Activation gated;           // [T * C][F of an expert]
  Activation outputs;         // [T * C][D], f32 or as they are rounded
  Activation sent;            // [T * C][D], rounded, of all ranks; and their pieces
  Activation pieces;
  float* shared_pair = nullptr;  // [T][2 * round_up(F of it, 16)] its products, or null
  Activation shared_gated;       // [T][F of the shared expert]
  float* shared = nullptr;       // [T][round_up(D, 32)]
};

class Experts final : public PartOf<ExpertsWeights, ExpertsActivations> {
 public:
  explicit Experts(const PartPlace& place);

  int64_t unread_bytes(const PartWeights& weights) const override;
  const char* refusal() const override;

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  void visit_shared(Weights& w, TensorVisitor& tensors) const;
  void visit_beside(Weights& w, TensorVisitor& tensors) const;
  const Matrix* first(const Weights& w) const override { return &w.router; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  // Places of experts on a rank: [first_expert(rank), first_expert(rank + 1)), whole.
  int first_expert(int rank) const {
    return static_cast<int>(int64_t{places_} * rank / shard_.size);
  }
  MatmulParams router_of(const PartPass& p, const Weights& w, const Activations& at) const;
  bool routes_at_once(const PartPass& p, const Weights& w) const;
  void norm_rows(const PartPass& p, const Weights& w, const Activations& at) const;
  bool forks_shared(const PartPass& p, const Weights& w, bool at_once) const;
  void fork_shared(const PartPass& p, const Weights& w, const Activations& at, bool at_once) const;
  void route(const PartPass& p, const Weights& w, const Activations& at, bool at_once) const;
  Activation expert_outputs(const PartPass& p, const Weights& w, const Activations& at) const;
  Operations::ExpertRows rows_of_experts(const Activations& at) const {
    return {at.begin + first_expert(shard_.rank), at.rows};
  }
  void gated_experts(const PartPass& p, const Weights& w, const Activations& at) const;
  void adapted_experts(const PartPass& p, const Weights& w, const Activations& at) const;
  void curved_experts(const PartPass& p, const Weights& w, const Activations& at) const;
  void bend(const PartPass& p, const float* x, int64_t width, int64_t rows,
            const Activation& out) const;
  Activation gather_outputs(const PartPass& p, const Activations& at) const;
  void shared_output(const PartPass& p, const Weights& w, const Activations& at) const;
  void combine_beside(const PartPass& p, const Weights& w, const Activations& at,
                      const Activation& outputs) const;
  void sum_outputs(const PartPass& p, const Activations& at, const Activation& outputs,
                   float* out) const;
  // Elements that an expert reads and gives.
  int64_t expert_width() const { return spec_.latent > 0 ? spec_.latent : model_.hidden; }
  void make_latents(const PartPass& p, const Weights& w, const Activations& at) const;
  void combine_latents(const PartPass& p, const Weights& w, const Activations& at,
                       const Activation& outputs) const;
  void combine(const PartPass& p, const Weights& w, const Activations& at,
               const Activation& outputs) const;

  int64_t pairs_of(const BackwardPass& b) const { return b.rows() * spec_.routing.chosen; }
  void pair_product(BackwardPass& b, const char* name, const Activations& at, const Activation& x,
                    const Matrix& w, float* y, int64_t y_stride = 0) const;
  struct OfExpert;
  void weight_gradients(BackwardPass& b, const Activations& at, const Activation& dy,
                        int64_t outputs, const Activation& x, int64_t inputs,
                        std::initializer_list<OfExpert> tensors) const;
  std::vector<float> balance(const BackwardPass& b, const Activations& at) const;
  void router_backward(BackwardPass& b, const Kept& kept) const;
  Activation shared_gradients(BackwardPass& b, const Kept& kept) const;
  void shared_backward(BackwardPass& b, const Kept& kept, const Activation& dy) const;

  const ExpertsSpec spec_;
  const int places_;        // of experts in memory, over all ranks
  const int shared_width_;  // this rank's, of the expert that every row goes through
};

}  // namespace invar
