// The text of Llama 4: layers that turn and attend by chunks, and layers that do neither, whose
// queries grow; some layers have experts beside a shared one, and weights multiply what these read.
#include "base/error.h"
#include "model/families/hybrid.h"

namespace invar {

namespace {

constexpr Routing kRouting{.score = ExpertScore::sigmoid_of_chosen};

// All experts are routed so.
ExpertsSpec experts_like(const Routing& how, int width) {
  return {.routing = how, .width = width, .shared_width = width, .weighs_inputs = true};
}

// ---- Configuration

// A number of older files means what `true` does.
bool read_switch(ConfigReader& reader, std::string_view key) {
  const json::Value* found = reader.take(key);
  if (found && found->is_number()) return found->as_number() != 0;
  return reader.boolean(key, true);
}

void read_attention(ConfigReader& reader, DecoderSpec& spec) {
  constexpr std::string_view kKinds[] = {"full_attention", "chunked_attention"};
  read_still_layers(reader, spec);
  const bool has_norms = reader.boolean("use_qk_norm", true);
  const bool grows = read_switch(reader, "attn_temperature_tuning");
  const GrowthSpec growth{.scale = reader.number("attn_scale", 0, 1e6, 0.1),
                          .step = reader.number("floor_scale", 1, kMaxPositions, 8192)};
  const bool is_null = reader.is_null("attention_chunk_size");
  const int chunk = read_size(reader, "attention_chunk_size", kMaxPositions, is_null ? 1 : 8192);
  const std::vector<size_t> kinds = read_kinds(reader, "layer_types", spec.layers, kKinds);
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    AttentionSpec& attention = *spec.layer_specs[i].attention();
    const bool turns = attention.rope.has_value();
    attention.has_unit_heads = turns && has_norms;
    if (!turns && grows) attention.growth = growth;
    const bool has_chunks = kinds.empty() ? turns : kinds[i] == 1;
    if (has_chunks && is_null)
      fail("{}: \"attention_chunk_size\": expected a number of positions, found null",
           reader.where());
    attention.chunk = has_chunks ? chunk : 0;
  }
}

// Numbers of layers, as they are listed, or every so many.
std::vector<bool> read_expert_layers(ConfigReader& reader, int layers) {
  const int64_t step = reader.integer("interleave_moe_layer_step", 1, kMaxLayers, 1);
  std::vector<bool> has_experts(static_cast<size_t>(layers));
  const json::Value* listed = reader.take("moe_layers");
  for (size_t i = 0; i < has_experts.size(); ++i)
    has_experts[i] = !listed && (static_cast<int64_t>(i) + 1) % step == 0;
  if (!listed) return has_experts;
  for (const json::Value& layer : listed->is_array() ? listed->as_array() : json::Array{*listed}) {
    const auto number = layer.to_integer();
    if (!number || *number < 0 || *number >= layers)
      fail("{}: \"moe_layers\": expected numbers of layers below {}, found {}", reader.where(),
           layers, json::excerpt(layer));
    has_experts[static_cast<size_t>(*number)] = true;
  }
  return has_experts;
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  read_attention(reader, spec);
  Routing how = read_routing(reader, "num_local_experts", 16, 1);
  how.score = kRouting.score;
  const int width = read_size(reader, "intermediate_size", kMaxWidth, 8192);
  const DenseFfnSpec dense{.width = read_size(reader, "intermediate_size_mlp", kMaxWidth, 16384)};
  const std::vector<bool> has_experts = read_expert_layers(reader, spec.layers);
  change_layers(spec, [&](LayerSpec& layer) { layer.put(dense); });
  set_experts(spec, experts_like(how, width),
              [&](int i) { return has_experts[static_cast<size_t>(i)]; });
  const std::string_view harmless[] = {"cache_implementation", "for_llm_compressor"};
  reader.ignore(harmless);
}

void write(const DecoderSpec& spec, json::Value& config) {
  write_still_layers(spec, config);
  const ExpertsSpec* experts = spec.first<ExpertsSpec>();
  const DenseFfnSpec* dense = spec.first<DenseFfnSpec>();
  json::Array with_experts, kinds;
  AttentionSpec seen;
  for (int i = 0; i < spec.layers; ++i) {
    const LayerSpec layer = spec.layer(i);
    const AttentionSpec& attention = *layer.attention();
    if (layer.experts()) with_experts.emplace_back(i);
    kinds.emplace_back(attention.chunk > 0 ? "chunked_attention" : "full_attention");
    seen.has_unit_heads |= attention.has_unit_heads;
    if (attention.chunk > 0) seen.chunk = attention.chunk;
    if (attention.growth) seen.growth = attention.growth;
  }
  config.set("moe_layers", std::move(with_experts));
  config.set("layer_types", std::move(kinds));
  config.set("use_qk_norm", seen.has_unit_heads);
  config.set("attention_chunk_size", seen.chunk > 0 ? json::Value(seen.chunk) : json::Value());
  config.set("attn_temperature_tuning", seen.growth.has_value());
  if (seen.growth) config.set("attn_scale", seen.growth->scale);
  if (seen.growth) config.set("floor_scale", seen.growth->step);
  if (dense) config.set("intermediate_size_mlp", dense->width);
  if (!experts) return;
  config.set("intermediate_size", experts->width);
  config.set("num_local_experts", experts->routing.experts);
  config.set("num_experts_per_tok", experts->routing.chosen);
}

// A preset's layers: every fourth neither turns nor goes by chunks.
void shape(DecoderSpec& spec) {
  for (size_t i = 0; i < spec.layer_specs.size(); ++i) {
    LayerSpec& layer = spec.layer_specs[i];
    AttentionSpec& attention = *layer.attention();
    Routing how = kRouting;
    how.experts = 8;
    how.chosen = 1;
    attention.window = 0;
    if (!attention.rope) attention.rope = RopeSpec{};
    attention.has_unit_heads = i % 4 != 3;
    attention.chunk = i % 4 != 3 ? 64 : 0;
    if (i % 4 == 3) attention.rope = std::nullopt;
    if (i % 4 == 3) attention.growth = GrowthSpec{.scale = 0.1, .step = 64};
    if (i % 2 == 1) layer.put(experts_like(how, layer.ffn_width()));
  }
}

// ---- Tensors: what turns stands in pairs of neighbours, and all experts in one tensor with inputs
// as rows, [experts][K][N], gates before ups.

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const bool turns =
      tensor.role == q || tensor.role == k || tensor.role == q_bias || tensor.role == k_bias;
  if (turns) return {tensor.name, rotation_rows(spec, true)};
  if (tensor.role == router)
    return {fmt::format("model.layers.{}.feed_forward.router.weight", tensor.layer)};
  if (tensor.expert < 0) return {renamed(tensor.name, {{".mlp.", ".feed_forward."}})};
  return turned_stack_at(spec, tensor,
                         fmt::format("model.layers.{}.feed_forward.experts.", tensor.layer));
}

}  // namespace

extern const Family kLlama4{.name = "llama4_text",
                            .architecture = "Llama4ForCausalLM",
                            .has_attention_bias = true,
                            .has_layer_kinds = true,
                            .theta = 5e5,
                            .read = read,
                            .write = write,
                            .stored = stored,
                            .shape = shape};

}  // namespace invar
