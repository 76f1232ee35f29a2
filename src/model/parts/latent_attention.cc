#include "model/parts/latent_attention.h"

#include <numeric>

#include "model/parts/makers.h"

namespace invar {

using enum TensorRole;

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
  const bool is_kept = memory.is_kept();
  const int64_t heads = share_.heads, e = model_.head_dim;
  const int64_t queries = heads * (latent_.nope + latent_.rope);
  at.stream = memory.stream(model_.hidden);
  at.normed = memory.activation(model_.hidden);
  if (latent_.query_rank) at.query = memory.activation(latent_.query_rank);
  at.still = memory.activation(heads * latent_.nope);
  at.q = memory.heads(heads, e);
  at.attended = memory.activation(heads * e);
  at.out = memory.activation(heads * latent_.value);
  if (is_kept) {
    at.max = memory.array<float>(heads);
    at.sum = memory.array<float>(heads);
    if (latent_.query_rank) at.raw_query = memory.array<float>(latent_.query_rank);
    at.raw_latents = memory.array<float>(latent_.rank);
    return;
  }
  at.narrow = memory.array<float>((latent_.query_rank ? latent_.query_rank : queries) + e);
  if (latent_.query_rank) at.wide = memory.array<float>(queries);
  at.queries = memory.array<float>(heads * latent_.rank);
  at.products = memory.array<float>((heads + 2) * e);
  at.values = memory.array<float>(heads * latent_.value);
  if (indexer_) indexer_->place(memory, at.indexer);
}

// h = h + o(value(attention(queries, latents)))
void LatentAttention::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const Activations& turn = of(p.in_turn);
  const Attend::Arrays arrays{
      .products = turn.products, .q = at.q, .out = at.attended, .max = at.max, .sum = at.sum};
  const Attend attend(p, model_, spec_, share_, arrays);
  attend.copy_slots();
  p.hooks.keep_hidden(at.stream);
  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);

  const int64_t width = w.down.n, e = model_.head_dim;
  p.ops.product("latents", at.normed, w.down, nullptr, p.rows, turn.narrow, width);
  keep_raw(p, w, at);
  float* latents = latents_of(p, w);
  norm(p, latents, width, latent_.rank, w.latent_norm, {latents, DType::f32, width}, true);
  const Turning turning = make_queries(p, w, at);
  const QkvParams rotation = rotate(p, w, turning, attend);
  const int64_t q_stride = share_.heads * round_up(e, 32);
  p.trace("rope", Activation{at.q, p.ops.arithmetic().heads(), q_stride}, q_stride);

  if (indexer_) {
    indexer_->prepare(p, w.indexer, at.indexer, at.normed, at.query);
    indexer_->attend(p, at.indexer, attend);
  } else {
    attend.run(rotation);
  }
  p.trace("attention", at.attended, share_.heads * e);
  p.ops.heads_product("v up", at.attended, e, w.value_up, turn.values);
  const int64_t values = int64_t{share_.heads} * latent_.value;
  p.ops.round_part(turn.values, values, values, at.out);
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
                          .eps = norm_eps(),
                          .rows = p.rows,
                          .width = width,
                          .out = out,
                          .keeps_pad = keeps_pad});
}

// Keeps what norms read, for the backward.
void LatentAttention::keep_raw(const PartPass& p, const Weights& w, const Activations& at) const {
  const auto keep = [&](float* copy, const float* x, int64_t width) {
    if (copy) p.ops.copy_columns({copy, width}, {x, w.down.n}, width);
  };
  keep(at.raw_query, of(p.in_turn).narrow, latent_.query_rank);
  keep(at.raw_latents, latents_of(p, w), latent_.rank);
}

// q = up(norm(down(x))), or down(x); each head's still part times its key matrix
LatentAttention::Turning LatentAttention::make_queries(const PartPass& p, const Weights& w,
                                                       const Activations& at) const {
  const int64_t heads = share_.heads;
  const Activations& turn = of(p.in_turn);
  const float* q = turn.narrow;
  int64_t stride = w.down.n;
  if (latent_.query_rank) {
    norm(p, q, stride, latent_.query_rank, w.query_norm, at.query, false);
    stride = w.queries.n;
    p.ops.product("q", at.query, w.queries, nullptr, p.rows, turn.wide, stride);
    q = turn.wide;
  }
  p.ops.round_part(q, stride, heads * latent_.nope, at.still);
  p.ops.heads_product("k up", at.still, latent_.nope, w.key_up, turn.queries);
  return {q + heads * latent_.nope, stride};
}

// Queries of latents, and the latents in their slots. The norms are done.
QkvParams LatentAttention::rotate(const PartPass& p, const Weights& w, const Turning& turning,
                                  const Attend& attend) const {
  const Activations& turn = of(p.in_turn);
  p.ops.run("place latent", p.ops.kernels().place_latent,
            PlaceLatentParams{.queries = turn.queries,
                              .turning_queries = turning.queries,
                              .turning_stride = turning.stride,
                              .latents = latents_of(p, w),
                              .latent_stride = w.down.n,
                              .rows = p.rows,
                              .heads = share_.heads,
                              .rank = latent_.rank,
                              .turning = latent_.rope,
                              .out = turn.products});
  const QkvParams rotation = attend.rotation(p.ops.ropes().of(layer_), nullptr, nullptr);
  p.ops.run("rope", p.ops.kernels().qkv, rotation);
  return rotation;
}

std::unique_ptr<LayerPart> make_latent_attention(const PartPlace& place) {
  return std::make_unique<LatentAttention>(place);
}

}  // namespace invar
