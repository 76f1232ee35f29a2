// Attention to one latent vector of each position, which all heads share (DeepSeek-V2, section
// 2.1): the matrices that would make keys and values of it stand with the queries and the outputs
// instead, for every row (numerics 4.3).
#include <numeric>

#include "model/parts/indexer.h"
#include "model/parts/makers.h"

namespace invar {

namespace {

using enum TensorRole;

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

struct LatentActivations : PartActivations {
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
  const char* refusal() const override {
    return "its attention is that of latents, whose gradient is not implemented";
  }

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

  void norm(const PartPass& p, const float* x, int64_t stride, int64_t width, const float* weight,
            const Activation& out, bool keeps_pad) const;
  Turning make_queries(const PartPass& p, const Weights& w, const Activations& at) const;
  QkvParams rotate(const PartPass& p, const Weights& w, const Activations& at,
                   const Turning& turning, const Attend& attend) const;
  float* latents_of(const Weights& w, const Activations& at) const {
    return at.narrow + w.down.n - model_.head_dim;
  }

  const AttentionSpec spec_;
  const LatentSpec latent_;
  const HeadShare share_;
  std::optional<Indexer> indexer_;
};

// Ranks share out heads; what makes latents is whole on each. A head's queries stand apart as what
// does not turn and what does.
void LatentAttention::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden), rank = whole(latent_.rank);
  const auto of_heads = [&](int64_t each) {
    return TensorAxis{model_.heads * each, share_.first_head * each, share_.heads * each};
  };
  const TensorAxis made_of = latent_.query_rank ? whole(latent_.query_rank) : d;
  const std::vector<TensorRow> queries{
      {still_query, "self_attn.still_q_proj.weight", of_heads(latent_.nope), made_of},
      {turning_query, "self_attn.turning_q_proj.weight", of_heads(latent_.rope), made_of}};
  std::vector<TensorRow> down;
  if (latent_.query_rank)
    down.push_back({query_down, "self_attn.q_a_proj.weight", made_of, d});
  else
    down = queries;
  down.push_back({latent_down, "self_attn.kv_a_proj_with_mqa.weight", whole(model_.head_dim), d});
  Each heads{model_.heads, std::vector<int32_t>(static_cast<size_t>(share_.heads))};
  std::iota(heads.here.begin(), heads.here.end(), share_.first_head);

  tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", d}});
  tensors.matrix(w.down, down);
  if (latent_.query_rank) {
    tensors.vector(w.query_norm, {{query_norm, "self_attn.q_a_layernorm.weight", made_of}});
    tensors.matrix(w.queries, queries);
  }
  tensors.vector(w.latent_norm, {{latent_norm, "self_attn.kv_a_layernorm.weight", rank}});
  tensors.matrix(w.key_up,
                 {{key_up, "self_attn.head.{}.k_up_proj.weight", rank, whole(latent_.nope)}},
                 {.is_twin = true, .each = &heads});
  tensors.matrix(w.value_up,
                 {{value_up, "self_attn.head.{}.v_up_proj.weight", whole(latent_.value), rank}},
                 {.is_twin = true, .each = &heads});
  tensors.matrix(w.o, {{o, "self_attn.o_proj.weight", d, of_heads(latent_.value)}},
                 {.takes_quantised = true});
  if (indexer_) indexer_->visit(w.indexer, tensors, made_of);
}

void LatentAttention::place(ActivationMemory& memory, Activations& at) const {
  const int64_t heads = share_.heads, e = model_.head_dim;
  const int64_t queries = heads * (latent_.nope + latent_.rope);
  at.normed = memory.activation(model_.hidden);
  at.narrow = memory.array<float>((latent_.query_rank ? latent_.query_rank : queries) + e);
  if (latent_.query_rank) at.query = memory.activation(latent_.query_rank);
  if (latent_.query_rank) at.wide = memory.array<float>(queries);
  at.still = memory.activation(heads * latent_.nope);
  at.queries = memory.array<float>(heads * latent_.rank);
  at.products = memory.array<float>((heads + 2) * e);
  at.q = memory.heads(heads, e);
  at.attended = memory.activation(heads * e);
  at.values = memory.array<float>(heads * latent_.value);
  at.out = memory.activation(heads * latent_.value);
  if (indexer_) indexer_->place(memory, at.indexer);
}

// h = h + o(value(attention(queries, latents)))
void LatentAttention::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const Attend::Arrays arrays{.products = at.products, .q = at.q, .out = at.attended};
  const Attend attend(p, model_, spec_, share_, arrays);
  attend.copy_slots();
  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);

  const int64_t width = w.down.n, e = model_.head_dim;
  p.ops.product("latents", at.normed, w.down, nullptr, p.rows, at.narrow, width);
  float* latents = latents_of(w, at);
  norm(p, latents, width, latent_.rank, w.latent_norm, {latents, DType::f32, width}, true);
  const Turning turning = make_queries(p, w, at);
  const QkvParams rotation = rotate(p, w, at, turning, attend);
  const int64_t q_stride = share_.heads * round_up(e, 32);
  p.trace("rope", Activation{at.q, p.ops.arithmetic().heads(), q_stride}, q_stride);

  if (indexer_) {
    indexer_->prepare(p, w.indexer, at.indexer, at.normed, at.query);
    indexer_->attend(p, at.indexer, attend);
  } else {
    attend.run(rotation);
  }
  p.trace("attention", at.attended, share_.heads * e);
  p.ops.heads_product("v up", at.attended, e, w.value_up, at.values);
  const int64_t values = int64_t{share_.heads} * latent_.value;
  p.ops.round_part(at.values, values, values, at.out);
  p.ops.add_product("o", at.out, w.o, shard_.runs(attention_output_split_k(model_, spec_)), nullptr,
                    nullptr, p.next);
  p.trace("o", p.hidden, model_.hidden);
}

void LatentAttention::norm(const PartPass& p, const float* x, int64_t stride, int64_t width,
                           const float* weight, const Activation& out, bool keeps_pad) const {
  p.ops.run("norm", p.ops.kernels().rms_norm,
            RmsNormParams{.x = x,
                          .x_stride = stride,
                          .rows_of = nullptr,
                          .weight = weight,
                          .eps = latent_.norm_eps > 0 ? latent_.norm_eps : model_.norm_eps,
                          .rows = p.rows,
                          .width = width,
                          .out = out,
                          .keeps_pad = keeps_pad});
}

// q = up(norm(down(x))), or down(x); each head's still part times its key matrix
LatentAttention::Turning LatentAttention::make_queries(const PartPass& p, const Weights& w,
                                                       const Activations& at) const {
  const int64_t heads = share_.heads;
  const float* q = at.narrow;
  int64_t stride = w.down.n;
  if (latent_.query_rank) {
    norm(p, q, stride, latent_.query_rank, w.query_norm, at.query, false);
    stride = w.queries.n;
    p.ops.product("q", at.query, w.queries, nullptr, p.rows, at.wide, stride);
    q = at.wide;
  }
  p.ops.round_part(q, stride, heads * latent_.nope, at.still);
  p.ops.heads_product("k up", at.still, latent_.nope, w.key_up, at.queries);
  return {q + heads * latent_.nope, stride};
}

// Queries of latents, and the latents in their slots. The norms are done.
QkvParams LatentAttention::rotate(const PartPass& p, const Weights& w, const Activations& at,
                                  const Turning& turning, const Attend& attend) const {
  p.ops.run("place latent", p.ops.kernels().place_latent,
            PlaceLatentParams{.queries = at.queries,
                              .turning_queries = turning.queries,
                              .turning_stride = turning.stride,
                              .latents = latents_of(w, at),
                              .latent_stride = w.down.n,
                              .rows = p.rows,
                              .heads = share_.heads,
                              .rank = latent_.rank,
                              .turning = latent_.rope,
                              .out = at.products});
  const QkvParams rotation = attend.rotation(p.ops.ropes().of(layer_), nullptr, nullptr);
  p.ops.run("rope", p.ops.kernels().qkv, rotation);
  return rotation;
}

}  // namespace

std::unique_ptr<LayerPart> make_latent_attention(const PartPlace& place) {
  return std::make_unique<LatentAttention>(place);
}

}  // namespace invar
