#include "drafters/eagle_weights.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "model/families/config_reader.h"
#include "weights/hf_directory.h"

namespace invar {

namespace {

constexpr const char* kFiles[] = {"model.safetensors"};

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

EagleWeights::EagleWeights(const std::string& directory, EagleKind kind, const Model& target,
                           HostProducts& products)
    : kind(kind),
      target_width(target.spec().hidden),
      target_vocab(target.spec().vocab),
      tables_(target) {
  const TensorFile file(directory, kFiles);
  where_ = file.path();
  if (file.is_made())
    make_config(target.spec());
  else
    read_config(directory, target.spec().layers);
  read_inputs(file, products);
  read_layer(file, products);
  read_head(file, products);
  // A layer that has more to it than is computed here would draft something else.
  constexpr const char* kUnneeded[] = {"t2d", "rotary_emb.inv_freq"};
  if (const std::string name = file.first_unread(kUnneeded); !name.empty())
    fail("{}: the tensor {} is not part of a drafter that is supported (docs/speculation.md)",
         where_, json::quoted(name));
}

void EagleWeights::read_config(const std::string& directory, int32_t target_layers) {
  const HfDirectory files = open_hf_directory(directory);
  const std::string where = directory + "/config.json";
  ConfigReader reader(files.config, where);
  spec = layer_spec(files.config, directory);
  if (spec.vocab != target_vocab)
    fail_usage("expected a drafter of the target's vocabulary of {} tokens, found {} in {}",
               target_vocab, spec.vocab, where);
  draft_vocab_ =
      static_cast<int32_t>(reader.integer("draft_vocab_size", 1, target_vocab, target_vocab));
  residual_is_normed = reader.boolean("norm_before_residual", false);
  logit_scale = static_cast<float>(reader.number("logit_scale", 1e-6, 1e6, 1));
  const int64_t width = reader.integer("target_hidden_size", 1, 1 << 20, target_width);
  if (width != target_width)
    fail("{}: \"target_hidden_size\": expected the target's {}, found {}", where, target_width,
         width);
  std::vector<int32_t> inputs = {target_layers};
  if (kind == EagleKind::eagle3) inputs = feature_layers(reader, files.config, target_layers);
  take_inputs(inputs);
}

// Of a layer of the target's shape, behind its first, middle and last layers.
void EagleWeights::make_config(const DecoderSpec& target) {
  spec = target;
  spec.layers = 1;
  spec.layer_specs.resize(1);
  draft_vocab_ = target_vocab;
  std::vector<int32_t> inputs = {target.layers};
  if (kind == EagleKind::eagle3) inputs = {1, (target.layers + 1) / 2, target.layers};
  take_inputs(inputs);
}

// The features are the outputs of the layers before these; the last one's is behind all layers.
void EagleWeights::take_inputs(std::span<const int32_t> inputs) {
  for (const int32_t layer : inputs) aux_layers.push_back(layer - 1);
  std::ranges::sort(aux_layers);
  aux_layers.erase(std::unique(aux_layers.begin(), aux_layers.end()), aux_layers.end());
  for (const int32_t layer : inputs)
    features.push_back(
        static_cast<int32_t>(std::ranges::find(aux_layers, layer - 1) - aux_layers.begin()));
}

// What a token's embedding and the features become before the layer.
void EagleWeights::read_inputs(const TensorFile& file, HostProducts& products) {
  const int64_t d = spec.hidden;
  if (file.has("embed_tokens.weight"))
    embedding_ = file.matrix("embed_tokens.weight", target_vocab, d);
  else if (d != target_width)
    fail(
        "{}: expected the tensor \"embed_tokens.weight\", since the drafter's width of {} is not "
        "the target's {}",
        where_, d, target_width);
  const int64_t inner = kind == EagleKind::eagle3 ? 3 * int64_t{target_width} : d + target_width;
  fuse = products.pack(file.matrix("fc.weight", d, inner), d, inner);
  fuse_bias = file.vector_if_there("fc.bias", d);
}

void EagleWeights::read_layer(const TensorFile& file, HostProducts& products) {
  const std::string at = file.has("midlayer.self_attn.q_proj.weight") ? "midlayer." : "layers.0.";
  const int64_t d = spec.hidden, inner = kind == EagleKind::eagle3 ? 2 * d : d;
  if (kind == EagleKind::eagle3) {
    embedding_norm = file.vector(at + "input_layernorm.weight", d);
    hidden_norm = file.vector(at + "hidden_norm.weight", d);
  } else {  // of HASS
    embedding_norm = file.vector_if_there("embedding_layernorm.weight", d);
    hidden_norm = file.vector_if_there("hidden_states_layernorm.weight", target_width);
  }
  std::vector<bf16_t> rows;
  for (const char* name : {"q", "k", "v"}) {
    const int64_t outputs = *name == 'q' ? spec.query_width() : spec.kv_width();
    const std::string tensor = fmt::format("{}self_attn.{}_proj", at, name);
    const auto part = file.matrix(tensor + ".weight", outputs, inner);
    rows.insert(rows.end(), part.begin(), part.end());
    const auto bias = file.vector_if_there(tensor + ".bias", outputs);
    qkv_bias.insert(qkv_bias.end(), bias.begin(), bias.end());
  }
  const int64_t outputs = spec.query_width() + 2 * int64_t{spec.kv_width()};
  if (!qkv_bias.empty() && std::ssize(qkv_bias) != outputs)
    fail("{}: expected biases of q_proj, k_proj and v_proj or of none of them", where_);
  qkv = products.pack(rows, outputs, inner);
  const auto matrix = [&](const char* name, int64_t n, int64_t k) {
    return products.pack(file.matrix(at + name, n, k), n, k);
  };
  o = matrix("self_attn.o_proj.weight", d, spec.query_width());
  rows = file.matrix(at + "mlp.gate_proj.weight", spec.layer(0).ffn.width, d);
  const auto up = file.matrix(at + "mlp.up_proj.weight", spec.layer(0).ffn.width, d);
  rows.insert(rows.end(), up.begin(), up.end());
  gate_up = products.pack(rows, 2 * int64_t{spec.layer(0).ffn.width}, d);
  down = matrix("mlp.down_proj.weight", d, spec.layer(0).ffn.width);
  ffn_norm = file.vector(at + "post_attention_layernorm.weight", d);
}

// Its own head, or the target's where it has none.
void EagleWeights::read_head(const TensorFile& file, HostProducts& products) {
  const int64_t d = spec.hidden;
  if (kind == EagleKind::eagle3) final_norm = file.vector("norm.weight", d);
  if (file.has("lm_head.weight")) {
    head = products.pack(file.matrix("lm_head.weight", draft_vocab_, d), draft_vocab_, d);
    if (draft_vocab_ != target_vocab || file.has("d2t")) read_target_ids(file);
    return;
  }
  if (draft_vocab_ != target_vocab || d != target_width)
    fail("{}: expected the tensor \"lm_head.weight\", since the target's head is of another shape",
         where_);
  head = products.pack(tables_.head(), target_vocab, d);
}

// d2t: how far the target's id of a token is from the draft's.
void EagleWeights::read_target_ids(const TensorFile& file) {
  const std::vector<int64_t> offsets = file.integers("d2t", draft_vocab_);
  std::vector<bool> taken(static_cast<size_t>(target_vocab));
  for (int64_t i = 0; i < draft_vocab_; ++i) {
    const int64_t id = i + offsets[static_cast<size_t>(i)];
    if (id < 0 || id >= target_vocab || taken[static_cast<size_t>(id)])
      fail(
          "{}: \"d2t\": expected a token of its own from 0 to {} for the draft's token {}, found "
          "{}",
          where_, target_vocab - 1, i, id);
    taken[static_cast<size_t>(id)] = true;
    target_ids.push_back(static_cast<int32_t>(id));
  }
}

void EagleWeights::embed(int32_t token, float* out) const {
  if (embedding_.empty()) return tables_.embed(token, out);
  convert_elements(&embedding_[static_cast<size_t>(token) * static_cast<size_t>(width())],
                   DType::bf16, width(), DType::f32, out);
}

}  // namespace invar
