// Attention to one latent vector of each position, which all heads share (DeepSeek-V2, section
// 2.1): the matrices that would make keys and values of it stand with the queries and the outputs
// instead, for every row (numerics 4.3).
#include "base/check.h"
#include "model/activation_memory.h"
#include "model/backward_pass.h"
#include "model/parts/layer_part.h"
#include "model/parts/layer_pass.h"

namespace invar {

namespace {

using enum TensorRole;
using E = Extent;
using M = LayerMatrices;
using W = LayerWeights;

constexpr TensorPlace kLayer = TensorPlace::layer;
constexpr Axis kWhole = Axis::none, kRows = Axis::rows, kColumns = Axis::columns;
constexpr Axis kHeads = Axis::heads;

constexpr auto with_query_rank = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.attention.latent->query_rank > 0;
};
constexpr auto without_query_rank = [](const DecoderSpec&, const LayerSpec& layer) {
  return layer.attention.latent->query_rank == 0;
};

// Ranks share out heads; what makes latents is whole on each. A head's queries stand apart as what
// does not turn and what does.
// clang-format off
constexpr TensorRow kTensors[] = {
    {input_norm, "input_layernorm.weight", kLayer, E::hidden, E::none, kWhole, nullptr, nullptr, &W::attention_norm},
    {query_down, "self_attn.q_a_proj.weight", kLayer, E::query_rank, E::hidden, kWhole, with_query_rank, &M::latent_down},
    {still_query, "self_attn.still_q_proj.weight", kLayer, E::still_query, E::hidden, kRows, without_query_rank, &M::latent_down},
    {turning_query, "self_attn.turning_q_proj.weight", kLayer, E::turning_query, E::hidden, kRows, without_query_rank, &M::latent_down},
    {latent_down, "self_attn.kv_a_proj_with_mqa.weight", kLayer, E::latent, E::hidden, kWhole, nullptr, &M::latent_down},
    {query_norm, "self_attn.q_a_layernorm.weight", kLayer, E::query_rank, E::none, kWhole, with_query_rank, nullptr, &W::q_norm},
    {still_query, "self_attn.still_q_proj.weight", kLayer, E::still_query, E::query_rank, kRows, with_query_rank, &M::qkv},
    {turning_query, "self_attn.turning_q_proj.weight", kLayer, E::turning_query, E::query_rank, kRows, with_query_rank, &M::qkv},
    {latent_norm, "self_attn.kv_a_layernorm.weight", kLayer, E::latent_rank, E::none, kWhole, nullptr, nullptr, &W::k_norm},
    {key_up, "self_attn.head.{}.k_up_proj.weight", kLayer, E::latent_rank, E::still, kHeads, nullptr, &M::key_up},
    {value_up, "self_attn.head.{}.v_up_proj.weight", kLayer, E::latent_value, E::latent_rank, kHeads, nullptr, &M::value_up},
    {o, "self_attn.o_proj.weight", kLayer, E::hidden, E::attended, kColumns, nullptr, &M::o},
};
// clang-format on

bool is_in(const LayerSpec& layer) {
  return !layer.block && layer.attention.latent;
}

void place(ActivationMemory& memory, const Decoder& decoder, int layer, LayerActivations& at) {
  const DecoderSpec& spec = decoder.spec;
  const LatentSpec latent = *spec.layer(layer).attention.latent;
  const int64_t heads = decoder.weights->shard().heads, e = spec.head_dim;
  const int64_t queries = heads * (latent.still + latent.turning);
  at.normed = memory.activation(spec.hidden);
  at.latent_narrow = memory.array<float>((latent.query_rank ? latent.query_rank : queries) + e);
  if (latent.query_rank) at.latent_query = memory.activation(latent.query_rank);
  if (latent.query_rank) at.latent_wide = memory.array<float>(queries);
  at.latent_still = memory.activation(heads * latent.still);
  at.latent_queries = memory.array<float>(heads * latent.rank);
  at.products = memory.array<float>((heads + 2) * e);
  at.q = memory.array<bf16_t>(heads * round_up(e, 32));
  at.attended = memory.activation(heads * e);
  at.latent_values = memory.array<float>(heads * latent.value);
  at.latent_out = memory.activation(heads * latent.value);
}

// q = up(norm(down(x))), or down(x); each head's still part times its key matrix
void queries(const LayerPass& p, const float*& turning, int64_t& stride) {
  const LatentSpec& latent = *p.spec.attention.latent;
  const int64_t heads = p.shard.heads;
  const float* q = p.at.latent_narrow;
  stride = p.w.latent_down.n;
  if (latent.query_rank) {
    p.ops.norm_part(q, stride, latent.query_rank, p.w.q_norm, p.at.latent_query);
    stride = p.w.qkv.n;
    p.ops.product("q", p.at.latent_query, p.w.qkv, nullptr, p.rows, p.at.latent_wide, stride);
    q = p.at.latent_wide;
  }
  turning = q + heads * latent.still;
  p.ops.round_part(q, stride, heads * latent.still, p.at.latent_still);
  p.ops.heads_product("k up", p.at.latent_still, latent.still, p.w.key_up, p.at.latent_queries);
}

// h = h + o(value(attention(queries, latents)))
void forward(const LayerPass& p) {
  const LatentSpec& latent = *p.spec.attention.latent;
  p.ops.copy_slots(p.kv);
  p.ops.norm(p.hidden, p.w.attention_norm, p.at.normed);
  p.trace("attention_norm", p.at.normed, p.model.hidden);

  const int64_t width = p.w.latent_down.n, e = p.model.head_dim;
  float* latents = p.at.latent_narrow + width - e;
  p.ops.product("latents", p.at.normed, p.w.latent_down, nullptr, p.rows, p.at.latent_narrow,
                width);
  p.ops.norm_part(latents, width, latent.rank, p.w.k_norm, {latents, DType::f32, width}, true);
  const float* turning = nullptr;
  int64_t stride = 0;
  queries(p, turning, stride);
  p.ops.latent_qkv(p, turning, stride);
  p.hooks.trace_queries(p.layer, p.at.q);

  p.ops.attention(p);
  p.trace("attention", p.at.attended, p.shard.heads * e);
  p.ops.heads_product("v up", p.at.attended, e, p.w.value_up, p.at.latent_values);
  const int64_t values = int64_t{p.shard.heads} * latent.value;
  p.ops.round_part(p.at.latent_values, values, values, p.at.latent_out);
  p.ops.add_product("o", p.at.latent_out, p.w.o, p.shard.o_split_k, nullptr, nullptr,
                    p.ops.plan().after_o(p.layer));
  p.trace("o", p.hidden, p.model.hidden);
}

void backward(BackwardPass&, int) {
  CHECK(false, "a backward of latent attention");  // refused before
}

const char* refusal(const DecoderSpec&, const LayerSpec&) {
  return "its attention is that of latents, whose gradient is not implemented";
}

}  // namespace

const LayerPart kLatentAttention{.is_in = is_in,
                                 .tensors = kTensors,
                                 .place = place,
                                 .forward = forward,
                                 .backward = backward,
                                 .refusal = refusal};

}  // namespace invar
