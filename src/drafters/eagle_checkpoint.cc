#include "drafters/eagle_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "model/families/config_reader.h"
#include "model/families/make_model.h"
#include "model/families/tensors.h"
#include "weights/hf_directory.h"

namespace invar {

namespace {

constexpr const char* kFiles[] = {"model.safetensors"};
constexpr int32_t kMadeTokens = 32000;
const std::string kLayer = "model.layers.0.";  // of the decoder

// The keys of the one layer, read as those of a Llama model; all else in a drafter's config.json is
// about its training or read below.
DecoderSpec layer_spec(const json::Value& config, const std::string& directory) {
  json::Value layer(json::Object{{"model_type", "llama"}, {"num_hidden_layers", 1}});
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta",
        "rope_scaling", "rope_parameters", "hidden_act"})
    if (const json::Value* value = config.find(key)) layer.set(key, *value);
  return parse_model_config(layer, nullptr, directory).spec;
}

// The layers whose inputs are the features: what the configuration says, or the paper's.
std::vector<int32_t> feature_layers(ConfigReader& reader, const json::Value& config, int layers) {
  constexpr const char* kKey = "eagle_aux_hidden_state_layer_ids";
  const json::Value* list = reader.take(kKey);
  if (const json::Value* inner = config.find("eagle_config"); !list && inner)
    list = inner->find(kKey);
  std::vector<int32_t> ids = {2, layers / 2, layers - 3};
  if (list) {
    ids.clear();
    if (list->is_array())
      for (const json::Value& id : list->as_array()) {
        const int64_t layer = id.to_integer().value_or(0);
        ids.push_back(layer >= 1 && layer <= layers ? static_cast<int32_t>(layer) : 0);
      }
  }
  if (ids.size() != 3 || std::ranges::min(ids) < 1 || std::ranges::max(ids) > layers)
    fail("{}: \"{}\": expected three numbers of the target's layers from 1 to {}, found {}",
         reader.where(), kKey, layers, list ? json::excerpt(*list) : fmt::format("{}", ids));
  return ids;
}

}  // namespace

EagleCheckpoint::EagleCheckpoint(const std::string& directory, EagleKind kind,
                                 const DecoderSpec& target, const TensorSource& target_weights,
                                 bool shares_embedding)
    : kind_(kind), shares_embedding_(shares_embedding), target_(target) {
  if (const std::optional<uint64_t> seed = made_seed(directory))
    make(*seed);
  else
    read(directory, target_weights);
}

// Makes a layer of the target's shape, which reads the target's first, middle and last layers.
void EagleCheckpoint::make(uint64_t seed) {
  spec_ = {.family = "llama",
           .hidden = target_.hidden,
           .layers = 1,
           .heads = target_.heads,
           .kv_heads = target_.kv_heads,
           .head_dim = target_.head_dim,
           .vocab = target_.vocab,
           .embedding_rows = shares_embedding_ ? 0 : target_.vocab,
           .max_positions = target_.max_positions,
           .norm_eps = target_.norm_eps,
           .final_norm = kind_ == EagleKind::eagle3};
  LayerSpec layer = target_.layer(0);
  if (!layer.attention())
    fail_usage("expected a target whose first layer attends, as a made drafter's is like it");
  layer.attention()->window = 0;
  layer.attention()->norms = NormPlace::none;
  std::erase_if(layer.parts, [](const PartSpec& part) { return role_of(part) == PartRole::end; });
  const bool is_3 = kind_ == EagleKind::eagle3;
  layer.put(JoinSpec{.is_projected = !is_3,
                     .embedding_norm = is_3,
                     .hidden_norm = is_3,
                     .features = is_3 ? 3 : 1,
                     .feature_width = target_.hidden});
  spec_.set_layers(layer);
  std::vector<int32_t> inputs = {target_.layers};
  if (is_3) {
    inputs = {1, (target_.layers + 1) / 2, target_.layers};
    spec_.vocab = std::min(target_.vocab, kMadeTokens);
    for (int64_t i = 0; i < spec_.vocab; ++i)
      target_ids_.push_back(static_cast<int32_t>(i * target_.vocab / spec_.vocab));
  }
  take_inputs(inputs);
  check_spec(spec_, "the drafter asked for");
  tensors_ = dummy_weights(spec_, seed);
}

void EagleCheckpoint::read(const std::string& directory, const TensorSource& target_weights) {
  file_.emplace(directory, kFiles);
  read_config(directory);
  auto tensors = std::make_unique<RenamedTensors>();
  read_inputs(*tensors, target_weights);
  read_layer(*tensors);
  read_head(*tensors, target_weights);
  // Only these tensors may be left over: a layer with others would draft something else than is
  // computed here.
  constexpr const char* kUnneeded[] = {"t2d", "rotary_emb.inv_freq"};
  if (const std::string name = file_->first_unread(kUnneeded); !name.empty())
    fail("{}: the tensor {} is not part of a drafter that is supported (docs/speculation.md)",
         file_->path(), json::quoted(name));
  check_spec(spec_, directory + "/config.json");
  check_tensors(spec_, *tensors);
  tensors_ = std::move(tensors);
}

void EagleCheckpoint::read_config(const std::string& directory) {
  const HfDirectory files = open_hf_directory(directory);
  const std::string where = directory + "/config.json";
  ConfigReader reader(files.config, where);
  spec_ = layer_spec(files.config, directory);
  if (spec_.vocab != target_.vocab)
    fail_usage("expected a drafter of the target's vocabulary of {} tokens, found {} in {}",
               target_.vocab, spec_.vocab, where);
  spec_.vocab =
      static_cast<int32_t>(reader.integer("draft_vocab_size", 1, target_.vocab, target_.vocab));
  spec_.max_positions = std::max(spec_.max_positions, target_.max_positions);
  spec_.final_norm = kind_ == EagleKind::eagle3;
  if (!spec_.layer_specs[0].attention())
    fail_usage("{}: expected a drafter whose layer attends, found one with states", where);
  spec_.layer_specs[0].attention()->norms = NormPlace::none;
  spec_.layer_specs[0].put(JoinSpec{.feature_width = target_.hidden});
  join().stream_is_normed = reader.boolean("norm_before_residual", false);
  logit_scale_ = static_cast<float>(reader.number("logit_scale", 1e-6, 1e6, 1));
  const int64_t width = reader.integer("target_hidden_size", 1, 1 << 20, target_.hidden);
  if (width != target_.hidden)
    fail("{}: \"target_hidden_size\": expected the target's {}, found {}", where, target_.hidden,
         width);
  std::vector<int32_t> inputs = {target_.layers};
  if (kind_ == EagleKind::eagle3) inputs = feature_layers(reader, files.config, target_.layers);
  take_inputs(inputs);
}

// The features are the outputs of the layers before these; the last one's is behind all layers.
void EagleCheckpoint::take_inputs(std::span<const int32_t> inputs) {
  for (const int32_t layer : inputs) aux_layers_.push_back(layer - 1);
  std::ranges::sort(aux_layers_);
  aux_layers_.erase(std::unique(aux_layers_.begin(), aux_layers_.end()), aux_layers_.end());
  for (const int32_t layer : inputs)
    features_.push_back(
        static_cast<int32_t>(std::ranges::find(aux_layers_, layer - 1) - aux_layers_.begin()));
}

// Reads the weights that a token's embedding and the features pass before the layer.
void EagleCheckpoint::read_inputs(RenamedTensors& tensors, const TensorSource& target_weights) {
  const auto add = [&](const char* name, const std::string& there) {
    tensors.add(kLayer + name, *file_, there);
  };
  read_embedding(tensors, target_weights);
  const bool is_3 = kind_ == EagleKind::eagle3, has_bias = file_->has("fc.bias");
  join().is_projected = !is_3;
  join().features = is_3 ? 3 : 1;
  join().embedding_norm = is_3 || file_->has("embedding_layernorm.weight");
  join().hidden_norm = is_3 || file_->has("hidden_states_layernorm.weight");
  join().fuse_bias = is_3 && has_bias;
  join().projection_bias = !is_3 && has_bias;
  add(is_3 ? "fuse.weight" : "eh_proj.weight", "fc.weight");
  if (has_bias) add(is_3 ? "fuse.bias" : "eh_proj.bias", "fc.bias");
  if (is_3) return;  // its norms stand with the layer
  tensors.add(kLayer + "feature_norm.weight", target_weights, "model.norm.weight");
  if (join().embedding_norm) add("enorm.weight", "embedding_layernorm.weight");  // of HASS
  if (join().hidden_norm) add("hnorm.weight", "hidden_states_layernorm.weight");
}

void EagleCheckpoint::read_embedding(RenamedTensors& tensors, const TensorSource& target_weights) {
  constexpr const char* kName = "model.embed_tokens.weight";
  const bool has_own = file_->has("embed_tokens.weight");
  if (!has_own && spec_.hidden != target_.hidden)
    fail(
        "{}: expected the tensor \"embed_tokens.weight\", since the drafter's width of {} is not "
        "the target's {}",
        file_->path(), spec_.hidden, target_.hidden);
  spec_.embedding_rows = has_own || !shares_embedding_ ? target_.vocab : 0;
  if (has_own)
    tensors.add(kName, *file_, "embed_tokens.weight");
  else if (!shares_embedding_)
    tensors.add(kName, target_weights, kName);
}

void EagleCheckpoint::read_layer(RenamedTensors& tensors) {
  const std::string at = file_->has("midlayer.self_attn.q_proj.weight") ? "midlayer." : "layers.0.";
  if (kind_ == EagleKind::eagle3) {
    tensors.add(kLayer + "enorm.weight", *file_, at + "input_layernorm.weight");
    tensors.add(kLayer + "hnorm.weight", *file_, at + "hidden_norm.weight");
  }
  for (const char* name :
       {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
        "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight",
        "mlp.up_proj.weight", "mlp.down_proj.weight"})
    tensors.add(kLayer + name, *file_, at + name);
  spec_.qkv_bias = file_->has(at + "self_attn.q_proj.bias");
  for (const char* name :
       {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"})
    if (spec_.qkv_bias) tensors.add(kLayer + name, *file_, at + name);
}

// Its own head, or the target's where it has none.
void EagleCheckpoint::read_head(RenamedTensors& tensors, const TensorSource& target_weights) {
  if (spec_.final_norm) tensors.add("model.norm.weight", *file_, "norm.weight");
  if (file_->has("lm_head.weight")) {
    tensors.add("lm_head.weight", *file_, "lm_head.weight");
    if (spec_.vocab != target_.vocab || file_->has("d2t")) read_target_ids();
    return;
  }
  if (spec_.vocab != target_.vocab || spec_.hidden != target_.hidden)
    fail("{}: expected the tensor \"lm_head.weight\", since the target's head is of another shape",
         file_->path());
  tensors.add("lm_head.weight", target_weights,
              target_.tied_head ? "model.embed_tokens.weight" : "lm_head.weight");
}

// d2t: how far the target's id of a token is from the draft's.
void EagleCheckpoint::read_target_ids() {
  const std::vector<int64_t> offsets = file_->integers("d2t", spec_.vocab);
  std::vector<bool> taken(static_cast<size_t>(target_.vocab));
  for (int64_t i = 0; i < spec_.vocab; ++i) {
    const int64_t id = i + offsets[static_cast<size_t>(i)];
    if (id < 0 || id >= target_.vocab || taken[static_cast<size_t>(id)])
      fail(
          "{}: \"d2t\": expected a token of its own from 0 to {} for the draft's token {}, found "
          "{}",
          file_->path(), target_.vocab - 1, i, id);
    taken[static_cast<size_t>(id)] = true;
    target_ids_.push_back(static_cast<int32_t>(id));
  }
}

}  // namespace invar
