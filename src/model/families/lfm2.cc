// LFM2: gated short convolutions, and attention in some layers; dense, and with experts behind the
// first layers.
#include <algorithm>

#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

constexpr std::string_view kKinds[] = {"conv", "full_attention"};

// Which layers attend: as layer_types says, or the older list of numbers; without either, all.
std::vector<bool> read_attending(ConfigReader& reader, int layers) {
  std::vector<bool> attends(static_cast<size_t>(layers), true);
  const std::vector<size_t> kinds = read_kinds(reader, "layer_types", layers, kKinds);
  for (size_t i = 0; i < kinds.size(); ++i) attends[i] = kinds[i] == 1;
  const json::Value* numbers = reader.take("full_attn_idxs");
  if (!numbers || !kinds.empty()) return attends;
  attends.assign(attends.size(), false);
  for (const json::Value& number :
       numbers->is_array() ? numbers->as_array() : json::Array{*numbers}) {
    const auto layer = number.to_integer();
    if (!layer || *layer < 0 || *layer >= layers)
      fail("{}: \"full_attn_idxs\": expected numbers of layers below {}, found {}", reader.where(),
           layers, json::excerpt(number));
    attends[static_cast<size_t>(*layer)] = true;
  }
  return attends;
}

void read_convs(ConfigReader& reader, DecoderSpec& spec) {
  const ShortConvSpec conv{.taps = read_size(reader, "conv_L_cache", 64, 3)};
  const std::vector<bool> attends = read_attending(reader, spec.layers);
  for (size_t i = 0; i < attends.size(); ++i)
    if (!attends[i]) spec.layer_specs[i].put(conv);
  spec.tied_head = reader.boolean("tie_embedding", spec.tied_head);
  check_neutral(reader, "conv_bias", false);
  check_neutral(reader, "use_pos_enc", true);
  check_neutral(reader, "block_use_swiglu", true);
  for (const char* key : {"conv_dim", "conv_dim_out", "block_dim"})
    check_neutral(reader, key, spec.hidden);
  check_neutral(reader, "num_heads", spec.heads);
  const std::string_view harmless[] = {"block_mlp_init_scale", "block_out_init_scale",
                                       "block_use_xavier_init", "conv_use_xavier_init",
                                       "block_norm_eps"};
  reader.ignore(harmless);
}

// The width as it is, or two thirds of it, times a number, in whole `block_multiple_of`.
int read_width(ConfigReader& reader) {
  int64_t width = reader.integer("intermediate_size", 1, kMaxWidth, 12288);
  width = reader.integer("block_ff_dim", 1, kMaxWidth, width);
  const bool is_adjusted = reader.boolean("block_auto_adjust_ff_dim", true);
  const double factor = reader.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1);
  const int64_t multiple = reader.integer("block_multiple_of", 1, kMaxWidth, 256);
  if (!is_adjusted) return static_cast<int>(width);
  width = static_cast<int64_t>(factor * static_cast<double>(2 * width / 3));
  return static_cast<int>((width + multiple - 1) / multiple * multiple);
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  const DenseFfnSpec ffn{.width = read_width(reader)};
  change_layers(spec, [&](LayerSpec& layer) { layer.put(ffn); });
  read_convs(reader, spec);
}

void read_moe(ConfigReader& reader, DecoderSpec& spec) {
  Routing how = read_routing(reader, "num_experts", 32, 4);
  how.score = ExpertScore::sigmoid;
  how.renormalised = reader.boolean("norm_topk_prob", true);
  if (how.renormalised) how.epsilon = 1e-6f;
  how.scale = static_cast<float>(reader.number("routed_scaling_factor", 1e-6, 1e6, 1));
  const ExpertsSpec experts{.routing = how,
                            .width = read_size(reader, "moe_intermediate_size", kMaxWidth, 1792),
                            .has_choice_bias = reader.boolean("use_expert_bias", true)};
  const DenseFfnSpec ffn{.width = read_size(reader, "intermediate_size", kMaxWidth, 7168)};
  const int64_t dense = reader.integer("num_dense_layers", 0, kMaxLayers, 2);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(ffn); });
  set_experts(spec, experts, [&](int i) { return i >= dense; });
  read_convs(reader, spec);
}

void write_convs(const DecoderSpec& spec, json::Value& config) {
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(kKinds[layer.attention() ? 1 : 0]);
  config.set("layer_types", std::move(types));
  if (const ShortConvSpec* conv = spec.first<ShortConvSpec>())
    config.set("conv_L_cache", conv->taps);
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("block_auto_adjust_ff_dim", false);
  write_convs(spec, config);
}

void write_moe(const DecoderSpec& spec, json::Value& config) {
  const ExpertsSpec& experts = experts_of(spec);
  int dense = 0;
  while (dense < spec.layers && !spec.layer(dense).experts()) ++dense;
  config.set("num_experts", experts.routing.experts);
  config.set("num_experts_per_tok", experts.routing.chosen);
  config.set("moe_intermediate_size", experts.width);
  config.set("use_expert_bias", experts.has_choice_bias);
  config.set("norm_topk_prob", experts.routing.renormalised);
  config.set("routed_scaling_factor", json::shortest(experts.routing.scale));
  config.set("num_dense_layers", dense);
  write_convs(spec, config);
}

// A preset's layers: every third attends.
void shape(DecoderSpec& spec) {
  for (size_t i = 0; i < spec.layer_specs.size(); ++i)
    if (i % 3 != 2) spec.layer_specs[i].put(ShortConvSpec{.taps = 3});
}

void shape_moe(DecoderSpec& spec) {
  imply_experts(spec, {.score = ExpertScore::sigmoid, .renormalised = true, .epsilon = 1e-6f});
  change_layers(spec, [](LayerSpec& layer) {
    if (layer.experts()) layer.experts()->has_choice_bias = true;
  });
  shape(spec);
}

// ---- Tensors

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const std::string at = fmt::format("model.layers.{}.", tensor.layer);
  const std::string network = at + "feed_forward.";
  const int64_t d = spec.hidden;
  switch (tensor.role) {
    case final_norm:
      return {"model.embedding_norm.weight"};
    case input_norm:
      return {at + "operator_norm.weight"};
    case post_norm:
      return {at + "ffn_norm.weight"};
    case conv_factor:
      return {at + "conv.in_proj.weight", behind(0)};
    case conv_gate:
      return {at + "conv.in_proj.weight", behind(d)};
    case conv_input:
      return {at + "conv.in_proj.weight", behind(2 * d)};
    case conv_tap:
      return stored_tap(tensor, at + "conv.conv.weight", d, 0,
                        spec.layer(tensor.layer).find<ShortConvSpec>()->taps);
    case q_norm:
    case k_norm:
      return {renamed(tensor.name, {{"_norm.", "_layernorm."}})};
    case o:
      return {at + "self_attn.out_proj.weight"};
    case router:
      return {network + "gate.weight"};
    case choice_bias:
      return {network + "expert_bias"};
    default:
      break;
  }
  for (const auto& [ours, theirs] :
       {std::pair("gate_proj", "w1"), {"up_proj", "w3"}, {"down_proj", "w2"}})
    if (const size_t place = tensor.name.find(ours); place != std::string::npos)
      return {renamed(renamed(tensor.name, {{"mlp.", "feed_forward."}}), {{ours, theirs}})};
  return {tensor.name};
}

StoredAt stored_stacked(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.expert < 0 || tensor.role == TensorRole::conv_tap) return {tensor.name};
  const std::string at = fmt::format("model.layers.{}.feed_forward.experts.", tensor.layer);
  return stacked_at(spec, tensor, at + "gate_up_proj", at + "down_proj");
}

}  // namespace

extern const Family kLfm2{.name = "lfm2",
                          .architecture = "Lfm2ForCausalLM",
                          .qk_norm = true,
                          .has_dense_layers = false,
                          .has_states = true,
                          .is_tied = true,
                          .theta = 1e6,
                          .eps_key = "norm_eps",
                          .read = read,
                          .write = write,
                          .stored = stored,
                          .shape = shape};

extern const Family kLfm2Moe{.name = "lfm2_moe",
                             .architecture = "Lfm2MoeForCausalLM",
                             .qk_norm = true,
                             .has_dense_layers = false,
                             .has_states = true,
                             .is_tied = true,
                             .theta = 1e6,
                             .eps_key = "norm_eps",
                             .read = read_moe,
                             .write = write_moe,
                             .stored = stored,
                             .stored_otherwise = stored_stacked,
                             .shape = shape_moe};

}  // namespace invar
