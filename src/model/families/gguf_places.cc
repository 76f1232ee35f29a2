#include "model/families/gguf_places.h"

#include <fmt/format.h>

#include <algorithm>

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
};

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
        return {layer + "ffn_up.weight", spec.layer(tensor.layer).ffn.width};
      break;
    default:
      break;
  }
  return {};
}

// An expert's matrix, in older files by itself, and else in a stack with all the others': its own,
// or that of gates and, behind each, what they gate.
StoredAt expert_place(const DecoderSpec& spec, const TensorSpec& tensor,
                      const TensorSource& stored) {
  const int experts = spec.layer(tensor.layer).experts->routing.experts;
  const std::string layer = fmt::format("blk.{}.", tensor.layer);
  const std::string own = gguf_name(spec, tensor);
  if (tensor.shape.size() == 1) {
    const int64_t first = tensor.expert * tensor.shape[0];
    return {.tensor = own,
            .row = [first](int64_t row) { return first + row; },
            .shape = {experts, tensor.shape[0]}};
  }
  const std::string both = layer + "ffn_gate_up_exps.weight";
  const bool is_down = tensor.role == TensorRole::expert_down;
  const bool is_up = tensor.role == TensorRole::expert_up;
  const std::string alone = fmt::format("{}ffn_{}.{}.weight", layer,
                                        is_down ? "down"
                                        : is_up ? "up"
                                                : "gate",
                                        tensor.expert);
  if (!stored.has(own) && stored.has(alone)) return {alone};
  const bool is_pair = !is_down && !stored.has(own) && stored.has(both);
  const int64_t rows = tensor.shape[0], each = is_pair ? 2 * rows : rows;
  const int64_t first = tensor.expert * each + (is_pair && is_up ? rows : 0);
  return {.tensor = is_pair ? both : own,
          .row = [first](int64_t row) { return first + row; },
          .shape = {experts, each, tensor.shape[1]}};
}

bool turns(TensorRole role) {
  return role == TensorRole::q || role == TensorRole::k || role == TensorRole::q_bias ||
         role == TensorRole::k_bias;
}

}  // namespace

std::string gguf_name(const DecoderSpec& spec, const TensorSpec& tensor) {
  // Of what the feed-forward network reads, by its place behind attention.
  if (tensor.role == TensorRole::post_norm && spec.family == "gpt_oss")
    return fmt::format("blk.{}.post_attention_norm.weight", tensor.layer);
  const auto* found = std::ranges::find(kNames, tensor.role, &GgufName::role);
  if (found == std::end(kNames)) return tensor.name;  // which no such file has
  return tensor.layer < 0 ? found->name : fmt::format("blk.{}.{}", tensor.layer, found->name);
}

bool has_gguf_neighbours(std::string_view family) {
  constexpr std::string_view kFamilies[] = {"llama",   "mistral",    "mixtral",
                                            "granite", "granitemoe", "smollm3"};
  return std::ranges::find(kFamilies, family) != std::end(kFamilies);
}

bool is_gguf_constant(std::string_view name) {
  return name == "rope_freqs.weight";
}

bool is_gguf_router(TensorRole role) {
  return role == TensorRole::router || role == TensorRole::shared_expert_gate;
}

StoredAt gguf_place(const DecoderSpec& spec, const TensorSpec& tensor, const TensorSource& stored) {
  if (tensor.expert >= 0) return expert_place(spec, tensor, stored);
  StoredAt at{gguf_name(spec, tensor)};
  if (tensor.role == TensorRole::shared_expert_gate) {  // a vector there
    at.shape = {tensor.shape[1]};
    at.row = [](int64_t row) { return row; };
  }
  if (turns(tensor.role) && has_gguf_neighbours(spec.family)) at.row = rotation_rows(spec, true);
  const Fused fused = fused_place(spec, tensor, stored);
  const bool is_fused_pair = tensor.role == TensorRole::up && !fused.tensor.empty();
  if (fused.tensor.empty() || (stored.has(at.tensor) && !is_fused_pair) ||
      !stored.has(fused.tensor))
    return at;
  // An ungated layer has one matrix, and it is no pair.
  if (is_fused_pair && !spec.layer(tensor.layer).ffn.is_gated) return at;
  const auto row = at.row;
  return {fused.tensor, [=, first = fused.first](int64_t i) { return first + (row ? row(i) : i); }};
}

}  // namespace invar
