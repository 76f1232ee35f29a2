#include "model/families/gguf_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "model/families/gguf_state_places.h"
#include "weights/gguf_gemma_keys.h"

namespace invar {

namespace {

struct GgufName {
  TensorRole role;
  const char* name;  // in a layer behind "blk.N."
};

constexpr GgufName kNames[] = {
    {TensorRole::embedding, "token_embd.weight"},
    {TensorRole::final_norm, "output_norm.weight"},
    {TensorRole::final_norm_bias, "output_norm.bias"},
    {TensorRole::head, "output.weight"},
    {TensorRole::input_norm, "attn_norm.weight"},
    {TensorRole::input_norm_bias, "attn_norm.bias"},
    {TensorRole::q, "attn_q.weight"},
    {TensorRole::k, "attn_k.weight"},
    {TensorRole::v, "attn_v.weight"},
    {TensorRole::q_bias, "attn_q.bias"},
    {TensorRole::k_bias, "attn_k.bias"},
    {TensorRole::v_bias, "attn_v.bias"},
    {TensorRole::q_norm, "attn_q_norm.weight"},
    {TensorRole::k_norm, "attn_k_norm.weight"},
    {TensorRole::o, "attn_output.weight"},
    {TensorRole::o_bias, "attn_output.bias"},
    {TensorRole::attention_out_norm, "post_attention_norm.weight"},
    {TensorRole::post_norm, "ffn_norm.weight"},
    {TensorRole::post_norm_bias, "ffn_norm.bias"},
    {TensorRole::gate, "ffn_gate.weight"},
    {TensorRole::up, "ffn_up.weight"},
    {TensorRole::down, "ffn_down.weight"},
    {TensorRole::gate_bias, "ffn_gate.bias"},
    {TensorRole::up_bias, "ffn_up.bias"},
    {TensorRole::down_bias, "ffn_down.bias"},
    {TensorRole::ffn_out_norm, "post_ffw_norm.weight"},
    {TensorRole::router, "ffn_gate_inp.weight"},
    {TensorRole::router_norm, "ffn_gate_inp.scale"},
    {TensorRole::expert_scale, "ffn_down_exps.scale"},
    {TensorRole::experts_norm, "pre_ffw_norm_2.weight"},
    {TensorRole::experts_out_norm, "post_ffw_norm_2.weight"},
    {TensorRole::sum_out_norm, "post_ffw_norm.weight"},
    {TensorRole::layer_input_embedding, "per_layer_token_embd.weight"},
    {TensorRole::layer_input_projection, "per_layer_model_proj.weight"},
    {TensorRole::layer_input_norm, "per_layer_proj_norm.weight"},
    {TensorRole::own_input_gate, "inp_gate.weight"},
    {TensorRole::own_input_projection, "proj.weight"},
    {TensorRole::own_input_out_norm, "post_norm.weight"},
    {TensorRole::layer_scalar, "layer_output_scale.weight"},
    {TensorRole::shared_expert_gate, "ffn_gate_inp_shexp.weight"},
    {TensorRole::expert_gate, "ffn_gate_exps.weight"},
    {TensorRole::expert_up, "ffn_up_exps.weight"},
    {TensorRole::expert_down, "ffn_down_exps.weight"},
    {TensorRole::router_bias, "ffn_gate_inp.bias"},
    {TensorRole::expert_gate_bias, "ffn_gate_exps.bias"},
    {TensorRole::expert_up_bias, "ffn_up_exps.bias"},
    {TensorRole::expert_down_bias, "ffn_down_exps.bias"},
    {TensorRole::sinks, "attn_sinks.weight"},
    {TensorRole::shared_gate, "ffn_gate_shexp.weight"},
    {TensorRole::shared_up, "ffn_up_shexp.weight"},
    {TensorRole::shared_down, "ffn_down_shexp.weight"},
    {TensorRole::choice_bias, "exp_probs_b.bias"},
    {TensorRole::query_down, "attn_q_a.weight"},
    {TensorRole::query_norm, "attn_q_a_norm.weight"},
    {TensorRole::still_query, "attn_q_b.weight"},
    {TensorRole::turning_query, "attn_q_b.weight"},
    {TensorRole::latent_down, "attn_kv_a_mqa.weight"},
    {TensorRole::latent_norm, "attn_kv_a_norm.weight"},
    {TensorRole::key_up, "attn_k_b.weight"},
    {TensorRole::value_up, "attn_v_b.weight"},
    {TensorRole::projection, "nextn.eh_proj.weight"},
    {TensorRole::embedding_norm, "nextn.enorm.weight"},
    {TensorRole::hidden_norm, "nextn.hnorm.weight"},
    {TensorRole::mtp_head_norm, "nextn.shared_head_norm.weight"},
    {TensorRole::q_gate, "attn_q.weight"},
    {TensorRole::recurrent_q, "attn_qkv.weight"},
    {TensorRole::recurrent_k, "attn_qkv.weight"},
    {TensorRole::recurrent_v, "attn_qkv.weight"},
    {TensorRole::recurrent_gate, "attn_gate.weight"},
    {TensorRole::recurrent_factor, "ssm_ba.weight"},
    {TensorRole::recurrent_decay, "ssm_ba.weight"},
    {TensorRole::recurrent_o, "ssm_out.weight"},
    {TensorRole::conv_q, "ssm_conv1d.weight"},
    {TensorRole::conv_k, "ssm_conv1d.weight"},
    {TensorRole::conv_v, "ssm_conv1d.weight"},
    {TensorRole::conv_q_bias, "ssm_conv1d.bias"},
    {TensorRole::conv_k_bias, "ssm_conv1d.bias"},
    {TensorRole::conv_v_bias, "ssm_conv1d.bias"},
    {TensorRole::decay_bias, "ssm_dt.bias"},
    {TensorRole::decay_rate, "ssm_a"},
    {TensorRole::skip, "ssm_d"},
    {TensorRole::head_norm, "ssm_norm.weight"},
    {TensorRole::conv_factor, "shortconv.in_proj.weight"},
    {TensorRole::conv_gate, "shortconv.in_proj.weight"},
    {TensorRole::conv_input, "shortconv.in_proj.weight"},
    {TensorRole::conv_tap, "shortconv.conv.weight"},
    {TensorRole::conv_o, "shortconv.out_proj.weight"},
};

const char* find_name(std::span<const GgufName> names, TensorRole role) {
  const auto found = std::ranges::find(names, role, &GgufName::role);
  return found == names.end() ? nullptr : found->name;
}

// Rows of a tensor that begin at some row of another one.
struct Fused {
  std::string tensor;
  int64_t first = 0;
};

// q, k and v in one tensor; gate and up in one that bears up's name.
Fused fused_place(const DecoderSpec& spec, const TensorSpec& tensor, const TensorSource& stored) {
  const std::string layer = fmt::format("blk.{}.", tensor.layer);
  const int64_t q = spec.query_width(), kv = spec.kv_width();
  switch (tensor.role) {
    case TensorRole::q:
      return {layer + "attn_qkv.weight", 0};
    case TensorRole::k:
      return {layer + "attn_qkv.weight", q};
    case TensorRole::v:
      return {layer + "attn_qkv.weight", q + kv};
    case TensorRole::q_bias:
      return {layer + "attn_qkv.bias", 0};
    case TensorRole::k_bias:
      return {layer + "attn_qkv.bias", q};
    case TensorRole::v_bias:
      return {layer + "attn_qkv.bias", q + kv};
    case TensorRole::gate:
      return {layer + "ffn_up.weight", 0};
    case TensorRole::up:
      if (!stored.has(layer + "ffn_gate.weight"))
        return {layer + "ffn_up.weight", spec.layer(tensor.layer).ffn_width()};
      break;
    default:
      break;
  }
  return {};
}

// An expert's, or a head's, in a stack with all the others'.
StoredAt in_stack(const DecoderSpec& spec, const TensorSpec& tensor) {
  const bool is_head = tensor.role == TensorRole::key_up || tensor.role == TensorRole::value_up;
  const int64_t first = tensor.expert * tensor.shape[0];
  StoredAt at{gguf_name(spec, tensor), [first](int64_t row) { return first + row; }};
  at.shape = tensor.shape;
  at.shape.insert(at.shape.begin(),
                  is_head ? spec.heads : spec.layer(tensor.layer).experts()->routing.experts);
  return at;
}

// A gate, or what it gates, in a stack of gates and, behind each, what they gate.
StoredAt in_stack_of_pairs(const DecoderSpec& spec, const TensorSpec& tensor) {
  const int64_t rows = tensor.shape[0];
  const int64_t first =
      2 * tensor.expert * rows + (tensor.role == TensorRole::expert_up ? rows : 0);
  StoredAt at = in_stack(spec, tensor);
  at.tensor = fmt::format("blk.{}.ffn_gate_up_exps.weight", tensor.layer);
  at.row = [first](int64_t row) { return first + row; };
  at.shape[1] = 2 * rows;
  return at;
}

// An expert's matrix in older files by itself, or in a stack of its own or of pairs.
StoredAt expert_elsewhere(const DecoderSpec& spec, const TensorSpec& tensor,
                          const TensorSource& stored) {
  const char* which = tensor.role == TensorRole::expert_down ? "down"
                      : tensor.role == TensorRole::expert_up ? "up"
                                                             : "gate";
  const std::string layer = fmt::format("blk.{}.", tensor.layer);
  const std::string alone = fmt::format("{}ffn_{}.{}.weight", layer, which, tensor.expert);
  if (stored.has(alone)) return {alone};
  if (tensor.role == TensorRole::expert_down || !stored.has(layer + "ffn_gate_up_exps.weight"))
    return in_stack(spec, tensor);
  return in_stack_of_pairs(spec, tensor);
}

// A head's keys and values of the latent in one tensor, as in directories and older files.
StoredAt head_elsewhere(const DecoderSpec& spec, const TensorSpec& tensor,
                        const TensorSource& stored) {
  const std::string both = fmt::format("blk.{}.attn_kv_b.weight", tensor.layer);
  if (!stored.has(both)) return in_stack(spec, tensor);
  StoredAt at = family_of(spec).stored(spec, tensor);
  at.tensor = both;
  return at;
}

bool is_expert_matrix(TensorRole role) {
  return role == TensorRole::expert_gate || role == TensorRole::expert_up ||
         role == TensorRole::expert_down;
}

bool is_qwen_with_states(std::string_view family) {
  return family == "qwen3_next" || family.starts_with("qwen3_5");
}

// Families whose rows stand as in their directories: what turns in part, and what holds two.
bool has_rows_of_directories(std::string_view family) {
  return family == "glm4_moe" || family == "deepseek_v2" || family == "deepseek_v3" ||
         family == "kimi_linear" || is_qwen_with_states(family);
}

bool turns(TensorRole role) {
  return role == TensorRole::q || role == TensorRole::k || role == TensorRole::q_bias ||
         role == TensorRole::k_bias;
}

// The factor that makes bf16 numbers of Falcon H1's folded ones.
float unfolding(const DecoderSpec& spec, TensorRole role) {
  if (role == TensorRole::embedding) return 1 / spec.embedding_scale;
  return role == TensorRole::head ? spec.logits_divisor : 1;
}

}  // namespace

std::string gguf_name(const DecoderSpec& spec, const TensorSpec& tensor) {
  const auto in_layer = [&](const char* name) {
    return fmt::format("blk.{}.{}", tensor.layer, name);
  };
  // The norm of the feed-forward network's input stands behind attention there.
  if (tensor.role == TensorRole::post_norm &&
      (spec.family == "gpt_oss" || spec.family == "glm4_moe" || is_qwen_with_states(spec.family)))
    return in_layer("post_attention_norm.weight");
  if (tensor.role == TensorRole::post_norm && spec.family == "nemotron_h")  // of a layer's one part
    return in_layer("attn_norm.weight");
  if (tensor.role == TensorRole::post_norm && spec.family == "falcon_h1")
    return in_layer("ffn_norm");  // llama.cpp's files of this family have no .weight here
  if (tensor.role == TensorRole::ffn_out_norm && spec.layer(tensor.layer).has_networks_beside())
    return in_layer("post_ffw_norm_1.weight");
  if (tensor.role == TensorRole::final_norm && spec.family.starts_with("lfm2"))
    return "token_embd_norm.weight";
  if (const char* name = gguf_state_name(spec, tensor)) return in_layer(name);
  const bool is_query =
      tensor.role == TensorRole::still_query || tensor.role == TensorRole::turning_query;
  if (is_query && spec.layer(tensor.layer).attention()->latent->query_rank == 0)
    return in_layer("attn_q.weight");
  const char* name = find_name(kNames, tensor.role);
  if (!name) return tensor.name;  // which no such file has
  return tensor.layer < 0 ? name : in_layer(name);
}

bool has_gguf_neighbours(std::string_view family) {
  constexpr std::string_view kFamilies[] = {"llama",   "mistral",    "mixtral", "granitemoehybrid",
                                            "granite", "granitemoe", "smollm3", "nemotron_h"};
  return std::ranges::find(kFamilies, family) != std::end(kFamilies);
}

bool is_gguf_constant(std::string_view name) {
  return name == "rope_freqs.weight";
}

std::vector<std::pair<std::string, std::string>> gguf_module_tensors(const DecoderSpec& spec) {
  if (spec.mtp_layers == 0) return {};
  const std::string here = fmt::format("blk.{}.nextn.", spec.layers);
  const std::string there = fmt::format("model.layers.{}.", spec.layers);
  return {{here + "embed_tokens.weight", there + "embed_tokens.weight"},
          {here + "shared_head_head.weight", there + "shared_head.head.weight"}};
}

bool is_gguf_router(TensorRole role) {
  return role == TensorRole::router || role == TensorRole::shared_expert_gate;
}

bool may_be_f32_in_gguf(TensorRole role) {
  return is_gguf_router(role) || role == TensorRole::recurrent_factor ||
         role == TensorRole::recurrent_decay;
}

bool is_gguf_folded(const DecoderSpec& spec, const TensorSpec& tensor) {
  return spec.family == "falcon_h1" && unfolding(spec, tensor.role) != 1;
}

std::vector<GgufConstant> gguf_constants(const DecoderSpec& spec) {
  if (spec.family != "gemma4_text") return {};
  const auto is_full = [](const LayerSpec& layer) { return layer.window() == 0; };
  const auto full = std::ranges::find_if(spec.layer_specs, is_full);
  if (full == spec.layer_specs.end()) return {};
  const AttentionSpec& attention = *full->attention();
  return {{"rope_freqs.weight",
           gemma4_rope_factors(spec.head_dim_of(attention), attention.rope->rotated)}};
}

StoredAt gguf_place(const DecoderSpec& spec, const TensorSpec& tensor) {
  const bool is_gemma4 = spec.family == "gemma4_text";
  if (is_of_state(spec, tensor)) return gguf_state_place(spec, tensor);
  if (tensor.expert >= 0 && is_gemma4 && tensor.role != TensorRole::expert_down)
    return in_stack_of_pairs(spec, tensor);
  if (tensor.expert >= 0) return in_stack(spec, tensor);
  StoredAt at{gguf_name(spec, tensor)};
  if (is_gemma4) at.scale = family_of(spec).stored(spec, tensor).scale;
  if (is_gguf_folded(spec, tensor)) at.scale = unfolding(spec, tensor.role);
  if (tensor.role == TensorRole::shared_expert_gate) at.shape = {tensor.shape[1]};  // a vector
  if (turns(tensor.role) && has_gguf_neighbours(spec.family)) at.row = rotation_rows(spec, true);
  if (has_rows_of_directories(spec.family)) at.row = family_of(spec).stored(spec, tensor).row;
  return at;
}

namespace {

// llama.cpp's quantiser leaves out dimensions of 1 before the others.
void leave_out_ones(StoredAt& at, const TensorSource& stored) {
  if (!stored.has(at.tensor)) return;
  const size_t dimensions = stored.info(at.tensor).shape.size();
  while (at.shape.size() > dimensions && at.shape[0] == 1) at.shape.erase(at.shape.begin());
}

}  // namespace

StoredAt gguf_place(const DecoderSpec& spec, const TensorSpec& tensor, const TensorSource& stored) {
  StoredAt at = gguf_place(spec, tensor);
  leave_out_ones(at, stored);
  if (is_expert_matrix(tensor.role))
    return stored.has(at.tensor) ? at : expert_elsewhere(spec, tensor, stored);
  if (tensor.role == TensorRole::key_up || tensor.role == TensorRole::value_up)
    return stored.has(at.tensor) ? at : head_elsewhere(spec, tensor, stored);
  const Fused fused = fused_place(spec, tensor, stored);
  const bool is_fused_pair = tensor.role == TensorRole::up && !fused.tensor.empty();
  if (fused.tensor.empty() || (stored.has(at.tensor) && !is_fused_pair) ||
      !stored.has(fused.tensor))
    return at;
  // An ungated layer has one matrix, and it is no pair.
  if (is_fused_pair && !spec.layer(tensor.layer).ffn()->is_gated) return at;
  const auto row = at.row;
  return {fused.tensor, [=, first = fused.first](int64_t i) { return first + (row ? row(i) : i); }};
}

}  // namespace invar
