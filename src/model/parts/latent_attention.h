// Attention to one latent vector of each position, which all heads share (DeepSeek-V2, section
// 2.1): the matrices that would make keys and values of it stand with the queries and the outputs
// instead, for every row (numerics 4.3). The forward is in latent_attention.cc, the backward in
// latent_attention_backward.cc.
#pragma once

#include "model/parts/attend.h"
#include "model/parts/indexer.h"

namespace invar {

struct LatentWeights : PartWeights {
  const float* norm = nullptr;         // [D]
  const float* query_norm = nullptr;   // [what queries are made of] or null
  const float* latent_norm = nullptr;  // [latent]
  Matrix down;      // [what queries are made of, or queries; latent and what turns beside it][D]
  Matrix queries;   // [queries][what they are made of], or none
  Matrix key_up;    // [latent][still elements of a query], a stack of heads
  Matrix value_up;  // [elements of an output][latent], a stack of heads
  Matrix o;         // [D][H * elements of an output]
  IndexerWeights indexer;
};

// Arrays that a tape does not keep are of memory that all layers use.
struct LatentActivations : PartActivations {
  float* stream = nullptr;    // [T][D] the residual stream before it, or null
  Activation normed;          // [T][D]
  float* narrow = nullptr;    // [T][what is made of the input]: for queries, then latents
  Activation query;           // [T][what queries are made of], normed
  float* wide = nullptr;      // [T][queries]: of all heads what stays still, then what turns
  Activation still;           // [T][H][still elements]
  float* queries = nullptr;   // [T][H][latent]
  float* products = nullptr;  // [T][(H + 2) * E]: queries, key and value before their rotation
  bf16_t* q = nullptr;        // [T][H][round_up(E, 32)]
  Activation attended;        // [T][H * E]
  float* values = nullptr;    // [T][H][elements of an output]
  Activation out;             // the same, rounded
  float* max = nullptr;       // [T][H] or null; see PartialAttentionParams
  float* sum = nullptr;
  float* raw_query = nullptr;    // [T][what queries are made of] before the norm, or null
  float* raw_latents = nullptr;  // [T][latent] before the norm, or null
  IndexerActivations indexer;
};

class LatentAttention final : public PartOf<LatentWeights, LatentActivations> {
 public:
  explicit LatentAttention(const PartPlace& place)
      : PartOf(place),
        spec_(*layer_spec_.attention()),
        latent_(*spec_.latent),
        share_(heads_of(model_, spec_, shard_)) {
    if (latent_.indexer) indexer_.emplace(model_, *latent_.indexer, layer_);
  }

  StateShape state() const override {
    return {.kv_heads = share_.kv_heads,
            .head_dim = model_.head_dim,
            .index_dim = indexer_ ? indexer_->index_dim() : 0};
  }
  const char* refusal() const override;

 private:
  // Queries that turn, of every head, and the elements between rows of them.
  struct Turning {
    const float* queries;
    int64_t stride;
  };

  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.down; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  void norm(const PartPass& p, const float* x, int64_t stride, int64_t width, const float* weight,
            const Activation& out, bool keeps_pad) const;
  void keep_raw(const PartPass& p, const Weights& w, const Activations& at) const;
  Turning make_queries(const PartPass& p, const Weights& w, const Activations& at) const;
  QkvParams rotate(const PartPass& p, const Weights& w, const Turning& turning,
                   const Attend& attend) const;
  float* latents_of(const PartPass& p, const Weights& w) const {
    return of(p.in_turn).narrow + w.down.n - model_.head_dim;
  }
  float norm_eps() const { return latent_.norm_eps > 0 ? latent_.norm_eps : model_.norm_eps; }

  struct Apart;
  void values_backward(BackwardPass& b, const Kept& kept) const;
  void attention_backward(BackwardPass& b, const Kept& kept) const;
  Apart take_apart(BackwardPass& b) const;
  void queries_backward(BackwardPass& b, const Kept& kept, const Apart& d) const;
  void latents_backward(BackwardPass& b, const Kept& kept, const Apart& d) const;
  void down_backward(BackwardPass& b, const Kept& kept) const;
  void query_gradients(BackwardPass& b, const Activation& dy, int64_t inputs) const;
  void heads_gradient(BackwardPass& b, TensorRole role, const Activation& dy, const Matrix& w,
                      const Activation& x, int64_t x_step) const;
  int64_t width_of_heads(int64_t each) const { return model_.heads * each; }

  const AttentionSpec spec_;
  const LatentSpec latent_;
  const HeadShare share_;
  std::optional<Indexer> indexer_;
};

}  // namespace invar
